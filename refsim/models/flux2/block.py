"""FLUX.2's two kinds of block. All blocks of a kind have one modulation, made once a forward and handed in; the
residual streams live cut over tp (features) and sp (tokens).

double   spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
         prompt  --LN--mod--all_gather--'         (same, its own weights)            '

single   spatial --LN--mod--all_gather--[q k v gate up]--+--> joint attention, SwiGLU --[heads | MLP]--reduce_scatter-->
         prompt  --LN--mod--all_gather--[q k v gate up]--'    (the same weights for both streams)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads, RowParallelLinear
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm, RMSNorm
from refsim.layers.rope import Rotary, apply_rotary
from refsim.models.flux2.config import Flux2Config
from refsim.models.flux2.embeddings import Sequences
from refsim.parallel.padding import padded_features
from refsim.parallel.ring import QKV
from refsim.parallel.tensor import (
    concat_heads,
    fused_column_linear,
    gather_features,
    row_linear,
    shard_range,
    split_heads,
)
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, shards

Range = tuple[int, int]
Streams = tuple[MeshTensor, MeshTensor]
Chunks = list[MeshTensor]


def _sizes(config: Flux2Config) -> AttentionSizes:
    return AttentionSizes(config.features, config.num_attention_heads, config.attention_head_dim)


def _head_norms(
    weights: Weights, device: Device, prefix: str, config: Flux2Config, names: tuple[str, str]
) -> list[RMSNorm]:
    norm = {"features": config.attention_head_dim, "eps": config.eps}
    return [RMSNorm(weights, device, f"{prefix}.{name}", **norm) for name in names]


def _turned(device: Device, qkv: tuple[MeshTensor, ...], norms: list[RMSNorm], rotary: Rotary) -> QKV:
    """Norm queries and keys per head, then turn them by their positions."""
    q, k, v = qkv
    q, k = (norm.of_heads(x) for norm, x in zip(norms, (q, k), strict=True))
    q, k = (x.map("rope", lambda y: apply_rotary(device, y, *rotary)) for x in (q, k))
    return q, k, v


def _take_part(
    weights: Weights, name: str, shape: tuple[int, int], part: Range, mine: Range, *, dim: int, other: Range
) -> Tensor:
    """Take this device's lanes of one part of a packed weight, as if the part were a weight of its own.

    A part's padding must not reach into the next part, so its real lanes are taken and padded one by one.

    Args:
        shape: of the whole weight.
        part: the lanes of ``dim`` that the part has.
        mine: lanes of the padded part that this device holds, counted from the part's first.
        other: range of the other dim; lanes beyond the shape are zeros.
    """
    first, last = part
    start, stop = (min(first + lane, last) for lane in mine)
    ranges = ((start, stop), other) if dim == 0 else (other, (start, stop))
    lanes = weights.take(name, shape, *ranges)
    missing = (mine[1] - mine[0]) - (stop - start)
    return F.pad(lanes, (0, 0, 0, missing) if dim == 0 else (0, missing)) if missing else lanes


class PackedColumns:
    """One column-parallel linear whose out features are parts side by side, each cut for itself.

        checkpoint      [ q | k | v | gate | up ]        (any parts)
        device d        [ q of d | k of d | v of d | gate of d | up of d ]

    One cut through all parts instead would give a device queries without their keys. Input (B, rows, D) tp=Replicate,
    output per part (B, rows, its local lanes) tp=Shard(-1).

    Args:
        parts: of each, its out features and these with padding.
    """

    def __init__(
        self, weights: Weights, device: Device, name: str, *, in_features: int, parts: Sequence[tuple[int, int]]
    ) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        stops = list(accumulate(features for features, _ in parts))
        self._parts = [(stop - features, stop) for (features, _), stop in zip(parts, stops, strict=True)]
        shape = (stops[-1], in_features)
        columns = (0, padded_features(in_features, tp.size))
        rows = [shard_range(padded, tp) for _, padded in parts]
        self.weights = [
            _take_part(weights, f"{name}.weight", shape, part, mine, dim=0, other=columns)
            for part, mine in zip(self._parts, rows, strict=True)
        ]

    @in_module
    def __call__(self, x: MeshTensor) -> list[MeshTensor]:
        out = fused_column_linear(self._device, x, self.weights, [None] * len(self.weights))
        sizes = [len(weight) for weight in self.weights]
        parts = [out.with_local(local) for local in out.local.split(sizes, -1)]
        for (start, stop), part in zip(self._parts, parts, strict=True):
            self._device.observe(f"{self._name}@{start}:{stop}", part)
        return parts


class PackedSwiGLU:
    """D -> F -> D by ``silu(gate) * up``, gate and up in one linear, in this order.

    Input tp=Replicate (gathered), output tp=Shard(-1).
    """

    def __init__(self, weights: Weights, device: Device, name: str, config: Flux2Config) -> None:
        self._device = device
        self._name = name
        d = config.features
        hidden = config.mlp_features
        parts = [(hidden, padded_features(hidden, device.groups["tp"].size))] * 2
        self._in = PackedColumns(weights, device, f"{name}.linear_in", in_features=d, parts=parts)
        out = {"in_features": hidden, "out_features": d, "bias": False}
        self._out = RowParallelLinear(weights, device, f"{name}.linear_out", **out)

    def __call__(self, x: MeshTensor) -> MeshTensor:
        out = self._out(gated(*self._in(x)))
        self._device.observe(self._name, out)
        return out


def gated(gate: MeshTensor, up: MeshTensor) -> MeshTensor:
    """Return ``silu(gate) * up``."""
    return gate.map("silu", F.silu) * up


class AttentionAndMLPOut:
    """``to_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

    checkpoint      [ heads of all devices (D)  |  MLP of all devices (F) ]
    device d        [ heads of d | MLP of d ]      so that it multiplies what it holds; one reduce_scatter
    """

    def __init__(self, weights: Weights, device: Device, name: str, config: Flux2Config) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        d = config.features
        mlp = config.mlp_features
        self._parts = ((0, d), (d, d + mlp))
        sizes = (_sizes(config).padded(tp), padded_features(mlp, tp.size))
        rows = (0, padded_features(d, tp.size))
        parts = [
            _take_part(weights, f"{name}.weight", (d, d + mlp), part, shard_range(size, tp), dim=1, other=rows)
            for part, size in zip(self._parts, sizes, strict=True)
        ]
        self.weight = torch.cat(parts, 1)

    @in_module
    def __call__(self, attention: MeshTensor, mlp: MeshTensor) -> MeshTensor:
        """(B, local heads, rows, E) and (B, rows, local F), cut over tp -> (B, rows, local D), tp=Shard(-1)."""
        mlp.require("to_out", **shards(self._device.groups, tp=2))
        for (start, stop), part in zip(self._parts, (attention, mlp), strict=True):
            self._device.observe(f"{self._name}.in@{start}:{stop}", part)
        heads = concat_heads(attention)
        both = heads.with_local(torch.cat([heads.local, mlp.local], -1))
        out = row_linear(self._device, both, self.weight, None, name=self._name)
        self._device.observe(self._name, out)
        return out


class Modulations:
    """``double_stream_modulation_img``, ``_txt`` and ``single_stream_modulation``: those of all blocks."""

    def __init__(self, weights: Weights, device: Device, config: Flux2Config) -> None:
        names = {"double_stream_modulation_img": 6, "double_stream_modulation_txt": 6, "single_stream_modulation": 3}
        self._image, self._prompt, self._single = (
            Modulation(weights, device, f"{name}.linear", features=config.features, chunks=chunks, bias=False)
            for name, chunks in names.items()
        )

    def double(self, time_BD: Tensor) -> tuple[Chunks, ...]:
        """Return the chunks of the image and of the prompt in double blocks; ``time_BD`` with silu applied."""
        return self._image(time_BD), self._prompt(time_BD)

    def single(self, time_BD: Tensor) -> tuple[Chunks, ...]:
        """Return the chunks of both streams in single blocks."""
        return (self._single(time_BD),)


class DoubleBlock:
    """``transformer_blocks.{index}`` of diffusers' Flux2Transformer2DModel."""

    def __init__(self, weights: Weights, device: Device, config: Flux2Config, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"transformer_blocks.{index}"
        norm = {"features": d, "eps": config.eps}
        self._norm1, self._norm1_prompt, self._norm2, self._norm2_prompt = (
            DistributedLayerNorm(device, name=f"{prefix}.{name}", **norm)
            for name in ("norm1", "norm1_context", "norm2", "norm2_context")
        )
        attn = f"{prefix}.attn"
        self._qkv, self._qkv_prompt = (
            ColParallelQKV(weights, device, tuple(f"{attn}.{n}" for n in names), _sizes(config), bias=False)
            for names in (("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj"))
        )
        self._norms, self._norms_prompt = (
            _head_norms(weights, device, attn, config, names)
            for names in (("norm_q", "norm_k"), ("norm_added_q", "norm_added_k"))
        )
        self._out, self._out_prompt = (
            RowParallelHeads(weights, device, f"{attn}.{name}", _sizes(config), bias=False)
            for name in ("to_out.0", "to_add_out")
        )
        self._ff, self._ff_prompt = (
            PackedSwiGLU(weights, device, f"{prefix}.{name}", config) for name in ("ff", "ff_context")
        )

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, modulation: tuple[Chunks, ...], *, sequences: Sequences
    ) -> Streams:
        """(B, local N, local D) and (B, local L, local D) in and out."""
        (shift, scale, gate, *feed_forward), (shift_p, scale_p, gate_p, *feed_forward_p) = modulation
        normed = self._modulated(self._norm1(spatial), shift, scale)
        qkv = _turned(self._device, self._qkv(normed), self._norms, sequences.rotary)
        normed_p = self._modulated(self._norm1_prompt(prompt), shift_p, scale_p)
        prompt_qkv = _turned(self._device, self._qkv_prompt(normed_p), self._norms_prompt, sequences.prompt_rotary)
        attn, attn_p, _ = joint_attention(self._device, qkv, prompt_qkv, **sequences.cut)
        spatial = spatial + self._out(attn) * gate
        prompt = prompt + self._out_prompt(attn_p) * gate_p
        shift, scale, gate = feed_forward
        spatial = spatial + self._ff(self._modulated(self._norm2(spatial), shift, scale)) * gate
        shift, scale, gate = feed_forward_p
        return spatial, prompt + self._ff_prompt(self._modulated(self._norm2_prompt(prompt), shift, scale)) * gate

    def _modulated(self, normed: MeshTensor, shift: MeshTensor, scale: MeshTensor) -> MeshTensor:
        return gather_features(self._device, modulate(normed, shift, scale))


