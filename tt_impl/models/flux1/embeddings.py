"""Position tables of both streams and the conditioning vector; counterpart of ``refsim.models.flux1.embeddings``."""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.embeddings import TimestepEmbedding, TimeTextEmbedding
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.rope import rotary_angles
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import put_prompt, put_tokens

_TRAIN_TIMESTEPS = 1000


def sequences_of(ctx: Context, config: FluxBlocks, img_ids_N3: torch.Tensor, txt_ids_L3: torch.Tensor) -> Sequences:
    """From position ids (N, 3) and (L, 3) on the host, which are the places of tokens."""

    def angles(ids_N3: torch.Tensor) -> torch.Tensor:
        return rotary_angles(ids_N3.unbind(-1), config.axes_dims_rope, config.rope_theta)

    sequences = Sequences.of(ctx, img_ids_N3.shape[0], txt_ids_L3.shape[0])
    return sequences.turned(ctx, img_ids_N3, txt_ids_L3, angles)


class StreamEmbedders:
    """``x_embedder`` and ``context_embedder``: the linears that both streams go through first, column-parallel."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxBlocks, *, bias: bool = True) -> None:
        self._ctx = ctx
        self._image, self._prompt = (
            ColParallelLinear(weights, ctx, name, in_features=size, out_features=config.features, bias=bias)
            for name, size in (("x_embedder", config.in_channels), ("context_embedder", config.joint_attention_dim))
        )

    def __call__(self, latents_BNC: torch.Tensor, prompt_BLJ: torch.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Cut both, which are on the host -> (B, 1, local N, local D) and (B, 1, local L, local D)."""
        spatial = self._image(put_tokens(self._ctx, latents_BNC))
        return spatial, self._prompt(put_prompt(self._ctx, prompt_BLJ))


class Conditioning:
    """``time_text_embed``: time step, pooled text and, where the model has it, guidance, summed; on every device."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxConfig) -> None:
        self._guidance = None
        name = "time_text_embed"
        d = config.features
        pooled = config.pooled_projection_dim
        self._time_text = TimeTextEmbedding(weights, ctx, name, features=d, pooled_features=pooled)
        if config.guidance_embeds:
            self._guidance = TimestepEmbedding(weights, ctx, f"{name}.guidance_embedder", features=d)

    def __call__(
        self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor, guidance_B: torch.Tensor | None
    ) -> ttnn.Tensor:
        """Time step (B,) in 0..1, pooled text (B, P) and a scale (B,) on the host -> (B, 1, 1, D)."""
        time = self._time_text(timestep_B.float() * _TRAIN_TIMESTEPS, pooled_BP)
        if self._guidance is None:
            return time
        return ttnn.add(time, self._guidance(guidance_B.float() * _TRAIN_TIMESTEPS))
