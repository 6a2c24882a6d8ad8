"""The Megatron pair: column-parallel in, GELU, row-parallel out, reduce_scatter."""

from __future__ import annotations

import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import ColParallelLinear, RowParallelLinear
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor


class ParallelFeedForward:
    """D -> F -> D with tanh GELU. Input tp=Replicate (gathered), output tp=Shard(-1)."""

    def __init__(self, weights: Weights, device: Device, name: str, *, features: int, hidden: int) -> None:
        self._device = device
        self._name = name
        wide = {"in_features": features, "out_features": hidden, "gathered_input": True}
        self._in = ColParallelLinear(weights, device, f"{name}.net.0.proj", **wide)
        self._out = RowParallelLinear(weights, device, f"{name}.net.2", in_features=hidden, out_features=features)

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        out = self._forward(x)
        self._device.observe(self._name, out)
        return out

    def _forward(self, x: MeshTensor) -> MeshTensor:
        hidden = self._in(x).map("gelu", lambda y: F.gelu(y, approximate="tanh"))
        return self._out(hidden)
