"""Position tables of both streams and the conditioning vector; counterpart of ``refsim.models.flux1.embeddings``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.embeddings import TimeTextEmbedding, TwoLinears, timestep_embedding
from tt_impl.layers.linear import pad_to
from tt_impl.layers.rope import PairTables, pair_rotary, rotary_angles
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_prompt, padded_tokens

_TRAIN_TIMESTEPS = 1000


def sequences_of(ctx: Context, config: FluxBlocks, img_ids_N3: torch.Tensor, txt_ids_L3: torch.Tensor) -> Sequences:
    """From position ids (N, 3) and (L, 3) on the host; padding stands at position 0."""
    pad = padded_prompt if ctx.options.splits_prompt else None
    return replace(
        Sequences.of(ctx, img_ids_N3.shape[0], txt_ids_L3.shape[0]),
        rotary=_tables(ctx, config, img_ids_N3, padded_tokens),
        prompt_rotary=_tables(ctx, config, txt_ids_L3, pad),
    )


def _tables(
    ctx: Context, config: FluxBlocks, ids_N3: torch.Tensor, pad: Callable[[int, int], int] | None
) -> PairTables:
    angles_NP = _angles(config, ids_N3)
    if pad is not None:
        angles_NP = pad_to(angles_NP, pad(len(angles_NP), ctx.sp), angles_NP.shape[1])
    return pair_rotary(ctx, angles_NP, split=pad is not None)


def _angles(config: FluxBlocks, ids_N3: torch.Tensor) -> torch.Tensor:
    """(N, E / 2) in float64: each axis turns its share of a head's pairs."""
    return rotary_angles(ids_N3.unbind(-1), config.axes_dims_rope, config.rope_theta)


class Conditioning:
    """``time_text_embed``: time step, pooled text and, where the model has it, guidance, summed; on every device."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxConfig) -> None:
        self._ctx = ctx
        self._guidance = None
        name = "time_text_embed"
        d = config.features
        pooled = config.pooled_projection_dim
        self._time_text = TimeTextEmbedding(weights, ctx, name, features=d, pooled_features=pooled)
        if config.guidance_embeds:
            width = TimeTextEmbedding.TIME_FEATURES
            self._guidance = TwoLinears(weights, ctx, f"{name}.guidance_embedder", in_features=width, features=d)

    def __call__(
        self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor, guidance_B: torch.Tensor | None
    ) -> ttnn.Tensor:
        """Time step (B,) in 0..1, pooled text (B, P) and a scale (B,) on the host -> (B, 1, 1, D)."""
        time = self._time_text(timestep_B.float() * _TRAIN_TIMESTEPS, pooled_BP)
        if self._guidance is None:
            return time
        scale = timestep_embedding(guidance_B.float() * _TRAIN_TIMESTEPS, TimeTextEmbedding.TIME_FEATURES)
        return ttnn.add(time, self._guidance(self._ctx.put(scale[:, None, None])))
