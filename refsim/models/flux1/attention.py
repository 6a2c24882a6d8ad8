"""Flux's attention: image and prompt attend to each other, heads cut over tp, tokens over sp, both streams rotated.

    image  --q k v--> RMSNorm per head --rotary--.
    prompt --q k v--> RMSNorm per head --rotary--+--> joint attention over sp --> heads of each stream side by side

A double block has weights for each stream and projects each result. A single block has one set of weights for both
streams, and projects what attention and its MLP make of a token together:

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
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import apply_rotary
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.embeddings import Rotary, Sequences
from refsim.parallel.padding import padded_features
from refsim.parallel.ring import QKV
from refsim.parallel.tensor import concat_heads, row_linear, shard_range
from refsim.parallel.usp import joint_attention
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


class RotaryQKV:
    """q, k, v of one stream, (B, local heads, rows, E); q and k normalised per head, then turned by their positions.

    Args:
        names: of the linears of q, k and v.
        norms: names of the norms of q and k.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        config: FluxConfig,
        *,
        names: tuple[str, str, str] = ("to_q", "to_k", "to_v"),
        norms: tuple[str, str] = ("norm_q", "norm_k"),
    ) -> None:
        self._device, self._name = device, prefix
        self._qkv = ColParallelQKV(weights, device, tuple(f"{prefix}.{n}" for n in names), attention_sizes(config))
        norm = {"features": config.attention_head_dim, "eps": _EPS}
        self._norm_q, self._norm_k = (RMSNorm(weights, device, f"{prefix}.{n}", **norm) for n in norms)

    @in_module
    def __call__(self, x: MeshTensor, rotary: Rotary) -> QKV:
        """(B, rows, D) tp=Replicate -> each (B, local heads, rows, E), tp=Shard(1)."""
        q, k, v = self._qkv(x)
        q, k = self._norm_q.of_heads(q), self._norm_k.of_heads(k)
        q, k = (y.map("rope", lambda x_BHNE: apply_rotary(self._device, x_BHNE, *rotary)) for y in (q, k))
        return q, k, v


def attend(device: Device, qkv: QKV, prompt_qkv: QKV, sequences: Sequences) -> tuple[MeshTensor, MeshTensor]:
    """Joint attention; (B, local heads, rows, E) of the image and of the prompt."""
    cut = {"tokens": sequences.tokens, "prompt_tokens": sequences.prompt_tokens}
    out, prompt_out, _ = joint_attention(device, qkv, prompt_qkv, **cut)
    assert prompt_out is not None
    return out, prompt_out


class DoubleAttention:
    """``transformer_blocks.{index}.attn``: each stream has its own weights, in and out."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: FluxConfig) -> None:
        self._device, self._name, sizes = device, prefix, attention_sizes(config)
        self._spatial = RotaryQKV(weights, device, prefix, config)
        added = {"names": ("add_q_proj", "add_k_proj", "add_v_proj"), "norms": ("norm_added_q", "norm_added_k")}
        self._prompt = RotaryQKV(weights, device, prefix, config, **added)
        self._out, self._prompt_out = (
            RowParallelHeads(weights, device, f"{prefix}.{name}", sizes) for name in ("to_out.0", "to_add_out")
        )

    @in_module
    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, sequences: Sequences) -> tuple[MeshTensor, MeshTensor]:
        """Inputs tp=Replicate (gathered); results tp=Shard(-1); tokens over sp as they came in."""
        qkv = self._spatial(spatial, sequences.rotary)
        prompt_qkv = self._prompt(prompt, sequences.prompt_rotary)
        out, prompt_out = attend(self._device, qkv, prompt_qkv, sequences)
        return self._out(out), self._prompt_out(prompt_out)


class AttentionAndMLPOut:
    """``proj_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

        checkpoint      [ heads of all devices (D)  |  MLP of all devices (4 D) ]
        device d        [ heads of d | MLP of d ]      so that it multiplies what it holds; one reduce_scatter

    One cut through both ranges instead would pair a device's heads with the weights of other heads or of the MLP.
    """

    def __init__(self, weights: Weights, device: Device, name: str, config: Widths) -> None:
        self._device, self._name = device, name
        tp, d, mlp = device.groups["tp"], config.features, config.mlp_features
        self._features, self._mlp = d, mlp
        padded, shape = padded_features(d, tp.size), (d, d + mlp)
        start, stop = shard_range(attention_sizes(config).padded(tp), tp)
        real = (min(start, d), min(stop, d))  # a padded head's lanes would reach into the MLP's
        heads = weights.take(f"{name}.weight", shape, (0, padded), real)
        heads = F.pad(heads, (0, (stop - start) - (real[1] - real[0])))
        first, last = shard_range(padded_features(mlp, tp.size), tp)
        lanes = weights.take(f"{name}.weight", shape, (0, padded), (d + first, d + last))
        self.weight = torch.cat([heads, lanes], 1)
        self.bias = weights.take(f"{name}.bias", (d,), shard_range(padded, tp))

    @in_module
    def __call__(self, attention: MeshTensor, mlp: MeshTensor) -> MeshTensor:
        """(B, local heads, rows, E) and (B, rows, local F), cut over tp -> (B, rows, local D), tp=Shard(-1)."""
        mlp.require("proj_out", **shards(self._device.groups, tp=2))
        heads, d = concat_heads(attention), self._features
        self._device.observe(f"{self._name}.in@0:{d}", attention)
        self._device.observe(f"{self._name}.in@{d}:{d + self._mlp}", mlp)
        both = heads.with_local(torch.cat([heads.local, mlp.local], -1))
        out = row_linear(self._device, both, self.weight, self.bias, name=self._name)
        self._device.observe(self._name, out)
        return out
