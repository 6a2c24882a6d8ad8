"""The Mochi 1 transformer: video latent, prompt, its mask and time step in, velocity out.

    latent --patches of frames--> tokens of this device --+--> blocks --> norm, proj --all_gather over sp--> unpatchify
    prompt --linear to narrower rows--> whole or cut -----'
      '--pooled over its valid tokens--> added to the time step

Counterpart: diffusers' ``MochiTransformer3DModel``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.linear import ColParallelLinear
from refsim.layers.modulation import ModulatedOutput
from refsim.models.inputs import BATCH, Dims
from refsim.models.mochi.config import MochiConfig
from refsim.models.mochi.embeddings import Conditioning, Grid, VideoPatches, learned_rotary
from refsim.models.mochi.spec import CLASS_NAME
from refsim.models.spec import PROMPT
from refsim.runtime.device import Device

_EPS = 1e-6


class MochiTransformer:
    """Built from a checkpoint's weights, this device's slices only; every key must be consumed."""

    def __init__(self, weights: Weights, device: Device, config: MochiConfig) -> None:
        self._device = device
        self._config = config
        d = config.features
        self._patches = VideoPatches(weights, device, config)
        self._frequencies_3HP = weights.take(
            "pos_frequencies", (3, config.num_attention_heads, config.attention_head_dim // 2)
        )
        self._conditioning = Conditioning(weights, config)
        self._caption = ColParallelLinear(
            weights,
            device,
            "time_embed.caption_proj",
            in_features=config.text_embed_dim,
            out_features=config.pooled_projection_dim,
        )
        self._blocks = [_block(weights, device, config, i) for i in range(config.num_layers)]
        channels = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, device, features=d, out_features=channels, eps=_EPS)
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
        self._config.grid(shapes["hidden_states"][2:])

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
        grid = self._config.grid(tuple(hidden_states.shape[2:]))
        mask = encoder_attention_mask.bool()
        sequences = _sequences(self._device, self._frequencies_3HP, grid, mask)
        with self._device.module("time_embed"):
            silu_time = F.silu(self._conditioning(timestep, encoder_hidden_states, mask))
        spatial = self._patches(hidden_states, grid, sequences.tokens)
        prompt = self._caption(sequences.place_prompt(self._device, encoder_hidden_states))
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            before = spatial, prompt
            spatial, prompt = block(spatial, prompt, silu_time, sequences=sequences)
            self._device.observe_added(f"transformer_blocks.{index}", before, (spatial, prompt))
        return self._patches.unpatchify(self._out(spatial, silu_time, sequences.tokens), grid)


def _block(weights: Weights, device: Device, config: MochiConfig, index: int) -> DoubleStreamBlock:
    return DoubleStreamBlock(weights, device, config.block(index), f"transformer_blocks.{index}")


def _sequences(device: Device, frequencies_3HP: Tensor, grid: Grid, mask_BL: Tensor) -> Sequences:
    """Return how a video of ``grid`` and prompts with this mask are cut, and how the video's heads are turned."""
    sequences = Sequences.of(device, math.prod(grid), mask_BL.shape[1])
    rotary = learned_rotary(device, frequencies_3HP, grid, sequences.tokens)
    return replace(sequences, rotary=rotary, prompt_mask=mask_BL)


def bind_block(
    weights: Weights, device: Device, config: MochiConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Return block ``index`` for the video whose patches ``grid`` counts, and a prompt that is valid as a whole."""
    frames, rows, columns = inputs["grid"].tolist()
    mask = torch.ones(inputs["prompt"].shape[:2], dtype=torch.bool)
    sequences = _sequences(device, inputs["pos_frequencies"], (frames, rows, columns), mask)
    return partial(_block(weights, device, config, index), sequences=sequences)