class SingleBlock:
    """``single_transformer_blocks.{index}`` of diffusers' Flux2Transformer2DModel."""

    def __init__(self, weights: Weights, device: Device, config: Flux2Config, index: int) -> None:
        self._device = device
        d = config.features
        tp = device.groups["tp"]
        prefix = f"single_transformer_blocks.{index}"
        self._norm = DistributedLayerNorm(device, features=d, eps=config.eps, name=f"{prefix}.norm")
        self._head_dim = config.attention_head_dim
        hidden = config.mlp_features
        parts = [(d, _sizes(config).padded(tp))] * 3 + [(hidden, padded_features(hidden, tp.size))] * 2
        self._in = PackedColumns(weights, device, f"{prefix}.attn.to_qkv_mlp_proj", in_features=d, parts=parts)
        self._norms = _head_norms(weights, device, f"{prefix}.attn", config, ("norm_q", "norm_k"))
        self._out = AttentionAndMLPOut(weights, device, f"{prefix}.attn.to_out", config)

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, modulation: tuple[Chunks, ...], *, sequences: Sequences
    ) -> Streams:
        """(B, local N, local D) and (B, local L, local D) in and out."""
        ((shift, scale, gate),) = modulation
        # One stream after the other, so that a device can gather and multiply in one operation.
        qkv, hidden = self._projected(modulate(self._norm(spatial), shift, scale), sequences.rotary)
        qkv_p, hidden_p = self._projected(modulate(self._norm(prompt), shift, scale), sequences.prompt_rotary)
        attn, attn_p, _ = joint_attention(self._device, qkv, qkv_p, **sequences.cut)
        return spatial + self._out(attn, hidden) * gate, prompt + self._out(attn_p, hidden_p) * gate

    def _projected(self, normed: MeshTensor, rotary: Rotary) -> tuple[QKV, MeshTensor]:
        """Return q, k, v (B, local heads, rows, E) and the MLP's hidden features (B, rows, local F)."""
        *qkv, gate, up = self._in(gather_features(self._device, normed))
        heads = tuple(split_heads(part, self._head_dim) for part in qkv)
        return _turned(self._device, heads, self._norms, rotary), gated(gate, up)


def bind_block(
    weights: Weights, device: Device, config: Flux2Config, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = Sequences.of(device, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, device, config)
    modulation = modulations.double if index < config.num_layers else modulations.single
    block = partial(build_block(weights, device, config, index), sequences=sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulation(time_BD))


def build_block(weights: Weights, device: Device, config: Flux2Config, index: int) -> DoubleBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleBlock(weights, device, config, index)
    return SingleBlock(weights, device, config, index - config.num_layers)


def block_name(config: Flux2Config, index: int) -> str:
    """Return what the names of a block's weights begin with, without the dot."""
    if index < config.num_layers:
        return f"transformer_blocks.{index}"
    return f"single_transformer_blocks.{index - config.num_layers}"
