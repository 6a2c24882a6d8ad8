"""The Flux.1 transformer: packed latents, prompt, positions and time step in, velocity out.

    latents --linear--> tokens of this device --+--> double blocks --> single blocks --> norm, proj --all_gather-->
    prompt  --linear--> replicated or cut ------'

Counterpart: diffusers' ``FluxTransformer2DModel``, without ControlNet and IP-Adapter.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.stack import BlockStack, BoundBlock, bind
from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.embeddings import Conditioning, StreamEmbedders, sequences_of
from refsim.models.flux1.spec import CLASS_NAME
from refsim.models.inputs import BATCH, Dims
from refsim.runtime.device import Device


class FluxTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed.

    The prompt's tokens are held whole by every device of sp, or cut over them.
    """

    def __init__(self, weights: Weights, device: Device, config: FluxConfig) -> None:
        self._device = device
        self._config = config
        self._conditioning = Conditioning(weights, config)
        self._embedders = StreamEmbedders(weights, device, config)
        self._blocks = BlockStack(weights, device, config)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: FluxConfig) -> dict[str, Dims]:
        """Names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        axes = len(config.axes_dims_rope)
        shapes: dict[str, Dims] = {
            "hidden_states": (BATCH, "image tokens", config.in_channels),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.joint_attention_dim),
            "pooled_projections": (BATCH, config.pooled_projection_dim),
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
        pooled_projections: Tensor,
        timestep: Tensor,
        img_ids: Tensor,
        txt_ids: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C), (B, L, joint), (B, pooled), (B,) in 0..1, (N, 3), (L, 3) and, for dev, (B,) on every device ->
        velocity (B, N, C), replicated over sp and tp."""
        sequences = sequences_of(self._device, self._config, img_ids, txt_ids)
        with self._device.module("time_text_embed"):
            silu_time = F.silu(self._conditioning(timestep, pooled_projections, guidance))
        spatial, prompt = self._embedders(hidden_states, encoder_hidden_states, sequences)
        return self._blocks(spatial, prompt, silu_time, sequences).contiguous()


def bind_block(
    weights: Weights, device: Device, config: FluxConfig, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Return block ``index`` for positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(device, config, inputs["img_ids"], inputs["txt_ids"])
    return bind(weights, device, config, index, sequences)
