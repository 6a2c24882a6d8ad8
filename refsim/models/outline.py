"""Outlines of transformers that refsim cannot run: layers of the right sizes in the right order, to be read for time.

    double   spatial --norm mod--all_gather--QKV--.                   .--out--reduce_scatter--gate--norm mod--FF--gate
             prompt  --norm mod--all_gather--QKV--+--joint attention--'   (same; its own weights and widths)
    single   either  --norm mod--all_gather--[QKV | FF in]--attention, activation--[heads | FF]--reduce_scatter--gate

Values would be wrong (each model has details that cost nothing: what a scale is added to, where a tanh stands), weights
have names of their own, and nothing judges them. What they are held to: parameters as diffusers counts them, and the
time that reading the code of SD3.5 and Flux.1 gives (their sizes are an outline, too).

All norms are layer norms here; an RMS norm costs the same on the device. Left out: what is done once for a picture, or
to a single row (such as a pooled prompt).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.schema import Layers, Size
from refsim.blocks.shape import SingleStreamShape
from refsim.blocks.single import AttentionAndMLPOut
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import timestep_embedding
from refsim.layers.linear import (
    AttentionSizes,
    ColParallelLinear,
    ColParallelQKV,
    Linear,
    RowParallelHeads,
    RowParallelLinear,
)
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm, LayerNorm, RMSNorm
from refsim.layers.rope import apply_rotary
from refsim.models.inputs import BATCH, Dims
from refsim.models.spec import PROMPT
from refsim.parallel.padding import padded_features
from refsim.parallel.ring import QKV
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import fused_column_linear, gather_features, shard_range, split_heads
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6
TIME = 256
"""Features of the sinusoids of a time step."""
Rotary = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Outline:
    """Sizes of a transformer with a stream of image tokens and one of the prompt's.

    Attributes:
        num_layers, num_single_layers: double blocks, then single ones, whose weights both streams share.
        features, prompt_features: of the streams; the first are those of all heads.
        token_features, out_features, text_features: of what comes in and goes out.
        hidden, prompt_hidden: of the feed-forwards; ``gated``: two linears in, one of which gates the other.
        time: widths of the time step's embedding, its two linears' outputs last.
        chunks: of a block's modulation, 6 (shift, scale and gate twice) or 4 (scale and gate twice).
        last_chunks: of the prompt's in a last block that drops the prompt; 0 if none does.
        shared: all blocks of a kind have one modulation.
        rotary: queries and keys are turned.
        norms_out: what attention and feed-forward give is normed once more.
    """

    num_layers: int
    num_attention_heads: int
    attention_head_dim: int
    token_features: int
    out_features: int
    text_features: int
    hidden: int
    prompt_features: int
    prompt_hidden: int
    time: tuple[int, int, int]
    num_single_layers: int = 0
    gated: bool = False
    chunks: int = 6
    last_chunks: int = 0
    shared: bool = False
    rotary: bool = True
    norms_out: bool = False

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def mlp_features(self) -> int:
        return self.hidden


class _Stream:
    """One stream's part of a double block; ``drops``: nothing of it is needed after its keys and values."""

    def __init__(self, weights: Weights, device: Device, name: str, o: Outline, *, prompt: bool, drops: bool) -> None:
        self._device = device
        self._o = o
        self.drops = drops
        features, hidden = (o.prompt_features, o.prompt_hidden) if prompt else (o.features, o.hidden)
        sizes = AttentionSizes(features, o.num_attention_heads, o.attention_head_dim)
        self._norm = DistributedLayerNorm(device, features=features, eps=_EPS)
        self._mod = None
        if not o.shared:
            self._mod = _modulation(weights, device, name, o, features, o.last_chunks if drops else o.chunks)
        self._qkv = ColParallelQKV(weights, device, tuple(f"{name}.to_{n}" for n in "qkv"), sizes)
        self._turn = _Turn(weights, device, name, o)
        if not drops:
            self._out = RowParallelHeads(weights, device, f"{name}.out", sizes)
            self._ff = _FeedForward(weights, device, f"{name}.ff", features, hidden, o.gated)

    def modulation(self, time_BD: Tensor, shared: list[MeshTensor]) -> list[MeshTensor]:
        return self._mod(time_BD) if self._mod else shared

    def qkv(self, x: MeshTensor, chunks: list[MeshTensor], rotary: Rotary) -> QKV:
        """Return q, k, v of a stream (B, rows, local D), heads cut over tp."""
        shift, scale = (chunks[0], chunks[-1]) if self.drops else _parts(chunks, 0)[:2]
        q, k, v = self._qkv(_gathered(self._device, self._norm(x), shift, scale))
        q, k, v = self._turn(q, k, v, rotary)
        return (q.with_local(q.local[:, :, :0]) if self.drops else q), k, v

    def after(self, x: MeshTensor, heads_BHNE: MeshTensor, chunks: list[MeshTensor]) -> MeshTensor:
        """Return the stream with what attention and feed-forward add to it."""
        x = x + self._added(self._out(heads_BHNE)) * _parts(chunks, 0)[2]
        shift, scale, gate = _parts(chunks, 1)
        return x + self._added(self._ff(_gathered(self._device, self._norm(x), shift, scale))) * gate

    def _added(self, x: MeshTensor) -> MeshTensor:
        return self._norm(x) if self._o.norms_out else x


