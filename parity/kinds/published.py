"""What refsim knows of a model without its weights, judged by the library's own class built on meta tensors.

    config.json as published   --> weights that refsim's model asks for    by name and shape those of the class
    ... without one of its keys --> what is read instead                   the class's own default, or a refusal
    parameters of the spec                                                 counted on the class

Nothing is computed and there are no ranks. Of a model that predictions alone know (``timing_only``) the weights have
names of their own; all of them together, and those of one block more of each kind, are as many as the class has. The
case's ``model`` is a name of :func:`parity.published.published_models`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import time
from typing import Any, ClassVar

import diffusers
import torch
import transformers
from torch import Tensor

from parity.cases import Case, Layout
from parity.kinds.base import CpuKind, Metrics
from parity.published import published_models
from parity.thresholds import Threshold
from refsim.checkpoint import ShapeWeights
from refsim.errors import UserError
from refsim.models.spec import ModelSpec, Published
from refsim.options import RunOptions
from refsim.runtime.device import Device
from refsim.runtime.launch import Result

_BLOCKS = ("num_layers", "num_single_layers", "num_hidden_layers")
"""Keys that count blocks of a kind."""
_FEW = 2
_EXPERT = re.compile(r"(.*\.experts)\.(\d+\..+)")
Shapes = dict[str, tuple[int, ...]]


class PublishedModel(CpuKind):
    """A configuration in, names and shapes of weights out."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold("wrong_weights", 0, "names and shapes are those of a saved checkpoint or not", optional=True),
            Threshold("wrong_defaults", 0, "a key that config.json lacks means what the library takes it for"),
            Threshold("wrong_parameters", 0, "parameters are counted"),
            Threshold(
                "outline_off",
                0.01,
                "an outline leaves out what takes no time, such as Mochi's pooling of the prompt, 0.6 % of its weights",
                optional=True,
            ),
            Threshold(
                "outline_block_off",
                1e-3,
                "norms and biases that an outline has or lacks are a thousandth",
                optional=True,
            ),
        )
    }

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        begun, (spec, published) = time.monotonic(), published_models()[case.model]
        asked = asked_for(spec, published.config)
        value = {"shapes": asked.shapes, "left": asked.left, "defaults": defaults(spec, published)}
        return Result([value], {}, {}, [], wall_s=time.monotonic() - begun)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        spec, published = published_models()[case.model]
        known, model = library_defaults(published.class_name), library_model(published, published.config)
        theirs, total = shapes_of(model.state_dict()), count(shapes_of(dict(model.named_parameters())))
        found: Metrics = {
            "wrong_defaults": sum(known[name] != value for name, value in result.value["defaults"].items()),
            "wrong_parameters": abs(published.parameters - total) if published.parameters else 0,
        }
        if spec.timing_only:
            outlined = abs(count(result.value["shapes"]) / total - 1)
            return found | {"outline_off": outlined, "outline_block_off": _blocks(spec, published)}
        ours, left = stacked(result.value["shapes"]), tuple(result.value["left"])
        wanted = {name: x for name, x in theirs.items() if name in ours or not name.startswith(left)}
        return found | {"wrong_weights": len(wanted.items() ^ ours.items())}

    def answers(self, result: Result) -> dict[str, Tensor]:
        return {}

    def drop(self, case: Case, seed: int) -> None:
        pass  # there is no checkpoint


class _Asked(ShapeWeights):
    """Weights that also know what a model leaves aside."""

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.left: list[str] = []

    def leave(self, *prefixes: str) -> None:
        self.left += prefixes


def asked_for(spec: ModelSpec, config: dict[str, Any]) -> _Asked:
    """What refsim's model asks a checkpoint for."""
    asked = _Asked()
    with torch.device("meta"):
        spec.model_class(asked, Device(RunOptions.of(mesh="n150")), spec.config_class.from_dict(config))
    return asked


