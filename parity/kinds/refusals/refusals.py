"""A tiny checkpoint and its inputs, spoiled in one way after the other: each is refused in a sentence that names what
is wrong, all but two of them before a rank begins.

What each way means judges: the library's own strict loading raises for the first three, and to the others no answer is
right. The case's ``model`` is a tiny model; its kind says which inputs that has.
"""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import HostKind
from parity.measure.thresholds import Threshold
from refsim import api
from refsim.api.text import TextRequest, generate_text
from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.folder import class_name_of
from refsim.models.registry import get
from refsim.runtime import launch

Tensors = dict[str, Tensor]
Spoil = Callable[[Tensors, Tensors, dict[str, Any]], str | None]
"""Changes weights, inputs or config in place and returns what the sentence is to name; None of a model that it cannot
be done to."""


class Refusals(HostKind):
    """A folder and inputs in, the ways that were not refused out."""

    thresholds: ClassVar = {"fp32": (Threshold("accepted", 0, "what cannot be right is refused, or it is not"),)}

    def look(self, case: Case, seed: int) -> dict[str, Any]:
        folder = self.store.folder(case.model, seed)
        options = case.layout.options("fp32")
        if (target := MODELS[case.model].target) is None:
            _, inputs = self.runs(case, seed)
            run = partial(api.run, options=options)
        else:  # a drafter runs beside its target
            inputs = {}
            run = partial(_draft, target=self.store.folder(target, seed), options=options)
        accepted = [name for name, spoil in WAYS.items() if not self._refused(folder, inputs, spoil, run)]
        return {"complaints": {"accepted": accepted}}

    @staticmethod
    def _refused(folder: Path, inputs: Tensors, spoil: Spoil, run: Callable[..., Any]) -> bool:
        (file,) = folder.glob("*.safetensors")
        weights = load_file(file)
        tensors = {name: x.clone() for name, x in inputs.items()}
        config = json.loads((folder / "config.json").read_text())
        if (named := spoil(weights, tensors, config)) is None:
            return True
        with scratch.Folder("refusals") as into:
            (Path(into) / "config.json").write_text(json.dumps(config))
            save_file(weights, Path(into) / file.name, metadata={"format": "pt"})
            try:
                run(into, inputs=tensors)
            except UserError as error:
                return named in str(error) and (spoil in ON_RANKS or not _from_ranks(error))
        return False


def _from_ranks(error: UserError) -> bool:
    """Whether ranks had begun when a mistake was found."""
    return any(frame.name == launch.execute.__name__ for frame in traceback.extract_tb(error.__traceback__))


def _draft(folder: str, inputs: Tensors, target: Path, options: RunOptions) -> None:
    """Generate a few tokens with a folder's drafter."""
    generate_text(target, [[1, 2, 3]], TextRequest(draft=Path(folder), max_new_tokens=2), options=options)


def _last(weights: Tensors) -> str:
    """Name a norm's weight, which every model has; of an autoencoder the decoder's, as refsim runs no encoder."""
    decoder = [name for name in weights if name.startswith("decoder.")]
    return max(name for name in decoder or weights if "norm" in name)


def _ungrouped(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    """Make heads of keys, and their weights, among which heads cannot be shared out, on two devices either."""
    if "num_key_value_heads" not in config:
        return None
    before = config["num_key_value_heads"]
    fewer = config["num_attention_heads"] - 2
    config["num_key_value_heads"] = fewer
    for name, x in weights.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            weights[name] = x.new_ones(x.shape[0] // before * fewer, x.shape[1])
    return f"{fewer} key-value heads"


def _unused(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str:
    name = f"{_last(weights)}_of_another_model"
    weights[name] = torch.zeros(1)
    return name


def _missing(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str:
    del weights[name := _last(weights)]
    return name


def _larger(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str:
    name = _last(weights)
    weights[name] = torch.cat([weights[name], weights[name][:1]])
    return name


def _weight_is_nan(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str:
    weights[_last(weights)].view(-1)[-1] = torch.nan
    return "not finite"


def _input_missing(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    if not inputs:
        return None
    del inputs[name := max(inputs)]
    return name


def _input_empty(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    """Empty an input's last dim."""
    if not inputs:
        return None
    name = max(inputs, key=lambda name: inputs[name].ndim)
    inputs[name] = inputs[name][..., :0].contiguous()
    return name


def _input_wrong(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    """Put in a value that is none: NaN, or an id behind the vocabulary's last; a drafter is given nothing."""
    if not inputs:
        return None
    name = "input_ids" if "input_ids" in inputs else min(inputs)
    inputs[name].view(-1)[-1] = torch.nan if inputs[name].is_floating_point() else config["vocab_size"]
    return name if inputs[name].is_floating_point() else "the tokenizer gave"


def _latent_uneven(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    """Take a column off a picture in patches of two."""
    latent = inputs.get("hidden_states")
    if latent is None or latent.ndim < 4:
        return None
    inputs["hidden_states"] = latent[..., :-1].contiguous()
    return str(latent.shape[-1] - 1)


def _config_wrong(weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str:
    read = {field.name for field in dataclasses.fields(get(class_name_of(config)).config_class)}
    name = next(name for name, value in config.items() if name in read and type(value) is int)
    config[name] = str(config[name])
    return name


def _stages(count: int, weights: Tensors, inputs: Tensors, config: dict[str, Any]) -> str | None:
    """Give a decoder another number of stages, each but the last of which doubles its picture."""
    name = next((name for name in ("block_out_channels", "dim_mult") if name in config), None)
    if name is not None:
        config[name] = (config[name] * count)[:count]
    return name and f"{count} entries in {name}"


WAYS: dict[str, Spoil] = {
    "a weight that no part uses": _unused,
    "a weight that is missing": _missing,
    "a weight that is larger": _larger,
    "a weight that is not a number": _weight_is_nan,
    "an input that is missing": _input_missing,
    "an input that is none": _input_wrong,
    "an input that is empty": _input_empty,
    "a latent that is no whole patches": _latent_uneven,
    "a text in config.json where a number belongs": _config_wrong,
    "heads that cannot share their keys": _ungrouped,
    "a decoder without stages": partial(_stages, 0),
    "a picture doubled more often than any machine can hold": partial(_stages, 17),
}
ON_RANKS = (_weight_is_nan, _input_wrong)
"""What only shows where weights are read, and ids looked up."""
