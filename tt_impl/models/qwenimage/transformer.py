"""The Qwen-Image transformer of one cfg group; counterpart of ``refsim.models.qwenimage.transformer``.

Prompts are cut to their valid tokens on the host, and samples whose tokens are others run one after the other, see
:func:`tt_impl.parallel.sequence.valid_prompts`.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.qwenimage.config import QwenImageConfig
from refsim.models.qwenimage.spec import CLASS_NAME
from tt_impl.blocks.stack import BlockStack, BoundBlock, bind
from tt_impl.layers.embeddings import TimestepEmbedding
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.norm import RMSNorm
from tt_impl.models.qwenimage.embeddings import sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import by_valid_prompts, put_prompt, put_tokens

_EPS = 1e-6
_TRAIN_TIMESTEPS = 1000


class QwenImageTransformer:
    """Built on one submesh from a checkpoint's weights; every key must be consumed."""

    def __init__(self, weights: Weights, ctx: Context, config: QwenImageConfig) -> None:
        self._ctx = ctx
        self._config = config
        d = config.features
        text = config.joint_attention_dim
        time = "time_text_embed.timestep_embedder"
        self._time = TimestepEmbedding(weights, ctx, time, features=d, scale=_TRAIN_TIMESTEPS)
        self._txt_norm = RMSNorm(weights, ctx, "txt_norm", features=text, eps=_EPS)
        self._img_in, self._txt_in = (
            ColParallelLinear(weights, ctx, name, in_features=size, out_features=d)
            for name, size in (("img_in", config.in_channels), ("txt_in", text))
        )
        self._blocks = BlockStack(weights, ctx, config)
        weights.finish(CLASS_NAME)

    def __call__(
        self,
        *,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor,
        timestep: torch.Tensor,
        img_shapes: torch.Tensor,
    ) -> ttnn.Tensor:
        """Host inputs of the diffusers forward -> (B, 1, local N, C), cut over sp, on the device."""
        ctx = self._ctx

        def forward(samples: slice, places_L: torch.Tensor) -> ttnn.Tensor:
            steps = timestep[samples]
            sequences = sequences_of(ctx, self._config, img_shapes, hidden_states.shape[1], places_L)
            time = ttnn.silu(self._embedded(steps))
            spatial = self._img_in(put_tokens(ctx, hidden_states[samples]))
            prompt = self._txt_in(self._txt_norm(put_prompt(ctx, encoder_hidden_states[samples][:, places_L])))
            last = time[: len(steps)] if self._config.zero_cond_t else time
            return self._blocks(spatial, prompt, time, sequences, last=last)

        return by_valid_prompts(encoder_hidden_states_mask, forward)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, N, C); ``sizes`` are those of the inputs' named dims."""
        return self._ctx.get(out, sp_dim=2)[:, 0, : sizes["image tokens"]]

    def _embedded(self, timestep_B: torch.Tensor) -> ttnn.Tensor:
        """Time step (B,) in 0..1 on the host -> (B, 1, 1, D); with ``zero_cond_t`` (2 B, 1, 1, D), step 0 behind it."""
        if self._config.zero_cond_t:
            timestep_B = torch.cat([timestep_B, timestep_B * 0])
        return self._time(timestep_B)


def bind_block(
    weights: Weights, ctx: Context, config: QwenImageConfig, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Return block ``index`` for pictures of ``img_shapes`` and a prompt of which all tokens are there."""
    images_M3 = inputs["img_shapes"]
    prompt_L = torch.arange(inputs["encoder_hidden_states_mask"].shape[1])
    sequences = sequences_of(ctx, config, images_M3, int(images_M3.prod(-1).sum()), prompt_L)
    return bind(weights, ctx, config, index, sequences)
