"""One MMDiT block: image and prompt streams, modulated by the time step, meeting in joint attention.

    spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate--+-->
    prompt  --LN--mod--all_gather--'         (same, its own weights)            '

The residual streams live cut over tp (features) and sp (tokens; the prompt replicated or cut). Medium's first blocks
have a second attention of the image alone, on the same norm; the last block drops the prompt after attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.attention import JointAttention
from refsim.layers.feedforward import ParallelFeedForward
from refsim.layers.linear import AttentionSizes
from refsim.layers.modulation import Modulation, modulate
from refsim.layers.norm import DistributedLayerNorm
from refsim.models.sd35.config import SD35Config
from refsim.parallel.sequence import TokenShards
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6


class SD35Block:
    """``transformer_blocks.{index}`` of diffusers' SD3Transformer2DModel."""

    def __init__(self, weights: Weights, device: Device, config: SD35Config, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"transformer_blocks.{index}"
        self._dual = index in config.dual_attention_layers
        self._context_pre_only = index == config.num_layers - 1
        sizes = AttentionSizes(d, config.num_attention_heads, config.attention_head_dim)
        qk_norm = config.qk_norm is not None
        self._norm1, self._norm1_prompt, self._norm2, self._norm2_prompt = (
            DistributedLayerNorm(device, features=d, eps=_EPS, name=f"{prefix}.{name}")
            for name in ("norm1.norm", "norm1_context.norm", "norm2", "norm2_context")
        )
        self._mod = Modulation(weights, device, f"{prefix}.norm1.linear", features=d, chunks=9 if self._dual else 6)
        self._mod_prompt = Modulation(
            weights, device, f"{prefix}.norm1_context.linear", features=d, chunks=2 if self._context_pre_only else 6
        )
        self._attn = JointAttention(
            weights,
            device,
            f"{prefix}.attn",
            sizes,
            prompt=True,
            prompt_out=not self._context_pre_only,
            qk_norm=qk_norm,
        )
        self._ff = ParallelFeedForward(weights, device, f"{prefix}.ff", features=d, hidden=4 * d)
        if self._dual:
            self._attn2 = JointAttention(
                weights, device, f"{prefix}.attn2", sizes, prompt=False, prompt_out=False, qk_norm=qk_norm
            )
        if not self._context_pre_only:
            self._ff_prompt = ParallelFeedForward(weights, device, f"{prefix}.ff_context", features=d, hidden=4 * d)

    def __call__(
        self,
        spatial: MeshTensor,
        prompt: MeshTensor,
        time_BD: Tensor,
        *,
        tokens: TokenShards,
        prompt_tokens: TokenShards | None,
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Run it on (B, local N, local D), (B, local L, local D) and silu(time); the last block gives no prompt."""
        cut = {"tokens": tokens, "prompt_tokens": prompt_tokens}
        shift, scale, gate, shift_ff, scale_ff, gate_ff, *dual = self._mod(time_BD)
        normed = self._norm1(spatial)
        attn_in = self._gather(modulate(normed, shift, scale))
        if self._context_pre_only:
            scale_p, shift_p = self._mod_prompt(time_BD)
        else:
            shift_p, scale_p, gate_p, shift_ff_p, scale_ff_p, gate_ff_p = self._mod_prompt(time_BD)
        prompt_in = self._gather(modulate(self._norm1_prompt(prompt), shift_p, scale_p))

        attn, attn_prompt = self._attn(attn_in, prompt_in, **cut)
        spatial = spatial + attn * gate
        if self._dual:
            shift2, scale2, gate2 = dual
            attn2, _ = self._attn2(self._gather(modulate(normed, shift2, scale2)), None, **cut)
            spatial = spatial + attn2 * gate2
        spatial = spatial + self._ff(self._gather(modulate(self._norm2(spatial), shift_ff, scale_ff))) * gate_ff

        if self._context_pre_only:
            return spatial, None
        prompt = prompt + attn_prompt * gate_p
        ff_prompt = self._ff_prompt(self._gather(modulate(self._norm2_prompt(prompt), shift_ff_p, scale_ff_p)))
        return spatial, prompt + ff_prompt * gate_ff_p

    def _gather(self, x: MeshTensor) -> MeshTensor:
        return gather_features(self._device, x)


def bind_block(
    weights: Weights, device: Device, config: SD35Config, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Return block ``index``, called with streams of as many tokens as ``inputs`` have."""
    sp = device.groups["sp"].size
    tokens = TokenShards.of(inputs["spatial"].shape[1], sp)
    prompt_tokens = TokenShards.of_prompt(inputs["prompt"].shape[1], sp) if device.options.splits_prompt else None
    return partial(SD35Block(weights, device, config, index), tokens=tokens, prompt_tokens=prompt_tokens)
