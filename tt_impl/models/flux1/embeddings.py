"""Position tables of both streams and the conditioning vector; counterpart of ``refsim.models.flux1.embeddings``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import ttnn

from refsim.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from tt_impl.layers.embeddings import TimeTextEmbedding, timestep_embedding
from tt_impl.layers.linear import Linear, pad_to
from tt_impl.layers.rope import PairTables, pair_rotary
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_tokens

_TRAIN_TIMESTEPS = 1000
_THETA = 10000.0


@dataclass(frozen=True)
class Sequences:
    """What attention has to know of the tokens.

    Attributes:
        logical_n: image tokens without padding, over all devices.
        rotary: tables of the image, cut over sp; padding stands at position 0.
        prompt_rotary: tables of the prompt, which every device holds whole.
    """

    logical_n: int
    rotary: PairTables
    prompt_rotary: PairTables

    @classmethod
    def of(cls, ctx: Context, config: FluxConfig, img_ids_N3: torch.Tensor, txt_ids_L3: torch.Tensor) -> Sequences:
        """From position ids (N, 3) and (L, 3) on the host."""
        rows = padded_tokens(img_ids_N3.shape[0], ctx.sp)
        return cls(
            img_ids_N3.shape[0],
            pair_rotary(ctx, pad_to(_angles(config, img_ids_N3), rows, config.attention_head_dim // 2), split=True),
            pair_rotary(ctx, _angles(config, txt_ids_L3), split=False),
        )


def _angles(config: FluxConfig, ids_N3: torch.Tensor) -> torch.Tensor:
    """(N, E / 2) in float64: each axis turns its share of a head's pairs."""
    angles = []
    for axis, size in enumerate(config.axes_dims_rope):
        frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(_THETA) / size))
        angles.append(ids_N3[:, axis : axis + 1].double() * frequencies)
    return torch.cat(angles, -1)


class Conditioning:
    """``time_text_embed``: time step, pooled text and, where the model has it, guidance, summed; on every device."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxConfig) -> None:
        self._ctx, self._guidance = ctx, None
        name, d = "time_text_embed", config.features
        pooled = config.pooled_projection_dim
        self._time_text = TimeTextEmbedding(weights, ctx, name, features=d, pooled_features=pooled)
        if config.guidance_embeds:
            self._guidance = [
                Linear(weights, ctx, f"{name}.guidance_embedder.linear_{i}", in_features=size, out_features=d)
                for i, size in ((1, TimeTextEmbedding.TIME_FEATURES), (2, d))
            ]

    def __call__(
        self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor, guidance_B: torch.Tensor | None
    ) -> ttnn.Tensor:
        """Time step (B,) in 0..1, pooled text (B, P) and a scale (B,) on the host -> (B, 1, 1, D)."""
        time = self._time_text(timestep_B.float() * _TRAIN_TIMESTEPS, pooled_BP)
        if self._guidance is None:
            return time
        scale = timestep_embedding(guidance_B.float() * _TRAIN_TIMESTEPS, TimeTextEmbedding.TIME_FEATURES)
        first, second = self._guidance
        return ttnn.add(time, second(ttnn.silu(first(self._ctx.put(scale[:, None, None])))))