def defaults(spec: ModelSpec, published: Published) -> dict[str, Any]:
    """What refsim reads for each key that config.json lacks; without those that it refuses to do without, as all are by
    a model that predictions alone know.
    """
    if spec.timing_only:
        return {}
    found: dict[str, Any] = {}
    known = library_defaults(published.class_name)
    unsaid = {field.name: field.default for field in dataclasses.fields(spec.config_class)}
    for name in known.keys() & unsaid.keys():
        lacking = {key: value for key, value in published.config.items() if key != name}
        try:
            found[name] = getattr(spec.config_class.from_dict(lacking), name)
        except UserError:  # other keys have to agree with it, or it has to be said; a number's own default is left
            if isinstance(unsaid[name], int | float):
                found[name] = unsaid[name]
    return found


def library_class(class_name: str) -> Any:
    """The class in diffusers or transformers; ``UserError`` where neither has it."""
    found = getattr(diffusers, class_name, None) or getattr(transformers, class_name, None)
    if found is None:
        raise UserError(
            f"neither diffusers {diffusers.__version__} nor transformers {transformers.__version__} has {class_name}; "
            "install the versions of constraints.txt."
        )
    return found


def library_defaults(class_name: str) -> dict[str, Any]:
    """Default values by key, lists as tuples; without None, which stands for what other keys say."""
    kind = library_class(class_name)
    if hasattr(kind, "config_class"):
        given = kind.config_class().to_dict()
    else:
        parameters = inspect.signature(kind.__init__).parameters
        given = {name: parameter.default for name, parameter in parameters.items()}
    known = {name: x for name, x in given.items() if x is not None and x is not inspect.Parameter.empty}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in known.items()}


def library_model(published: Published, config: dict[str, Any]) -> torch.nn.Module:
    """The library's model on meta tensors."""
    kind, read = library_class(published.class_name), json.loads(json.dumps(config))
    with torch.device("meta"):
        if hasattr(kind, "config_class"):
            return kind(kind.config_class(**{name: value for name, value in read.items() if name != "architectures"}))
        return kind.from_config(read)


def shapes_of(tensors: dict[str, Tensor]) -> Shapes:
    """Shapes by name."""
    return {name: tuple(x.shape) for name, x in tensors.items()}


def count(shapes: Shapes) -> int:
    """How many numbers tensors have."""
    return sum(map(math.prod, shapes.values()))


def stacked(shapes: Shapes) -> Shapes:
    """Weights of experts as transformers holds them, all experts of a layer in one tensor, gate and up in one."""
    found: Shapes = {}
    experts: dict[str, Shapes] = {}
    for name, shape in shapes.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[match[2]] = shape
        else:
            found[name] = shape
    for layer, each in experts.items():
        number = sum(name.endswith(".down_proj.weight") for name in each)
        up, down = each["0.up_proj.weight"], each["0.down_proj.weight"]
        alike = each == {
            f"{i}.{kind}_proj.weight": shape
            for i in range(number)
            for kind, shape in (("gate", up), ("up", up), ("down", down))
        }
        found[f"{layer}.gate_up_proj"] = (number, 2 * up[0], up[1]) if alike else ()
        found[f"{layer}.down_proj"] = (number, *down)
    return found


def _blocks(spec: ModelSpec, published: Published) -> float:
    """The same of one more block, the worst kind of block."""
    kinds = [name for name in _BLOCKS if name in published.config]
    few, worst = published.config | dict.fromkeys(kinds, _FEW), 0.0
    for kind in kinds:
        more = few | {kind: _FEW + 1}
        ours = count(asked_for(spec, more).shapes) - count(asked_for(spec, few).shapes)
        theirs = _parameters(published, more) - _parameters(published, few)
        worst = max(worst, abs(ours / theirs - 1))
    return worst


def _parameters(published: Published, config: dict[str, Any]) -> int:
    return sum(p.numel() for p in library_model(published, config).parameters())
