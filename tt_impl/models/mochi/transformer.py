"""The Mochi 1 transformer of one cfg group; counterpart of ``refsim.models.mochi.transformer``.

Prompts are cut to their valid tokens on the host, and samples whose tokens are others run one after the other, see
:func:`tt_impl.parallel.sequence.valid_prompts`.
"""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.mochi.config import MochiConfig
from refsim.models.mochi.spec import CLASS_NAME
from tt_impl.blocks.stack import BlockStack, BoundBlock, bind
from tt_impl.layers.embeddings import VideoPatches
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.models.mochi.embeddings import Conditioning, sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import by_valid_prompts, put_prompt


class MochiTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiConfig) -> None:
        self._ctx = ctx
        p = config.patch_size
        wide = {"in_features": (config.in_channels, p, p), "features": config.features}
        self._patches = VideoPatches(weights, ctx, "patch_embed.proj", patch=(1, p, p), **wide)
        pairs = config.attention_head_dim // 2
        self._frequencies_3HP = weights.take("pos_frequencies", (3, config.num_attention_heads, pairs))
        self._conditioning = Conditioning(weights, ctx, config)
        sizes = {"in_features": config.text_embed_dim, "out_features": config.pooled_projection_dim}
        self._caption = ColParallelLinear(weights, ctx, "time_embed.caption_proj", **sizes)
        self._blocks = BlockStack(weights, ctx, config)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, p * p * C), cut over sp, on the device."""
        ctx = self._ctx
        grid = self._patches.grid(tuple(hidden_states.shape[2:]))

        def forward(samples: slice, places_L: torch.Tensor) -> ttnn.Tensor:
            prompt_BLT = encoder_hidden_states[samples][:, places_L]
            sequences = sequences_of(ctx, self._frequencies_3HP, grid, places_L, len(prompt_BLT))
            time = ttnn.silu(self._conditioning(timestep[samples], prompt_BLT))
            spatial = self._patches(hidden_states[samples])
            prompt = self._caption(put_prompt(ctx, prompt_BLT)) if len(places_L) else None
            return self._blocks(spatial, prompt, time, sequences)

        return by_valid_prompts(encoder_attention_mask, forward, empty=True)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, C, T, H, W); ``sizes`` are those of the inputs' named dims."""
        grid = self._patches.grid((sizes["frames"], sizes["height"], sizes["width"]))
        return self._patches.unpatchify(self._ctx.get(out, sp_dim=2)[:, 0, : math.prod(grid)], grid)


def bind_block(
    weights: Weights, ctx: Context, config: MochiConfig, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Return block ``index`` for the video whose patches ``grid`` counts, and a prompt that is valid as a whole."""
    frames, rows, columns = inputs["grid"].tolist()
    tokens = torch.arange(inputs["prompt"].shape[1])
    sequences = sequences_of(ctx, inputs["pos_frequencies"], (frames, rows, columns), tokens)
    return bind(weights, ctx, config, index, sequences)
