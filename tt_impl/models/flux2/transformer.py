"""The FLUX.2 transformer of one cfg group; counterpart of ``refsim.models.flux2.transformer``."""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux2.config import Flux2Config
from refsim.models.flux2.spec import CLASS_NAME
from tt_impl.blocks.stack import BlockStack
from tt_impl.layers.embeddings import TimestepEmbedding
from tt_impl.models.flux1.embeddings import StreamEmbedders, sequences_of
from tt_impl.models.flux2.block import Modulations
from tt_impl.parallel.context import Context

_TRAIN_TIMESTEPS = 1000


class Flux2Transformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: Flux2Config) -> None:
        self._ctx = ctx
        self._config = config
        numbers = ("timestep_embedder", *["guidance_embedder"] * config.guidance_embeds)
        wide = {"width": config.timestep_guidance_channels, "features": config.features, "bias": False}
        self._numbers = [TimestepEmbedding(weights, ctx, f"time_guidance_embed.{name}", **wide) for name in numbers]
        self._modulations = Modulations(weights, ctx, config)
        self._embedders = StreamEmbedders(weights, ctx, config, bias=False)
        self._blocks = BlockStack(weights, ctx, config, eps=config.eps, bias=False)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        guidance: torch.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, C), cut over sp, on the device."""
        sequences = sequences_of(self._ctx, self._config, img_ids, txt_ids)
        time = ttnn.silu(self._conditioning(timestep, guidance))
        spatial, prompt = self._embedders(hidden_states, encoder_hidden_states)
        return self._blocks(spatial, prompt, self._modulations(time), sequences, last=time)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, N, C); ``sizes`` are those of the inputs' named dims."""
        return self._ctx.get(out, sp_dim=2)[:, 0, : sizes["image tokens"]]

    def _conditioning(self, timestep_B: torch.Tensor, guidance_B: torch.Tensor | None) -> ttnn.Tensor:
        """Time step (B,) in 0..1 and a scale (B,) on the host -> (B, 1, 1, D), their embeddings summed."""
        numbers = (timestep_B, guidance_B)[: len(self._numbers)]
        embedded = [embed(x.float() * _TRAIN_TIMESTEPS) for embed, x in zip(self._numbers, numbers, strict=True)]
        return ttnn.add(*embedded) if len(embedded) == 2 else embedded[0]
