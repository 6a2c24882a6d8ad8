"""One Wan2.2 expert of one cfg group; counterpart of ``refsim.models.wan22.transformer``.

latent --patches--> tokens of this device -----------+--> blocks --> norm, proj --> patches
prompt --two linears--> whole on every device -------+
image (2.1) ------------- the same ------------------'
"""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.spec import CLASS_NAME
from tt_impl.layers.linear import Linear
from tt_impl.layers.norm import LayerNorm
from tt_impl.layers.rope import PairTables
from tt_impl.models.wan22.block import WanBlock
from tt_impl.models.wan22.embeddings import ConditionEmbedder, Grid, ImageEmbedder, VideoPatches, rotary_tables
from tt_impl.parallel.context import Context
from tt_impl.parallel.tensor import gather_features


class WanTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: WanConfig) -> None:
        if ctx.options.splits_prompt:
            raise UserError(
                f"{CLASS_NAME} attends to the whole prompt on every device; leave out --prompt-layout split."
            )
        self._ctx = ctx
        self._config = config
        d = config.features
        self._patches = VideoPatches(weights, ctx, config)
        self._condition = ConditionEmbedder(weights, ctx, config)
        self._image = None
        if config.image_dim is not None:
            self._image = ImageEmbedder(weights, ctx, config, config.image_dim)
        self._blocks = [WanBlock(weights, ctx, config, i) for i in range(config.num_layers)]
        self._norm_out = LayerNorm(ctx, features=d, eps=config.eps)
        shift_12D, scale_12D = weights.to(torch.float32).take("scale_shift_table", (1, 2, d))[:, None].chunk(2, 2)
        self._shift_out, self._scale_out = (ctx.put(x, dtype=ttnn.float32) for x in (shift_12D, 1 + scale_12D))
        out_features = math.prod(config.patch_size) * config.out_channels
        self._proj_out = Linear(weights, ctx, "proj_out", in_features=d, out_features=out_features)
        self._rotary: dict[Grid, PairTables] = {}
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states_image: torch.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, pt * ph * pw * C), cut over sp, on the device."""
        prompt = self.embed_prompt(self._ctx.put(encoder_hidden_states[:, None]))
        image = None
        if self._image is not None and encoder_hidden_states_image is not None:
            image = self._image(self._ctx.put(encoder_hidden_states_image[:, None]))
        grid = self._patches.grid(hidden_states.shape[2:])
        return self.forward(self._patches.put(hidden_states), prompt, timestep, grid=grid, image=image)

    def embed_prompt(self, prompt: ttnn.Tensor) -> ttnn.Tensor:
        """Map (B, 1, L, text_dim) on every device to (B, 1, L, D), the same for all time steps."""
        return self._condition.text(prompt)

    def forward(
        self,
        patches: ttnn.Tensor,
        prompt: ttnn.Tensor,
        timestep: torch.Tensor,
        *,
        grid: Grid,
        image: ttnn.Tensor | None = None,
    ) -> ttnn.Tensor:
        """One prediction without a round trip over the host, of the shape and order of ``patches``.

        Args:
            patches: (B, 1, local N, pt * ph * pw * C), see :meth:`VideoPatches.put`.
            prompt: from :meth:`embed_prompt`.
            timestep: (B,), or (B, N) of every token, in 0..1000 on the host.
            grid: (frames, rows, columns) of the patches.
            image: (B, 1, M, D), gathered.
        """
        if grid not in self._rotary:
            self._rotary[grid] = rotary_tables(self._ctx, self._config, grid)
        temb, time = self._condition.time(timestep)
        spatial = self._patches(patches)
        for block in self._blocks:
            spatial = block(spatial, prompt, time, rotary=self._rotary[grid], logical_n=math.prod(grid), image=image)
        return self._project_out(spatial, temb)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, C, frames, height, width); ``sizes``: those of the inputs' named dims."""
        grid = self._patches.grid((sizes["frames"], sizes["height"], sizes["width"]))
        return self._patches.unpatchify(self._ctx.get(out, sp_dim=2)[:, 0, : math.prod(grid)], grid)

    def _project_out(self, spatial: ttnn.Tensor, temb_BD: ttnn.Tensor) -> ttnn.Tensor:
        """Map (B, 1, local N, local D) to patches, modulated by the time step before its silu."""
        shift, scale = (ttnn.add(x, temb_BD, dtype=ttnn.float32) for x in (self._shift_out, self._scale_out))
        return self._proj_out(self._norm_out.modulated(gather_features(self._ctx, spatial), scale, shift))
