"""The SD3.5 transformer of one cfg group; counterpart of ``refsim.models.sd35.transformer``."""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.sd35.config import SD35Config
from refsim.models.sd35.spec import CLASS_NAME
from tt_impl.blocks.sequences import Sequences
from tt_impl.blocks.stack import BlockStack, BoundBlock, bind
from tt_impl.layers.embeddings import PatchEmbed, TimeTextEmbedding
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import put_prompt


class SD35Transformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: SD35Config) -> None:
        self._ctx = ctx
        self._config = config
        d = config.features
        p = config.patch_size
        self._patch_embed = PatchEmbed(
            weights,
            ctx,
            "pos_embed",
            patch=p,
            in_channels=config.in_channels,
            features=d,
            table_size=config.pos_embed_max_size,
        )
        self._time_text = TimeTextEmbedding(
            weights, ctx, "time_text_embed", features=d, pooled_features=config.pooled_projection_dim
        )
        self._context_embedder = ColParallelLinear(
            weights, ctx, "context_embedder", in_features=config.joint_attention_dim, out_features=d
        )
        self._blocks = BlockStack(weights, ctx, config)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        pooled_projections: torch.Tensor,
        timestep: torch.Tensor,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, p * p * C), cut over sp, on the device."""
        ctx = self._ctx
        p = self._config.patch_size
        logical_n = (hidden_states.shape[2] // p) * (hidden_states.shape[3] // p)
        time = ttnn.silu(self._time_text(timestep, pooled_projections))
        spatial = self._patch_embed(hidden_states)
        prompt = self._context_embedder(put_prompt(ctx, encoder_hidden_states))
        sequences = Sequences.of(ctx, logical_n, encoder_hidden_states.shape[1])
        return self._blocks(spatial, prompt, time, sequences)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, C, height, width); ``sizes`` are those of the inputs' named dims."""
        height = sizes["height"]
        width = sizes["width"]
        p = self._config.patch_size
        c = self._config.out_channels
        rows = height // p
        columns = width // p
        tokens = self._ctx.get(out, sp_dim=2)[:, 0, : rows * columns]
        x = tokens.reshape(-1, rows, columns, p, p, c).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(-1, c, height, width)


def bind_block(
    weights: Weights, ctx: Context, config: SD35Config, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Return block ``index`` for streams of as many tokens as ``inputs`` have."""
    sequences = Sequences.of(ctx, inputs["spatial"].shape[1], inputs["prompt"].shape[1])
    return bind(weights, ctx, config, index, sequences)