class _Double:
    """A double block: each stream has its own weights, and they attend to each other."""

    def __init__(self, weights: Weights, device: Device, o: Outline, index: int) -> None:
        self._device = device
        drops = o.last_chunks > 0 and index == o.num_layers - 1
        name = f"blocks.{index}"
        self._spatial = _Stream(weights, device, f"{name}.spatial", o, prompt=False, drops=False)
        self._prompt = _Stream(weights, device, f"{name}.prompt", o, prompt=True, drops=drops)

    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, around: _Around) -> tuple[MeshTensor, MeshTensor]:
        shared, prompt_shared = around.shared[:2]
        chunks = self._spatial.modulation(around.time_BD, shared)
        qkv = self._spatial.qkv(spatial, chunks, around.rotary)
        # Only after the first stream's: two modulations in a row would be read as one linear.
        prompt_chunks = self._prompt.modulation(around.time_BD, prompt_shared)
        prompt_qkv = self._prompt.qkv(prompt, prompt_chunks, around.prompt_rotary)
        out, prompt_out, _ = joint_attention(self._device, qkv, prompt_qkv, tokens=around.tokens)
        if not self._prompt.drops:
            prompt = self._prompt.after(prompt, prompt_out, prompt_chunks)
        return self._spatial.after(spatial, out, chunks), prompt


class _Single:
    """A single block; both streams go through it with the same weights."""

    def __init__(self, weights: Weights, device: Device, o: Outline, index: int) -> None:
        self._device = device
        tp = device.groups["tp"]
        name = f"single_blocks.{index}"
        sizes = AttentionSizes(o.features, o.num_attention_heads, o.attention_head_dim)
        self._norm = DistributedLayerNorm(device, features=o.features, eps=_EPS)
        self._mod = None if o.shared else _modulation(weights, device, name, o, o.features, 3)
        outs = [(o.features, sizes.padded(tp))] * 3 + [(o.hidden, padded_features(o.hidden, tp.size))] * (1 + o.gated)
        self._in = _Fused(weights, device, f"{name}.in", o.features, outs)
        self._turn = _Turn(weights, device, name, o)
        self._head_dim = o.attention_head_dim
        heads = (o.num_attention_heads, o.attention_head_dim)
        shape = SingleStreamShape(*heads, o.time[-1], (), features=o.features, hidden=o.hidden)
        self._down = AttentionAndMLPOut(weights, device, f"{name}.down", shape)

    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, around: _Around) -> tuple[MeshTensor, MeshTensor]:
        shift, scale, gate = self._mod(around.time_BD) if self._mod else around.shared[2]
        attending = []
        hidden = []
        for x, rotary in ((spatial, around.rotary), (prompt, around.prompt_rotary)):
            parts = self._in(_gathered(self._device, self._norm(x), shift, scale))
            q, k, v = (split_heads(part, self._head_dim) for part in parts[:3])
            attending.append(self._turn(q, k, v, rotary))
            hidden.append(_activated(parts[3:]))
        out, prompt_out, _ = joint_attention(self._device, *attending, tokens=around.tokens)
        return spatial + self._down(out, hidden[0]) * gate, prompt + self._down(prompt_out, hidden[1]) * gate


