"""FLUX.2's two kinds of block. All blocks of a kind have one modulation, made once a forward and handed in; the
residual streams live cut over tp (features) and sp (tokens).

double   spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
         prompt  --LN--mod--all_gather--'         (same, its own weights)            '

single   spatial --LN--mod--all_gather--[q k v gate up]--+--> joint attention, SwiGLU --[heads | MLP]--reduce_scatter-->
         prompt  --LN--mod--all_gather--[q k v gate up]--'    (the same weights for both streams)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.attention import turned
from refsim.layers.feedforward import activated
from refsim.layers.linear import AttentionSizes, PackedColumns
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm, RMSNorm
from refsim.layers.rope import Rotary
from refsim.models.flux1.embeddings import sequences_of
from refsim.models.flux2.config import Flux2Config
from refsim.parallel.padding import padded_features
from refsim.parallel.ring import QKV
from refsim.parallel.tensor import (
    concat_heads,
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
    """The linears of the time step that all blocks of a kind share."""

    def __init__(self, weights: Weights, device: Device, config: Flux2Config) -> None:
        kinds = {"double_stream_modulation_img": 6, "double_stream_modulation_txt": 6, "single_stream_modulation": 3}
        *self._double, self._single = (
            Modulation(weights, device, f"{name}.linear", features=config.features, chunks=chunks, bias=False)
            for name, chunks in kinds.items()
        )

    def double(self, time_BD: Tensor) -> list[Chunks]:
        """Return the chunks of the image and of the prompt in double blocks; ``time_BD`` with silu applied."""
        return [modulation(time_BD) for modulation in self._double]

    def single(self, time_BD: Tensor) -> list[Chunks]:
        """Return the chunks of both streams in single blocks."""
        return [self._single(time_BD)]


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
        self._in = PackedColumns(
            weights, device, f"{prefix}.attn.to_qkv_mlp_proj", in_features=d, parts=parts, bias=False
        )
        self._norms = [
            RMSNorm(weights, device, f"{prefix}.attn.{name}", features=config.attention_head_dim, eps=config.eps)
            for name in ("norm_q", "norm_k")
        ]
        self._out = AttentionAndMLPOut(weights, device, f"{prefix}.attn.to_out", config)

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, modulation: list[Chunks], *, sequences: Sequences
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
        q, k, v = (split_heads(part, self._head_dim) for part in qkv)
        return turned(self._device, (q, k, v), self._norms, rotary), activated([gate, up], "swiglu_gate_first")


def bind_block(
    weights: Weights, device: Device, config: Flux2Config, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(device, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, device, config)
    modulation = modulations.double if index < config.num_layers else modulations.single
    block = partial(build_block(weights, device, config, index), sequences=sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulation(time_BD))


def build_block(weights: Weights, device: Device, config: Flux2Config, index: int) -> DoubleStreamBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleStreamBlock(weights, device, config.double_block(), block_name(config, index))
    return SingleBlock(weights, device, config, index - config.num_layers)


def block_name(config: Flux2Config, index: int) -> str:
    """Return what the names of a block's weights begin with, without the dot."""
    if index < config.num_layers:
        return f"transformer_blocks.{index}"
    return f"single_transformer_blocks.{index - config.num_layers}"
