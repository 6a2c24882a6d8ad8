"""The Megatron pair: column-parallel in, an activation, row-parallel out, reduce_scatter.

gelu_tanh            in --> gelu --> out
swiglu               in [up | gate] --> up * silu(gate) --> out      both halves in one linear, each cut over tp
swiglu_gate_first    in [gate | up]
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import ColParallelLinear, PackedColumns, RowParallelLinear
from refsim.parallel.padding import padded_features
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor

GATED = ("swiglu", "swiglu_gate_first")
"""Activations that take two halves."""


def activated(parts: list[MeshTensor], activation: str) -> MeshTensor:
    """Return the hidden features that the out features of the linear in, one part or two, come to."""
    if activation not in GATED:
        return parts[0].map("gelu", lambda y: F.gelu(y, approximate="tanh"))
    gate, up = parts if activation == "swiglu_gate_first" else parts[::-1]
    return up * gate.map("silu", F.silu)


class ParallelFeedForward:
    """D -> F -> D. Input tp=Replicate (gathered), output tp=Shard(-1).

    Args:
        hidden: F; a gated one's linear in has twice as many out features.
        activation_fn: see above.
        linears: what the linears in and out are called within it.
        bias: the linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        features: int,
        hidden: int,
        activation_fn: str = "gelu_tanh",
        linears: tuple[str, str] = ("net.0.proj", "net.2"),
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = name
        self._activation = activation_fn
        first, last = (f"{name}.{linear}" for linear in linears)
        self._in: Callable[[MeshTensor], list[MeshTensor]]
        if activation_fn in GATED:
            parts = [(hidden, padded_features(hidden, device.groups["tp"].size))] * 2
            self._in = PackedColumns(weights, device, first, in_features=features, parts=parts, bias=bias)
        else:
            wide = ColParallelLinear(
                weights, device, first, in_features=features, out_features=hidden, gathered_input=True, bias=bias
            )
            self._in = lambda x: [wide(x)]
        self._out = RowParallelLinear(weights, device, last, in_features=hidden, out_features=features, bias=bias)

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        out = self._forward(x)
        self._device.observe(self._name, out)
        return out

    def _forward(self, x: MeshTensor) -> MeshTensor:
        return self._out(activated(self._in(x), self._activation))
