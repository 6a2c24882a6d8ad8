"""Flux's two kinds of block; the residual streams live cut over tp (features) and sp (tokens).

double   spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
         prompt  --LN--mod--all_gather--'         (same, its own weights)            '

single   spatial --LN--mod--all_gather--+--> joint attention, MLP --[heads | mlp]--reduce_scatter--gate-->
         prompt  --LN--mod--all_gather--'    (the same weights for both streams)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.attention import JointAttention, StreamQKV
from refsim.layers.feedforward import ParallelFeedForward
from refsim.layers.linear import ColParallelLinear
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm
from refsim.models.flux1.attention import AttentionAndMLPOut, attention_sizes
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.embeddings import Sequences
from refsim.parallel.tensor import gather_features
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6
Streams = tuple[MeshTensor, MeshTensor]


class DoubleBlock:
    """``transformer_blocks.{index}`` of diffusers' FluxTransformer2DModel."""

    def __init__(self, weights: Weights, device: Device, config: FluxConfig, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"transformer_blocks.{index}"
        self._norm1, self._norm1_prompt, self._norm2, self._norm2_prompt = (
            DistributedLayerNorm(device, features=d, eps=_EPS, name=f"{prefix}.{name}")
            for name in ("norm1.norm", "norm1_context.norm", "norm2", "norm2_context")
        )
        self._mod = Modulation(weights, device, f"{prefix}.norm1.linear", features=d, chunks=6)
        self._mod_prompt = Modulation(weights, device, f"{prefix}.norm1_context.linear", features=d, chunks=6)
        whole = {"prompt": True, "prompt_out": True, "qk_norm": True}
        self._attn = JointAttention(weights, device, f"{prefix}.attn", attention_sizes(config), **whole)
        self._ff, self._ff_prompt = (
            ParallelFeedForward(weights, device, f"{prefix}.{name}", features=d, hidden=config.mlp_features)
            for name in ("ff", "ff_context")
        )

    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, time_BD: Tensor, *, sequences: Sequences) -> Streams:
        """(B, local N, local D) and (B, local L, local D) in and out; ``time_BD`` with silu applied."""
        shift, scale, gate, shift_ff, scale_ff, gate_ff = self._mod(time_BD)
        shift_p, scale_p, gate_p, shift_ff_p, scale_ff_p, gate_ff_p = self._mod_prompt(time_BD)
        attn_in = self._modulated(self._norm1(spatial), shift, scale)
        prompt_in = self._modulated(self._norm1_prompt(prompt), shift_p, scale_p)
        rotary = {"rotary": sequences.rotary, "prompt_rotary": sequences.prompt_rotary}
        attn, attn_prompt = self._attn(attn_in, prompt_in, **sequences.cut, **rotary)
        spatial = spatial + attn * gate
        prompt = prompt + attn_prompt * gate_p
        spatial = spatial + self._ff(self._modulated(self._norm2(spatial), shift_ff, scale_ff)) * gate_ff
        ff_prompt = self._ff_prompt(self._modulated(self._norm2_prompt(prompt), shift_ff_p, scale_ff_p))
        return spatial, prompt + ff_prompt * gate_ff_p

    def _modulated(self, normed: MeshTensor, shift: MeshTensor, scale: MeshTensor) -> MeshTensor:
        return gather_features(self._device, modulate(normed, shift, scale))


class SingleBlock:
    """``single_transformer_blocks.{index}`` of diffusers' FluxTransformer2DModel."""

    def __init__(self, weights: Weights, device: Device, config: FluxConfig, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"single_transformer_blocks.{index}"
        self._norm = DistributedLayerNorm(device, features=d, eps=_EPS, name=f"{prefix}.norm.norm")
        self._mod = Modulation(weights, device, f"{prefix}.norm.linear", features=d, chunks=3)
        self._qkv = StreamQKV(weights, device, f"{prefix}.attn", attention_sizes(config))
        self._mlp = ColParallelLinear(
            weights, device, f"{prefix}.proj_mlp", in_features=d, out_features=config.mlp_features, gathered_input=True
        )
        self._out = AttentionAndMLPOut(weights, device, f"{prefix}.proj_out", config)

    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, time_BD: Tensor, *, sequences: Sequences) -> Streams:
        """(B, local N, local D) and (B, local L, local D) in and out; ``time_BD`` with silu applied."""
        shift, scale, gate = self._mod(time_BD)
        normed, normed_p = (
            gather_features(self._device, modulate(self._norm(x), shift, scale)) for x in (spatial, prompt)
        )
        qkv = self._qkv(normed, sequences.rotary)
        prompt_qkv = self._qkv(normed_p, sequences.prompt_rotary)
        attn, attn_p, _ = joint_attention(self._device, qkv, prompt_qkv, **sequences.cut)
        return spatial + self._project(normed, attn) * gate, prompt + self._project(normed_p, attn_p) * gate

    def _project(self, normed: MeshTensor, attention: MeshTensor) -> MeshTensor:
        mlp = self._mlp(normed).map("gelu", lambda y: F.gelu(y, approximate="tanh"))
        return self._out(attention, mlp)


def bind_block(
    weights: Weights, device: Device, config: FluxConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = Sequences.of(device, config, inputs["img_ids"], inputs["txt_ids"])
    return partial(build_block(weights, device, config, index), sequences=sequences)


def block_name(config: FluxConfig, index: int) -> str:
    """Return what the names of a block's weights begin with, without the dot."""
    if index < config.num_layers:
        return f"transformer_blocks.{index}"
    return f"single_transformer_blocks.{index - config.num_layers}"


def build_block(weights: Weights, device: Device, config: FluxConfig, index: int) -> DoubleBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleBlock(weights, device, config, index)
    return SingleBlock(weights, device, config, index - config.num_layers)
