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
from tt_impl.layers.embeddings import TimeTextEmbedding, TwoLinears, timestep_embedding
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.modulation import ModulatedOutput
from tt_impl.layers.norm import RMSNorm
from tt_impl.models.qwenimage.block import build_block
from tt_impl.models.qwenimage.embeddings import sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import put_prompt, put_tokens, valid_prompts

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
        self._time = TwoLinears(weights, ctx, time, in_features=TimeTextEmbedding.TIME_FEATURES, features=d)
        self._txt_norm = RMSNorm(weights, ctx, "txt_norm", features=text, eps=_EPS)
        self._img_in, self._txt_in = (
            ColParallelLinear(weights, ctx, name, in_features=size, out_features=d)
            for name, size in (("img_in", config.in_channels), ("txt_in", text))
        )
        self._blocks = [build_block(weights, ctx, config, i) for i in range(config.num_layers)]
        channels = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, ctx, features=d, out_features=channels, eps=_EPS)
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
        outs = [
            self._forward(
                hidden_states[samples], encoder_hidden_states[samples][:, tokens], tokens, timestep[samples], img_shapes
            )
            for samples, tokens in valid_prompts(encoder_hidden_states_mask)
        ]
        return outs[0] if len(outs) == 1 else ttnn.concat(outs, dim=0)

    def _forward(
        self,
        hidden_states: torch.Tensor,
        prompt_BLD: torch.Tensor,
        prompt_L: torch.Tensor,
        timestep: torch.Tensor,
        img_shapes: torch.Tensor,
    ) -> ttnn.Tensor:
        """Run samples whose prompts have valid tokens at the same places ``prompt_L``."""
        ctx = self._ctx
        sequences = sequences_of(ctx, self._config, img_shapes, hidden_states.shape[1], prompt_L)
        time = ttnn.silu(self._embedded(timestep))
        spatial = self._img_in(put_tokens(ctx, hidden_states))
        prompt = self._txt_in(self._txt_norm(put_prompt(ctx, prompt_BLD)))
        for block in self._blocks:
            spatial, prompt = block(spatial, prompt, time, sequences=sequences)
        return self._out(spatial, time[: len(timestep)] if self._config.zero_cond_t else time)

    def read(self, out: ttnn.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """Return the result on the host, (B, N, C); ``sizes`` are those of the inputs' named dims."""
        return self._ctx.get(out, sp_dim=2)[:, 0, : sizes["image tokens"]]

    def _embedded(self, timestep_B: torch.Tensor) -> ttnn.Tensor:
        """Time step (B,) in 0..1 on the host -> (B, 1, 1, D); with ``zero_cond_t`` (2 B, 1, 1, D), step 0 behind it."""
        if self._config.zero_cond_t:
            timestep_B = torch.cat([timestep_B, timestep_B * 0])
        sinusoids = timestep_embedding(timestep_B, TimeTextEmbedding.TIME_FEATURES, scale=_TRAIN_TIMESTEPS)
        return self._time(self._ctx.put(sinusoids[:, None, None]))
