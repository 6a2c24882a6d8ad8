"""What diffusers and transformers have of a model without its weights: classes, defaults, modules on meta tensors."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_args

import diffusers
import transformers
from torch import Tensor, nn

from parity.cases.oracles import oracle_of
from parity.cases.oracles.meta import empty, on_meta
from refsim.base.errors import UserError
from refsim.models.spec import Published


def library_class(class_name: str) -> Any:
    """Return the class in diffusers or transformers; ``UserError`` where neither has it."""
    known = getattr(diffusers, class_name, None) or getattr(transformers, class_name, None)
    if known is None:
        raise UserError(
            f"neither diffusers {diffusers.__version__} nor transformers {transformers.__version__} has {class_name}; "
            "install the versions of constraints.txt."
        )
    return known


def defaults_of(function: Any) -> dict[str, Any]:
    """Return the default values of a function's parameters by name, those without one left out."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


def library_defaults(class_name: str) -> dict[str, Any]:
    """Return default values by key, lists as tuples; without None, which stands for what other keys say."""
    kind = library_class(class_name)
    values = kind.config_class().to_dict() if hasattr(kind, "config_class") else defaults_of(kind.__init__)
    values |= values.get("rope_parameters") or {}  # which published folders have beside the other keys
    return {name: as_tuple(x) for name, x in values.items() if x is not None}


def as_tuple(x: Any) -> Any:
    """Return a list of a config.json as the tuple that a class may have for it, anything else as it is."""
    return tuple(x) if isinstance(x, list) else x


def library_model(published: Published, config: dict[str, Any]) -> nn.Module:
    """Make the library's model on meta tensors."""
    kind = library_class(published.class_name)
    read = json.loads(json.dumps(config))
    with on_meta():
        if hasattr(kind, "config_class"):
            return kind(kind.config_class(**{name: value for name, value in read.items() if name != "architectures"}))
        return kind.from_config(read)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformer, in the order they run."""
    return [block for part in model.children() if isinstance(part, nn.ModuleList) for block in part]


def signature_of(block: nn.Module) -> tuple:
    """Return what two blocks of one kind have in common: names and shapes of their weights."""
    return tuple(sorted((name, tuple(x.shape)) for name, x in block.state_dict().items()))


def pipeline_of(class_name: str) -> Any:
    """Return the pipeline of diffusers from text alone, in its own words, that is made for a transformer's class.

    Raises:
        ValueError: diffusers' pipeline of that name is made for another class.
    """
    kind = library_class(class_name)
    pipeline = library_class(oracle_of(class_name).text_to)
    wanted = inspect.signature(pipeline.__init__, eval_str=True).parameters["transformer"].annotation
    if kind is not wanted and kind not in get_args(wanted):
        raise ValueError(f"{pipeline.__name__} is made for {wanted}, not {class_name}")
    return pipeline


def packed(class_name: str, latent: Tensor, size: tuple[int, ...]) -> tuple[Any, Tensor]:
    """Return the pipeline of a class, and a latent (B, C, *size) of as many numbers as a packed (B, tokens, 4 C)."""
    batch, _, width = latent.shape
    return pipeline_of(class_name), empty((batch, width // 4, *size))


def check_same(ours: Tensor, theirs: Tensor) -> None:
    """Raise ValueError where a pipeline makes another shape of a latent than refsim's model takes."""
    if ours.shape != theirs.shape:
        raise ValueError(f"the pipeline makes {tuple(theirs.shape)} of it, not {tuple(ours.shape)}")


def bare(pipeline: Any) -> Any:
    """Make a pipeline without a part, which says what it would take for given where a part does not."""
    parameters = list(inspect.signature(pipeline.__init__).parameters.values())[1:]
    return pipeline(**{each.name: None for each in parameters if each.default is inspect.Parameter.empty})
