"""The single-stream block: both streams go through the same weights, attention and an MLP side by side.

    spatial --norm--mod--all_gather--+--> joint attention, MLP --[heads | MLP]--reduce_scatter--gate-->
    prompt  --norm--mod--all_gather--'    (the same weights for both streams)

diffusers concatenates prompt and image into one stream there. They stay apart here, since they may be cut differently
over sp; what is computed per token is the same, and softmax does not care about the order of keys.

What differs between models is in :class:`refsim.blocks.shape.SingleStreamShape`: the linears of q, k, v and the MLP
stand by themselves, or all in one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from refsim.blocks.parts import Modulations, Time, head_norm, stream_norm
from refsim.blocks.sequences import Sequences
from refsim.blocks.shape import SingleStreamShape
from refsim.files.checkpoint import Weights
from refsim.layers.attention import StreamQKV, turned
from refsim.layers.feedforward import activated
from refsim.layers.linear import AttentionSizes, ColParallelLinear, PackedColumns, take_part
from refsim.layers.modulation import modulate
from refsim.layers.rope import Rotary
from refsim.parallel.padding import padded_features
from refsim.parallel.ring import QKV
from refsim.parallel.tensor import concat_heads, gather_features, row_linear, shard_range, split_heads
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, shards

Hidden = Callable[[], MeshTensor]
"""Makes the MLP's hidden features (B, rows, local F) when they are needed."""


class SingleStreamBlock:
    """A block such as ``single_transformer_blocks.{index}`` of diffusers' transformers with two streams.

    Args:
        prefix: what the names of its weights begin with.
    """

    def __init__(self, weights: Weights, device: Device, shape: SingleStreamShape, prefix: str) -> None:
        self._device = device
        self._modulations = Modulations(weights, device, prefix, shape)
        self._norm = stream_norm(weights, device, f"{prefix}.{shape.norm_name}", shape, shape.features)
        self._into: _Into = (_Apart if shape.packed is None else _Packed)(weights, device, prefix, shape)
        self._out = AttentionAndMLPOut(weights, device, f"{prefix}.{shape.out}", shape)

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, time: Time, *, sequences: Sequences
    ) -> tuple[MeshTensor, MeshTensor]:
        """Map (B, local N, local D) and (B, local L, local D) to the same."""
        shift, scale, gate = self._modulations(time, sequences).of("attn")
        qkv, hidden = self._into(modulate(self._norm(spatial), shift, scale), sequences.rotary)
        prompt_qkv, prompt_hidden = self._into(modulate(self._norm(prompt), shift, scale), sequences.prompt_rotary)
        attn, attn_prompt, _ = joint_attention(self._device, qkv, prompt_qkv, **sequences.cut)
        spatial = spatial + self._out(attn, hidden()) * gate
        return spatial, prompt + self._out(attn_prompt, prompt_hidden()) * gate


class _Into(Protocol):
    """The linears into attention and the MLP."""

    def __call__(self, x: MeshTensor, rotary: Rotary | None) -> tuple[QKV, Hidden]:
        """Map a stream, normed and modulated, (B, rows, local D), to heads (B, local heads, rows, E) and the MLP."""


class _Apart:
    """Linears of q, k and v, fused, and another one into the MLP, which is run after attention."""

    def __init__(self, weights: Weights, device: Device, prefix: str, shape: SingleStreamShape) -> None:
        self._device = device
        self._activation = shape.activation
        attention = f"{prefix}.{shape.attention}"
        sizes = AttentionSizes(shape.features, shape.num_heads, shape.head_dim)
        self._qkv = StreamQKV(weights, device, attention, sizes, norm=head_norm(shape), bias=shape.qkv_bias)
        wide = {"in_features": shape.features, "out_features": shape.hidden, "bias": shape.ff_bias}
        self._mlp = ColParallelLinear(weights, device, f"{prefix}.{shape.mlp}", gathered_input=True, **wide)

    def __call__(self, x: MeshTensor, rotary: Rotary | None) -> tuple[QKV, Hidden]:
        gathered = gather_features(self._device, x)
        return self._qkv(gathered, rotary), partial(self._hidden, gathered)

    def _hidden(self, gathered: MeshTensor) -> MeshTensor:
        return activated([self._mlp(gathered)], self._activation)


class _Packed:
    """One linear of q, k, v and both halves of a gated MLP's in, each part cut over tp by itself."""

    def __init__(self, weights: Weights, device: Device, prefix: str, shape: SingleStreamShape) -> None:
        self._device = device
        self._activation = shape.activation
        self._head_dim = shape.head_dim
        tp = device.groups["tp"]
        sizes = AttentionSizes(shape.features, shape.num_heads, shape.head_dim)
        mlp = (shape.hidden, padded_features(shape.hidden, tp.size))
        parts = [(sizes.inner, sizes.padded(tp))] * 3 + [mlp] * 2
        name = f"{prefix}.{shape.packed}"
        self._in = PackedColumns(weights, device, name, in_features=shape.features, parts=parts, bias=False)
        norm = head_norm(shape)
        names = (f"{prefix}.{shape.attention}.norm_{n}" for n in "qk")
        self._norms = [norm(weights, device, each, features=shape.head_dim) for each in names]

    def __call__(self, x: MeshTensor, rotary: Rotary | None) -> tuple[QKV, Hidden]:
        parts = self._in(gather_features(self._device, x))
        q, k, v = (split_heads(part, self._head_dim) for part in parts[:3])
        qkv = turned(self._device, (q, k, v), self._norms, rotary)
        hidden = activated(parts[3:], self._activation)
        return qkv, lambda: hidden


class AttentionAndMLPOut:
    """The linear out of a single block: row-parallel, its in features two ranges that are cut one by one.

        checkpoint      [ heads of all devices | MLP of all devices ]
        device d        [ heads of d | MLP of d ]      so that it multiplies what it holds; one reduce_scatter

    One cut through both ranges instead would pair a device's heads with the weights of other heads or of the MLP.
    """

    def __init__(self, weights: Weights, device: Device, name: str, shape: SingleStreamShape) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        d = shape.features
        attention = AttentionSizes(d, shape.num_heads, shape.head_dim)
        inner = attention.inner
        self._parts = ((0, inner), (inner, inner + shape.hidden))
        padded = (attention.padded(tp), padded_features(shape.hidden, tp.size))
        rows = padded_features(d, tp.size)
        whole = (d, inner + shape.hidden)
        parts = [
            take_part(weights, f"{name}.weight", whole, part, shard_range(size, tp), dim=1, other=(0, rows))
            for part, size in zip(self._parts, padded, strict=True)
        ]
        self.weight = torch.cat(parts, 1)
        self.bias = weights.take(f"{name}.bias", (d,), shard_range(rows, tp)) if shape.out_bias else None

    @in_module
    def __call__(self, attention: MeshTensor, mlp: MeshTensor) -> MeshTensor:
        """(B, local heads, rows, E) and (B, rows, local F), cut over tp -> (B, rows, local D), tp=Shard(-1)."""
        mlp.require("proj_out", **shards(self._device.groups, tp=2))
        for (start, stop), part in zip(self._parts, (attention, mlp), strict=True):
            self._device.observe(f"{self._name}.in@{start}:{stop}", part)
        heads = concat_heads(attention)
        both = heads.with_local(torch.cat([heads.local, mlp.local], -1))
        out = row_linear(self._device, both, self.weight, self.bias, name=self._name)
        self._device.observe(self._name, out)
        return out
