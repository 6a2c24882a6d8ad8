"""The Flux.1 transformer of one cfg group; counterpart of ``refsim.models.flux1.transformer``."""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.spec import CLASS_NAME
from tt_impl.blocks.stack import BlockStack, BoundBlock, bind
from tt_impl.models.flux1.embeddings import Conditioning, StreamEmbedders, sequences_of
from tt_impl.parallel.context import Context


class FluxTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxConfig) -> None:
        self._ctx = ctx
        self._config = config
        self._conditioning = Conditioning(weights, ctx, config)
        self._embedders = StreamEmbedders(weights, ctx, config)
        self._blocks = BlockStack(weights, ctx, config)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        pooled_projections: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        guidance: torch.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, C), cut over sp, on the device."""
        sequences = sequences_of(self._ctx, self._config, img_ids, txt_ids)
        time = ttnn.silu(self._conditioning(timestep, pooled_projections, guidance))
        spatial, prompt = self._embedders(hidden_states, encoder_hidden_states)
        return self._blocks(spatial, prompt, time, sequences)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, N, C); ``sizes`` are those of the inputs' named dims."""
        return self._ctx.get(out, sp_dim=2)[:, 0, : sizes["image tokens"]]


def bind_block(
    weights: Weights, ctx: Context, config: FluxConfig, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Return block ``index`` for positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    return bind(weights, ctx, config, index, sequences)