class _FeedForward:
    """One or, gated, two linears in, an activation and a linear out."""

    def __init__(self, weights: Weights, device: Device, name: str, features: int, hidden: int, gated: bool) -> None:
        padded = padded_features(hidden, device.groups["tp"].size)
        self._in = _Fused(weights, device, f"{name}.in", features, [(hidden, padded)] * (1 + gated))
        self._out = RowParallelLinear(weights, device, f"{name}.out", in_features=hidden, out_features=features)

    def __call__(self, x: MeshTensor) -> MeshTensor:
        return self._out(_activated(self._in(x)))


class _Fused:
    """Column-parallel linears of one input, as one: a device's share of each side by side.

    Args:
        outs: of each, its out features and these with padding.
    """

    def __init__(self, weights: Weights, device: Device, name: str, features: int, outs: list[tuple[int, int]]) -> None:
        self._device = device
        tp = device.groups["tp"]
        columns = (0, padded_features(features, tp.size))
        rows = [shard_range(padded, tp) for _, padded in outs]
        shapes = [(out, features) for out, _ in outs]
        self._weights = [
            weights.take(f"{name}.{i}", *at, columns) for i, at in enumerate(zip(shapes, rows, strict=True))
        ]
        self._sizes = [stop - start for start, stop in rows]

    def __call__(self, x: MeshTensor) -> list[MeshTensor]:
        out = fused_column_linear(self._device, x, self._weights, [None] * len(self._weights))
        return [out.with_local(part) for part in out.local.split(self._sizes, -1)]


class _Turn:
    """Queries and keys normed per head and, where there are tables, turned."""

    def __init__(self, weights: Weights, device: Device, name: str, o: Outline) -> None:
        self._device = device
        self._norms = [
            RMSNorm(weights, device, f"{name}.norm_{n}", features=o.attention_head_dim, eps=_EPS) for n in "qk"
        ]

    def __call__(self, q: MeshTensor, k: MeshTensor, v: MeshTensor, rotary: Rotary) -> QKV:
        q, k = (norm.of_heads(x) for norm, x in zip(self._norms, (q, k), strict=True))
        if rotary is not None:
            q, k = (x.map("rope", lambda y: apply_rotary(self._device, y, *rotary)) for x in (q, k))
        return q, k, v


@dataclass
class _Around:
    """What all blocks share: how tokens are cut, rotary tables of both streams, the time step, shared modulations."""

    tokens: TokenShards
    rotary: Rotary
    prompt_rotary: Rotary
    time_BD: Tensor
    shared: list[list[MeshTensor]]


def _modulation(weights: Weights, device: Device, name: str, o: Outline, features: int, chunks: int) -> Modulation:
    return Modulation(weights, device, f"{name}.mod", features=features, chunks=chunks, in_features=o.time[-1])


def _parts(chunks: list[MeshTensor], half: int) -> tuple[MeshTensor, MeshTensor, MeshTensor]:
    """Return shift, scale and gate of a block's attention or feed-forward; without shifts, the scale twice."""
    size = len(chunks) // 2
    part = chunks[half * size : (half + 1) * size]
    return part[0], part[-2], part[-1]


