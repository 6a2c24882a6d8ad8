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

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.attention import StreamQKV
from refsim.layers.linear import ColParallelLinear
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm
from refsim.models.flux1.attention import AttentionAndMLPOut, attention_sizes
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.embeddings import sequences_of
from refsim.parallel.tensor import gather_features
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6
Streams = tuple[MeshTensor, MeshTensor]


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
    sequences = sequences_of(device, config, inputs["img_ids"], inputs["txt_ids"])
    return partial(build_block(weights, device, config, index), sequences=sequences)


def block_name(config: FluxConfig, index: int) -> str:
    """Return what the names of a block's weights begin with, without the dot."""
    if index < config.num_layers:
        return f"transformer_blocks.{index}"
    return f"single_transformer_blocks.{index - config.num_layers}"


def build_block(weights: Weights, device: Device, config: FluxConfig, index: int) -> DoubleStreamBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleStreamBlock(weights, device, config.double_block(), block_name(config, index))
    return SingleBlock(weights, device, config, index - config.num_layers)
