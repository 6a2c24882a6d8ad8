"""One block of CogVideoX: text and video share every weight but the gates, and meet in joint attention.

    video --LN affine--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
    text  --LN affine--mod--all_gather--'    (same weights for both)                 '

The residual streams live cut over tp (features); video is cut over sp (tokens), the text whole on every member
(``replicated``, for lengths that do not divide) or cut as well (``split``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.feedforward import ParallelFeedForward
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm
from refsim.layers.rope import apply_rotary
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.embeddings import rotary_tables
from refsim.parallel.ring import QKV
from refsim.parallel.sequence import TokenShards
from refsim.parallel.tensor import gather_features
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor

_HEAD_EPS = 1e-6
Rotary = tuple[Tensor, Tensor] | None


class _HeadNorm:
    """Affine LayerNorm over the features of one head."""

    def __init__(self, weights: Weights, device: Device, name: str, *, features: int) -> None:
        self._device = device
        self._name = name
        self._shape = (features,)
        self._weight, self._bias = (weights.take(f"{name}.{n}", self._shape) for n in ("weight", "bias"))

    @in_module
    def __call__(self, x_BHNE: MeshTensor) -> MeshTensor:
        normed = x_BHNE.map("layer_norm", self._normalize)
        self._device.observe(self._name, normed)
        return normed

    def _normalize(self, x: Tensor) -> Tensor:
        with self._device.compute("layer_norm", x):
            return F.layer_norm(x, self._shape, self._weight, self._bias, _HEAD_EPS)


class _Attention:
    """``attn1``; inputs tp=Replicate (gathered), results tp=Shard(-1), tokens over sp as they came in."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: CogVideoXConfig) -> None:
        self._device = device
        self._name = prefix
        e = config.attention_head_dim
        sizes = AttentionSizes(config.features, config.num_attention_heads, e)
        names = tuple(f"{prefix}.to_{n}" for n in "qkv")
        self._qkv = ColParallelQKV(weights, device, names, sizes, bias=config.attention_bias)
        self._norm_q, self._norm_k = (_HeadNorm(weights, device, f"{prefix}.norm_{n}", features=e) for n in "qk")
        self._out = RowParallelHeads(weights, device, f"{prefix}.to_out.0", sizes)

    @in_module
    def __call__(
        self, video: MeshTensor, text: MeshTensor, rotary: Rotary, tokens: TokenShards, text_tokens: TokenShards | None
    ) -> tuple[MeshTensor, MeshTensor]:
        out, text_out, _ = joint_attention(
            self._device,
            self._project(video, rotary),
            self._project(text, None),
            tokens=tokens,
            prompt_tokens=text_tokens,
        )
        return self._out(out), self._out(text_out)

    def _project(self, x: MeshTensor, rotary: Rotary) -> QKV:
        q, k, v = self._qkv(x)
        q = self._norm_q(q)
        k = self._norm_k(k)
        if rotary is not None:
            q, k = (x.map("rope", lambda y: apply_rotary(self._device, y, *rotary)) for x in (q, k))
        return q, k, v


class CogVideoXBlock:
    """``transformer_blocks.{index}`` of diffusers' CogVideoXTransformer3DModel."""

    def __init__(self, weights: Weights, device: Device, config: CogVideoXConfig, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"transformer_blocks.{index}"

        def zero(name: str) -> tuple[DistributedLayerNorm, Modulation]:
            norm = DistributedLayerNorm(
                device, features=d, eps=config.norm_eps, affine=(weights, f"{prefix}.{name}.norm")
            )
            wide = {"features": d, "in_features": config.time_embed_dim, "chunks": 6}
            return norm, Modulation(weights, device, f"{prefix}.{name}.linear", **wide)

        (self._norm1, self._mod1) = zero("norm1")
        (self._norm2, self._mod2) = zero("norm2")
        self._attn = _Attention(weights, device, f"{prefix}.attn1", config)
        self._ff = ParallelFeedForward(weights, device, f"{prefix}.ff", features=d, hidden=4 * d)

    def __call__(
        self,
        video: MeshTensor,
        text: MeshTensor,
        time_BT: Tensor,
        *,
        rotary: Rotary,
        tokens: TokenShards,
        text_tokens: TokenShards | None,
    ) -> tuple[MeshTensor, MeshTensor]:
        """Run the block on (B, local N, local D) and (B, local L, local D); ``time_BT`` with silu applied."""
        shift, scale, gate, text_shift, text_scale, text_gate = self._mod1(time_BT)
        attn, text_attn = self._attn(
            self._gather(modulate(self._norm1(video), shift, scale)),
            self._gather(modulate(self._norm1(text), text_shift, text_scale)),
            rotary,
            tokens,
            text_tokens,
        )
        video = video + attn * gate
        text = text + text_attn * text_gate
        shift, scale, gate, text_shift, text_scale, text_gate = self._mod2(time_BT)
        video_ff = self._ff(self._gather(modulate(self._norm2(video), shift, scale)))
        text_ff = self._ff(self._gather(modulate(self._norm2(text), text_shift, text_scale)))
        return video + video_ff * gate, text + text_ff * text_gate

    def _gather(self, x: MeshTensor) -> MeshTensor:
        return gather_features(self._device, x)


def bind_block(
    weights: Weights, device: Device, config: CogVideoXConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    sp = device.groups["sp"]
    options = device.options
    frames, rows, columns = inputs["grid"].tolist()
    tokens = TokenShards.of(frames * rows * columns, sp.size)
    return partial(
        CogVideoXBlock(weights, device, config, index),
        rotary=rotary_tables(config, (frames, rows, columns), tokens, sp.index),
        tokens=tokens,
        text_tokens=TokenShards.of_prompt(inputs["prompt"].shape[1], sp.size) if options.splits_prompt else None,
    )
