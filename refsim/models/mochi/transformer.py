"""The Mochi 1 transformer: video latent, prompt, its mask and time step in, velocity out.

    latent --patches of frames--> tokens of this device --+--> blocks --> norm, proj --all_gather over sp--> unpatchify
    prompt --linear to narrower rows--> whole or cut -----'
      '--pooled over its valid tokens--> added to the time step

Counterpart: diffusers' ``MochiTransformer3DModel``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.stack import BlockStack, BoundBlock, bind
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import VideoPatches
from refsim.layers.linear import ColParallelLinear
from refsim.models.inputs import BATCH, Dims
from refsim.models.mochi.config import MochiConfig
from refsim.models.mochi.embeddings import Conditioning, sequences_of
from refsim.models.mochi.spec import CLASS_NAME
from refsim.models.spec import PROMPT
from refsim.runtime.device import Device


class MochiTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: MochiConfig) -> None:
        self._device = device
        p = config.patch_size
        wide = {"in_features": (config.in_channels, p, p), "features": config.features}
        self._patches = VideoPatches(weights, device, "patch_embed.proj", patch=(1, p, p), **wide)
        pairs = config.attention_head_dim // 2
        self._frequencies_3HP = weights.take("pos_frequencies", (3, config.num_attention_heads, pairs))
        self._conditioning = Conditioning(weights, config)
        sizes = {"in_features": config.text_embed_dim, "out_features": config.pooled_projection_dim}
        self._caption = ColParallelLinear(weights, device, "time_embed.caption_proj", **sizes)
        self._blocks = BlockStack(weights, device, config)
        weights.finish(CLASS_NAME)

    @staticmethod
    def input_shapes(config: MochiConfig) -> dict[str, Dims]:
        """Return the names and shapes of the diffusers ``forward`` arguments; a dim with a name may have any size."""
        return {
            "hidden_states": (BATCH, config.in_channels, "frames", "height", "width"),
            "encoder_hidden_states": (BATCH, PROMPT, config.text_embed_dim),
            "timestep": (BATCH,),
            "encoder_attention_mask": (BATCH, PROMPT),
        }

    def check_inputs(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise ``UserError`` if the latent does not fit the patches."""
        self._patches.grid(shapes["hidden_states"][2:])

    def __call__(
        self,
        *,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        encoder_attention_mask: Tensor,
    ) -> Tensor:
        """Map (B, C, T, H, W), (B, L, text), (B,) and which of the L tokens are valid, (B, L), on all devices to
        (B, C, T, H, W), replicated over sp and tp."""
        grid = self._patches.grid(tuple(hidden_states.shape[2:]))
        mask = encoder_attention_mask.bool()
        sequences = sequences_of(self._device, self._frequencies_3HP, grid, mask)
        with self._device.module("time_embed"):
            silu_time = F.silu(self._conditioning(timestep, encoder_hidden_states, mask))
        spatial = self._patches(hidden_states, sequences.tokens)
        prompt = self._caption(sequences.place_prompt(self._device, encoder_hidden_states))
        return self._patches.unpatchify(self._blocks(spatial, prompt, silu_time, sequences), grid)


def bind_block(
    weights: Weights, device: Device, config: MochiConfig, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Return block ``index`` for the video whose patches ``grid`` counts, and a prompt that is valid as a whole."""
    frames, rows, columns = inputs["grid"].tolist()
    mask = torch.ones(inputs["prompt"].shape[:2], dtype=torch.bool)
    sequences = sequences_of(device, inputs["pos_frequencies"], (frames, rows, columns), mask)
    return bind(weights, device, config, index, sequences)
