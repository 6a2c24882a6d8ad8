"""The end of a single block of Flux, which has one set of weights for both streams, and projects what attention and its
MLP make of a token together:

    x --+--> attention ---------------.
        '--> linear --> tanh GELU ----+--> [attention | mlp] --row-parallel--> x

diffusers concatenates prompt and image into one stream there. They stay apart here, since they may be cut differently
over sp; what is computed per token is the same, and softmax does not care about the order of keys.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import concat_heads, row_linear, shard_range
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, shards

_EPS = 1e-6


class Widths(Protocol):
    """What a single block reads of a configuration, Flux.1's or another model's."""

    @property
    def features(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def attention_head_dim(self) -> int: ...
    @property
    def mlp_features(self) -> int: ...


def attention_sizes(config: Widths) -> AttentionSizes:
    """Of every attention of the model."""
    return AttentionSizes(config.features, config.num_attention_heads, config.attention_head_dim)


class AttentionAndMLPOut:
    """``proj_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

        checkpoint      [ heads of all devices (D)  |  MLP of all devices (4 D) ]
        device d        [ heads of d | MLP of d ]      so that it multiplies what it holds; one reduce_scatter

    One cut through both ranges instead would pair a device's heads with the weights of other heads or of the MLP.
    """

    def __init__(self, weights: Weights, device: Device, name: str, config: Widths) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        d = config.features
        mlp = config.mlp_features
        self._features = d
        self._mlp = mlp
        padded = padded_features(d, tp.size)
        shape = (d, d + mlp)
        start, stop = shard_range(attention_sizes(config).padded(tp), tp)
        real = (min(start, d), min(stop, d))  # a padded head's features would reach into the MLP's
        heads = weights.take(f"{name}.weight", shape, (0, padded), real)
        heads = F.pad(heads, (0, (stop - start) - (real[1] - real[0])))
        first, last = shard_range(padded_features(mlp, tp.size), tp)
        hidden = weights.take(f"{name}.weight", shape, (0, padded), (d + first, d + last))
        self.weight = torch.cat([heads, hidden], 1)
        self.bias = weights.take(f"{name}.bias", (d,), shard_range(padded, tp))

    @in_module
    def __call__(self, attention: MeshTensor, mlp: MeshTensor) -> MeshTensor:
        """(B, local heads, rows, E) and (B, rows, local F), cut over tp -> (B, rows, local D), tp=Shard(-1)."""
        mlp.require("proj_out", **shards(self._device.groups, tp=2))
        heads = concat_heads(attention)
        d = self._features
        self._device.observe(f"{self._name}.in@0:{d}", attention)
        self._device.observe(f"{self._name}.in@{d}:{d + self._mlp}", mlp)
        both = heads.with_local(torch.cat([heads.local, mlp.local], -1))
        out = row_linear(self._device, both, self.weight, self.bias, name=self._name)
        self._device.observe(self._name, out)
        return out
