"""LoRA files: changes of low rank that are merged into a weight when it is read, W + scale * alpha / rank * B A.

    transformer.X.lora_A.weight (rank, in), .lora_B.weight (out, rank)     as diffusers writes them, prefix or not
    X.lora_A.default.weight, X.lora_B.default.weight                       as PEFT names them inside a model
    lora_unet_X.lora_down.weight, .lora_up.weight, .alpha                  as kohya does, X with underscores for dots

X is a module as diffusers calls it. ``alpha`` stands beside the matrices or in the metadata that diffusers writes;
without one it is the rank. A slice of a weight is changed by the same slice of B A, so every rank merges what it holds.
Of a pipeline a file changes ``transformer``; ``transformer_2=FILE`` is diffusers' ``load_into_transformer_2``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.tensor_file import TensorFile

_HALF = re.compile(r"(?P<module>.+)\.(?:lora_(?P<peft>[AB])(?:\.\w+)?|lora[_.](?P<kohya>down|up))\.weight")
_OF_PART = re.compile(r"(?P<part>transformer\w*)=(?P<file>.+)")
_PREFIX = "transformer."
_KOHYA = ("lora_unet_", "lora_transformer_")
_METADATA = "lora_adapter_metadata"
_DTYPES = ("F64", "F32", "F16", "BF16")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """What one file adds to one weight: ``factor * B A``, B being ``up`` and A ``down``."""

    file: TensorFile
    down: str
    up: str
    factor: float

    def of(self, ranges: list[tuple[int, int]]) -> Tensor:
        """Return the slice (start, stop) per dim of the weight, in fp32; convolutions have B as their last part."""
        (start, stop), *others = ranges
        columns = (slice(None), *(slice(a, b) for a, b in others))
        down = self.file[self.down][columns].float()
        up = self.file[self.up].flatten(1)[start:stop].float()
        return (self.factor * (up @ down.flatten(1))).unflatten(1, down.shape[1:])


def by_part(values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the files of each part of a pipeline, ``FILE[:SCALE]`` being one of ``transformer``."""
    parts: dict[str, tuple[str, ...]] = {}
    for text in values:
        named = _OF_PART.fullmatch(text)
        part, file = (named["part"], named["file"]) if named else ("transformer", text)
        parts[part] = (*parts.get(part, ()), file)
    return parts


def read_loras(values: tuple[str, ...], weights: Mapping[str, Shape], where: str) -> dict[str, list[Change]]:
    """Return the changes of every weight.

    Args:
        values: files, each with a scale behind a colon or without.
        weights: the shapes of all weights of the checkpoint by name.
        where: what the checkpoint is called in a sentence.

    Raises:
        UserError: a file that cannot be read, a key that changes no weight, or shapes that do not fit.
    """
    changes: dict[str, list[Change]] = {}
    for text in values:
        path, scale = _parse(text)
        for name, change in _changes(path, scale, weights, where).items():
            changes.setdefault(name, []).append(change)
    return changes


def _parse(text: str) -> tuple[str, float]:
    """Return the file and the scale of ``FILE[:SCALE]``."""
    path, colon, scale = text.rpartition(":")
    if not colon or Path(text).is_file():
        return text, 1.0
    try:
        number = float(scale)
    except ValueError:
        return text, 1.0
    if not math.isfinite(number):
        raise UserError(f"LoRA '{text}' has the scale {scale}; it must be a finite number.")
    return path, number


