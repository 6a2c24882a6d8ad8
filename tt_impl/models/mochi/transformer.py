"""The Mochi 1 transformer of one cfg group; counterpart of ``refsim.models.mochi.transformer``.

Prompts are cut to their valid tokens on the host, and samples whose tokens are others run one after the other, see
:func:`tt_impl.parallel.sequence.valid_prompts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.mochi.config import MochiConfig
from refsim.models.mochi.spec import CLASS_NAME
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.modulation import ModulatedOutput
from tt_impl.models.mochi.embeddings import Conditioning, Grid, VideoPatches, learned_rotary
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_heads
from tt_impl.parallel.sequence import put_prompt, valid_prompts

_EPS = 1e-6


class MochiTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiConfig) -> None:
        self._ctx = ctx
        self._config = config
        d = config.features
        self._patches = VideoPatches(weights, ctx, config)
        self._frequencies_3HP = weights.take(
            "pos_frequencies", (3, config.num_attention_heads, config.attention_head_dim // 2)
        )
        self._conditioning = Conditioning(weights, ctx, config)
        self._caption = ColParallelLinear(
            weights,
            ctx,
            "time_embed.caption_proj",
            in_features=config.text_embed_dim,
            out_features=config.pooled_projection_dim,
        )
        self._blocks = [_block(weights, ctx, config, i) for i in range(config.num_layers)]
        channels = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, ctx, features=d, out_features=channels, eps=_EPS)
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
        grid = self._config.grid(tuple(hidden_states.shape[2:]))
        outs = [
            self._forward(
                hidden_states[samples],
                encoder_hidden_states[samples][:, tokens],
                timestep[samples],
                _sequences(self._ctx, self._frequencies_3HP, grid, tokens, len(timestep[samples])),
                grid,
            )
            for samples, tokens in valid_prompts(encoder_attention_mask, empty=True)
        ]
        return outs[0] if len(outs) == 1 else ttnn.concat(outs, dim=0)

    def _forward(
        self,
        latent_BCTHW: torch.Tensor,
        prompt_BLT: torch.Tensor,
        timestep_B: torch.Tensor,
        sequences: Sequences,
        grid: Grid,
    ) -> ttnn.Tensor:
        """Run samples whose prompts have valid tokens at the same places."""
        time = ttnn.silu(self._conditioning(timestep_B, prompt_BLT))
        spatial = self._patches(latent_BCTHW, grid)
        prompt = self._caption(put_prompt(self._ctx, prompt_BLT)) if prompt_BLT.shape[1] else None
        for block in self._blocks:
            spatial, prompt = block(spatial, prompt, time, sequences=sequences)
        return self._out(spatial, time)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, C, T, H, W); ``sizes`` are those of the inputs' named dims."""
        grid = self._config.grid((sizes["frames"], sizes["height"], sizes["width"]))
        return self._patches.unpatchify(self._ctx.get(out, sp_dim=2)[:, 0, : math.prod(grid)], grid)


def _block(weights: Weights, ctx: Context, config: MochiConfig, index: int) -> DoubleStreamBlock:
    return DoubleStreamBlock(weights, ctx, config.block(index), f"transformer_blocks.{index}")


def _sequences(
    ctx: Context, frequencies_3HP: torch.Tensor, grid: Grid, tokens_L: torch.Tensor, samples: int
) -> Sequences:
    """Return what blocks have to know of a video and of a prompt whose valid tokens stand at these places."""
    sequences = replace(
        Sequences.of(ctx, math.prod(grid), len(tokens_L)), rotary=learned_rotary(ctx, frequencies_3HP, grid)
    )
    answers_LL = (torch.arange(len(tokens_L)) == tokens_L[:, None]).float()
    if answers_LL.diagonal().all():
        return sequences
    if sequences.logical_l is not None:
        raise UserError(
            "a mask with holes moves the answers of the prompt's tokens over sp; use --prompt-layout replicated."
        )
    heads = padded_heads(frequencies_3HP.shape[1], ctx.tp * ctx.ulysses) // ctx.tp
    return replace(sequences, prompt_answers=ctx.put(answers_LL.expand(samples, heads, -1, -1)))


def bind_block(
    weights: Weights, ctx: Context, config: MochiConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Return block ``index`` for the video whose patches ``grid`` counts, and a prompt that is valid as a whole."""
    frames, rows, columns = inputs["grid"].tolist()
    tokens = torch.arange(inputs["prompt"].shape[1])
    sequences = _sequences(ctx, inputs["pos_frequencies"], (frames, rows, columns), tokens, inputs["prompt"].shape[0])
    return partial(_block(weights, ctx, config, index), sequences=sequences)
