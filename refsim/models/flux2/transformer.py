"""The FLUX.2 transformer: packed latents, prompt, positions and time step in, velocity out.

    latents --linear--> tokens of this device --+--> double blocks --> single blocks --> norm, proj --all_gather-->
    prompt  --linear--> replicated or cut ------'        ^                  ^
    time step (+ guidance) --> (B, D) --silu, linear-----+------------------'       once, for all blocks of a kind

Counterpart: diffusers' ``Flux2Transformer2DModel``, without the cache of reference images' keys (Klein).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.stack import BlockStack
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimestepEmbedding
from refsim.models.flux1.embeddings import StreamEmbedders, sequences_of
from refsim.models.flux2.block import Modulations
from refsim.models.flux2.config import Flux2Config
from refsim.models.flux2.spec import CLASS_NAME
from refsim.models.inputs import BATCH, Dims
from refsim.runtime.device import Device

_TRAIN_TIMESTEPS = 1000


class Flux2Transformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed.

    The prompt's tokens are held whole by every device of sp, or cut over them.
    """

    def __init__(self, weights: Weights, device: Device, config: Flux2Config) -> None:
        self._device = device
        self._config = config
        numbers = ("timestep_embedder", *["guidance_embedder"] * config.guidance_embeds)
        sizes = {"width": config.timestep_guidance_channels, "features": config.features, "bias": False}
        self._numbers = [TimestepEmbedding(weights, f"time_guidance_embed.{name}", **sizes) for name in numbers]
        self._modulations = Modulations(weights, device, config)
        self._embedders = StreamEmbedders(weights, device, config, bias=False)
        self._blocks = BlockStack(weights, device, config, eps=config.eps, bias=False)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: Flux2Config) -> dict[str, Dims]:
        """Names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        axes = len(config.axes_dims_rope)
        shapes: dict[str, Dims] = {
            "hidden_states": (BATCH, "image tokens", config.in_channels),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.joint_attention_dim),
            "timestep": (BATCH,),
            "img_ids": ("image tokens", axes),
            "txt_ids": ("prompt tokens", axes),
        }
        return shapes | ({"guidance": (BATCH,)} if config.guidance_embeds else {})

    def __call__(
        self,
        *,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        img_ids: Tensor,
        txt_ids: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C), (B, L, joint), (B,) in 0..1, (N, 4), (L, 4) and, with guidance, (B,) on every device ->
        velocity (B, N, C), replicated over sp and tp."""
        sequences = sequences_of(self._device, self._config, img_ids, txt_ids)
        with self._device.module("time_guidance_embed"):
            silu_time = F.silu(self._conditioning(timestep, guidance, hidden_states))
        spatial, prompt = self._embedders(hidden_states, encoder_hidden_states, sequences)
        chunks = self._modulations(silu_time)
        return self._blocks(spatial, prompt, chunks, sequences, last=silu_time).contiguous()

    def _conditioning(self, timestep_B: Tensor, guidance_B: Tensor | None, like: Tensor) -> Tensor:
        """Time step in 0..1, guidance as a scale such as 4.0 -> (B, D), their embeddings summed."""
        numbers = (timestep_B, guidance_B)[: len(self._numbers)]
        parts = zip(self._numbers, numbers, strict=True)
        return sum(embed(x * _TRAIN_TIMESTEPS, like.dtype) for embed, x in parts)