def _changes(path: str, scale: float, weights: Mapping[str, Shape], where: str) -> dict[str, Change]:
    if not Path(path).is_file():
        raise UserError(f"LoRA '{path}' is no file; give safetensors, and a scale behind a colon if wanted.")
    try:
        file = TensorFile(path)
    except (OSError, ValueError) as e:
        raise UserError(f"'{path}' is not a readable safetensors file ({e}).") from e
    by_underscores = {name.removesuffix(".weight").replace(".", "_"): name for name in weights}
    halves: dict[str, dict[str, str]] = {}
    alphas: dict[str, float] = {}
    for key in sorted(file.names):
        half = _HALF.fullmatch(key)
        module = half["module"] if half else key.removesuffix(".alpha")
        name = _weight_of(module, weights, by_underscores)
        if name is None or (half is None and not key.endswith(".alpha")):
            raise UserError(
                f"LoRA '{path}' holds '{key}', which changes no weight of {where}; it takes lora_A and lora_B (or "
                "lora_down and lora_up) and alpha of modules as diffusers calls them."
            )
        if half is None:
            alphas[name] = float(file[key])
        else:
            halves.setdefault(name, {})["down" if half["peft"] == "A" or half["kohya"] == "down" else "up"] = key
    return _joined(path, file, scale, halves, alphas, weights)


def _weight_of(module: str, weights: Mapping[str, Shape], by_underscores: dict[str, str]) -> str | None:
    for name in (f"{module}.weight", f"{module.removeprefix(_PREFIX)}.weight"):
        if name in weights:
            return name
    plain = next((module.removeprefix(prefix) for prefix in _KOHYA if module.startswith(prefix)), None)
    return None if plain is None else by_underscores.get(plain)


def _joined(
    path: str,
    file: TensorFile,
    scale: float,
    halves: dict[str, dict[str, str]],
    alphas: dict[str, float],
    weights: Mapping[str, Shape],
) -> dict[str, Change]:
    ranks: dict[str, int] = {}
    for name, keys in halves.items():
        if len(keys) < 2:
            raise UserError(f"LoRA '{path}' holds '{next(iter(keys.values()))}' without its other half.")
        down, up = (file.shape(keys[half]) for half in ("down", "up"))
        shape = weights[name]
        rank = down[0] if down else 0
        if down[1:] != shape[1:] or up[:2] != (shape[0], rank) or math.prod(up) != shape[0] * rank or not rank:
            raise UserError(f"LoRA '{path}' changes '{name}' of shape {shape} by {up} times {down}, which do not fit.")
        if wrong := {file.dtype(key) for key in keys.values()} - set(_DTYPES):
            raise UserError(f"LoRA '{path}' changes '{name}' by {min(wrong)}; it must be one of {', '.join(_DTYPES)}.")
        ranks[name] = rank
    metadata = _metadata(path, file)
    if not alphas and not metadata and len(set(ranks.values())) > 1:
        raise UserError(
            f"LoRA '{path}' has ranks {', '.join(map(str, sorted(set(ranks.values()))))} and no alpha, which leaves "
            "the size of its changes open; put an alpha beside each pair."
        )
    changes = {}
    for name, rank in ranks.items():
        alpha = alphas.get(name, _alpha(metadata, name.removesuffix(".weight"), rank))
        divisor = math.sqrt(rank) if metadata.get("use_rslora") else rank
        changes[name] = Change(file, halves[name]["down"], halves[name]["up"], scale * alpha / divisor)
    return changes


def _metadata(path: str, file: TensorFile) -> dict[str, Any]:
    """Return PEFT's configuration as diffusers writes it beside the tensors, empty where it does not."""
    try:
        values = json.loads(file.metadata.get(_METADATA, "{}"))
        return {name.removeprefix(_PREFIX): value for name, value in values.items()}
    except (ValueError, AttributeError) as e:
        raise UserError(f"LoRA '{path}' has {_METADATA} that is no JSON object ({e}).") from e


def _alpha(metadata: dict[str, Any], module: str, rank: int) -> float:
    for pattern, alpha in (metadata.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):  # as PEFT matches
            return float(alpha)
    return float(metadata.get("lora_alpha", rank))


def merged(weight: Tensor, changes: list[Change], ranges: list[tuple[int, int]]) -> Tensor:
    """Return a slice of a weight with its changes, summed in fp32."""
    return torch.stack([weight.float(), *(change.of(ranges) for change in changes)]).sum(0)
