"""The Qwen-Image transformer: packed latents, prompt with its mask, time step and image sizes in, velocity out.

    latents --linear--> tokens of this device --------------+--> double blocks --> norm, proj --all_gather-->
    prompt  --RMSNorm--linear--> replicated or cut ---------'

Counterpart: diffusers' ``QwenImageTransformer2DModel``, also of Edit and Edit-2511, without ControlNet.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.stack import BlockStack, BoundBlock, bind
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TimestepEmbedding
from refsim.layers.linear import ColParallelLinear
from refsim.layers.norm import RMSNorm
from refsim.models.inputs import BATCH, Dims
from refsim.models.qwenimage.config import QwenImageConfig
from refsim.models.qwenimage.embeddings import sequences_of
from refsim.models.qwenimage.spec import CLASS_NAME
from refsim.parallel.sequence import cut_tokens
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_EPS = 1e-6
_TRAIN_TIMESTEPS = 1000


class QwenImageTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: QwenImageConfig) -> None:
        self._device = device
        self._config = config
        d = config.features
        text = config.joint_attention_dim
        time = "time_text_embed.timestep_embedder"
        self._time = TimestepEmbedding(weights, time, features=d, scale=_TRAIN_TIMESTEPS)
        self._txt_norm = RMSNorm(weights, device, "txt_norm", features=text, eps=_EPS)
        self._img_in, self._txt_in = (
            ColParallelLinear(weights, device, name, in_features=size, out_features=d)
            for name, size in (("img_in", config.in_channels), ("txt_in", text))
        )
        self._blocks = BlockStack(weights, device, config)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: QwenImageConfig) -> dict[str, Dims]:
        """Names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        return {
            "hidden_states": (BATCH, "image tokens", config.in_channels),
            "encoder_hidden_states": (BATCH, "prompt tokens", config.joint_attention_dim),
            "encoder_hidden_states_mask": (BATCH, "prompt tokens"),
            "timestep": (BATCH,),
            "img_shapes": ("images", 3),
        }

    def __call__(
        self,
        *,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor,
        timestep: Tensor,
        img_shapes: Tensor,
    ) -> Tensor:
        """(B, N, C), (B, L, joint), (B, L), (B,) in 0..1 and (images, 3), the same for all samples, on every device ->
        velocity (B, N, patch features), replicated over sp and tp."""
        sequences = sequences_of(
            self._device, self._config, img_shapes, hidden_states.shape[1], encoder_hidden_states_mask
        )
        with self._device.module("time_text_embed"):
            silu_time = F.silu(self._embedded(timestep, hidden_states.dtype))
        spatial = cut_tokens(self._device, MeshTensor(hidden_states), sequences.tokens, dim=1)
        prompt = sequences.place_prompt(self._device, encoder_hidden_states)
        spatial = self._img_in(spatial)
        prompt = self._txt_in(self._txt_norm.of_rows(prompt))
        last = silu_time[:, 0] if self._config.zero_cond_t else silu_time
        return self._blocks(spatial, prompt, silu_time, sequences, last=last).contiguous()

    def _embedded(self, timestep_B: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the time step's vector (B, D); with ``zero_cond_t`` (B, 2, D), behind it that of time step 0."""
        if self._config.zero_cond_t:
            timestep_B = torch.stack([timestep_B, timestep_B * 0], -1)
        return self._time(timestep_B, dtype)


def bind_block(
    weights: Weights, device: Device, config: QwenImageConfig, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Return block ``index`` for pictures of ``img_shapes`` and the prompt's ``encoder_hidden_states_mask``."""
    images_M3 = inputs["img_shapes"]
    tokens = int(images_M3.prod(-1).sum())
    sequences = sequences_of(device, config, images_M3, tokens, inputs["encoder_hidden_states_mask"])
    return bind(weights, device, config, index, sequences)
