"""The program of :mod:`parity.kinds.published.outlined`: an outline on weights and inputs of one file, on every
device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from refsim.files.checkpoint import ShapeWeights
from refsim.files.tensor_file import TensorFile
from refsim.models.outline import Outline, OutlinedTransformer
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device

INPUTS = "inputs."
"""What names of inputs begin with."""


def program(device: Device, *, file: str, outline: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run an outline on this device; a digest says what it holds, and ``left`` which weights no layer has taken."""
    tensors = TensorFile(file).all()
    inputs = {name.removeprefix(INPUTS): x for name, x in tensors.items() if name.startswith(INPUTS)}
    weights = _Weights({name: x for name, x in tensors.items() if not name.startswith(INPUTS)})
    answer = OutlinedTransformer(weights, device, Outline(**outline))(**inputs)
    left = sorted(weights.tensors.keys() - weights.shapes.keys())
    return {"left": left, "digest": digest(answer)}, {"sample": answer.contiguous()}


class _Weights(ShapeWeights):
    """Weights in memory; a tensor of another shape than is asked for is an error, lanes beyond it are zeros."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(torch.float32)
        self.tensors = tensors

    def take(self, name: str, shape: tuple[int, ...], *ranges: tuple[int, int] | None) -> Tensor:
        super().take(name, shape, *ranges)
        x = self.tensors.get(name, torch.zeros(shape) if name.endswith(".bias") else None)
        if x is None or x.shape != shape:
            raise ValueError(f"{name} of {shape} is asked for, not {None if x is None else tuple(x.shape)}")
        real = x[tuple(slice(*span) if span else slice(None) for span in ranges)]
        wanted = [stop - start for start, stop in (span or (0, n) for span, n in zip(ranges, shape, strict=False))]
        padding = [n - have for n, have in zip(wanted, real.shape, strict=False)]
        return F.pad(real, [0, 0] * (x.ndim - len(padding)) + [n for each in padding[::-1] for n in (0, each)])