def _gathered(device: Device, x: MeshTensor, shift: MeshTensor, scale: MeshTensor) -> MeshTensor:
    return gather_features(device, modulate(x, shift, scale))


def _activated(parts: list[MeshTensor]) -> MeshTensor:
    """Return the feed-forward's hidden features; a gate's activation is part of its product."""
    return parts[0].map("gelu", F.gelu) if len(parts) == 1 else parts[0] * parts[1]


class OutlinedTransformer:
    """Image tokens, prompt and time step in, image tokens out; for :mod:`refsim.timing.read.reading` alone."""

    def __init__(self, weights: Weights, device: Device, o: Outline) -> None:
        self._device = device
        self._o = o
        self._time = [
            Linear(weights, f"time.{i}", in_features=a, out_features=b) for i, (a, b) in enumerate(pairwise(o.time))
        ]
        self._embedders = [
            ColParallelLinear(weights, device, name, in_features=size, out_features=features)
            for name, size, features in (
                ("x_embedder", o.token_features, o.features),
                ("context_embedder", o.text_features, o.prompt_features),
            )
        ]
        chunks = (6, 6, 3)[: 2 + (o.num_single_layers > 0)] if o.shared else ()
        self._shared = [_modulation(weights, device, f"shared.{i}", o, o.features, n) for i, n in enumerate(chunks)]
        self._blocks = [_Double(weights, device, o, i) for i in range(o.num_layers)]
        self._blocks += [_Single(weights, device, o, i) for i in range(o.num_single_layers)]
        self._norm_out = LayerNorm(device, features=o.features, eps=_EPS)
        self._mod_out = Linear(weights, "mod_out", in_features=o.time[-1], out_features=2 * o.features)
        self._proj_out = Linear(weights, "proj_out", in_features=o.features, out_features=o.out_features)
        weights.finish("an outline")

    @staticmethod
    def input_shapes(o: Outline) -> dict[str, Dims]:
        """Return what goes in: image tokens as the model packs them."""
        return {
            "hidden_states": (BATCH, "image tokens", o.token_features),
            "encoder_hidden_states": (BATCH, PROMPT, o.text_features),
            "timestep": (BATCH,),
        }

    def __call__(self, *, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor) -> Tensor:
        """(B, N, C), (B, L, text), (B,) on every device -> (B, N, out), replicated over sp and tp."""
        tokens = TokenShards.of(hidden_states.shape[1], self._device.groups["sp"].size)
        time = timestep_embedding(timestep, self._o.time[0]).to(hidden_states.dtype)
        for linear in self._time:
            time = F.silu(linear(time))
        spatial = self._embedders[0](cut_tokens(self._device, MeshTensor(hidden_states), tokens, dim=1))
        prompt = self._embedders[1](MeshTensor(encoder_hidden_states))
        rotary, prompt_rotary = (self._table(x.shape[1]) for x in (spatial, prompt))
        shared = [modulation(time) for modulation in self._shared] or [[], []]
        around = _Around(tokens, rotary, prompt_rotary, time, shared)
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            spatial, prompt = block(spatial, prompt, around)
        self._device.stage()
        gathered = gather_features(self._device, spatial)
        scale, shift = self._mod_out(time).unsqueeze(1).chunk(2, -1)
        out_BNC = gathered.map("proj_out", lambda x: self._proj_out(self._norm_out(x) * (1 + scale) + shift))
        return gather_tokens(self._device, out_BNC, tokens, dim=1).local

    def _table(self, rows: int) -> Rotary:
        if not self._o.rotary:
            return None
        shape = rows, self._o.attention_head_dim // 2
        return torch.ones(shape), torch.zeros(shape)


@dataclass(frozen=True)
class Keys:
    """What the config.json of outlined models have in common."""

    num_layers: Layers
    num_attention_heads: Size
    attention_head_dim: Size

    @property
    def sizes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(Keys)}

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim
