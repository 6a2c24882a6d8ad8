"""The CogVideoX transformer of one cfg group; counterpart of ``refsim.models.cogvideox.transformer``."""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.spec import CLASS_NAME
from tt_impl.blocks.stack import BoundBlock, bind, build_block
from tt_impl.layers.embeddings import TimestepEmbedding
from tt_impl.layers.linear import ColParallelLinear, Linear
from tt_impl.layers.modulation import modulate
from tt_impl.layers.norm import LayerNorm
from tt_impl.models.cogvideox.embeddings import CogVideoXPatches, sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import put_prompt
from tt_impl.parallel.tensor import gather_features


class CogVideoXTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXConfig) -> None:
        self._ctx = ctx
        self._config = config
        d = config.features
        self._patches = CogVideoXPatches(weights, ctx, config)
        self._text = ColParallelLinear(
            weights, ctx, "patch_embed.text_proj", in_features=config.text_embed_dim, out_features=d
        )
        wide = config.time_embed_dim
        self._time = TimestepEmbedding(weights, ctx, "time_embedding", features=wide, width=d)
        self._ofs = None
        if config.ofs_embed_dim is not None:
            self._ofs = TimestepEmbedding(weights, ctx, "ofs_embedding", features=wide, width=wide)
        self._blocks = [build_block(weights, ctx, config, i) for i in range(config.num_layers)]
        self._norm_final, self._norm_out = (
            LayerNorm(ctx, features=d, eps=config.norm_eps, affine=(weights, name))
            for name in ("norm_final", "norm_out.norm")
        )
        self._mod_out = Linear(weights, ctx, "norm_out.linear", in_features=config.time_embed_dim, out_features=2 * d)
        out_features = config.patch_size**2 * (config.patch_size_t or 1) * config.out_channels
        self._proj_out = Linear(weights, ctx, "proj_out", in_features=d, out_features=out_features)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        ofs: torch.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, C * deep * p * p), cut over sp, on the device."""
        ctx = self._ctx
        _, frames, _, height, width = hidden_states.shape
        grid = self._patches.grid((frames, height, width))
        sequences = sequences_of(ctx, self._config, grid, encoder_hidden_states.shape[1])
        time = self._time(timestep)
        if self._ofs is not None and ofs is not None:
            time = ttnn.add(time, self._ofs(ofs))
        time = ttnn.silu(time)
        video = self._patches(hidden_states)
        text = self._text(put_prompt(ctx, encoder_hidden_states))
        for block in self._blocks:
            video, text = block(video, text, time, sequences=sequences)
        shift, scale = ttnn.chunk(self._mod_out(time), 2, -1)
        normed = self._norm_out(self._norm_final(gather_features(ctx, video)))
        return self._proj_out(modulate(normed, shift, scale))

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, F, C, height, width); ``sizes`` are those of the inputs' named dims."""
        grid = self._patches.grid((sizes["frames"], sizes["height"], sizes["width"]))
        return self._patches.unpatchify(self._ctx.get(out, sp_dim=2)[:, 0, : math.prod(grid)], grid)


def bind_block(
    weights: Weights, ctx: Context, config: CogVideoXConfig, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Return block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    frames, rows, columns = inputs["grid"].tolist()
    sequences = sequences_of(ctx, config, (frames, rows, columns), inputs["prompt"].shape[1])
    return bind(weights, ctx, config, index, sequences)
