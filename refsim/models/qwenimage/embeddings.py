"""What goes into Qwen-Image's blocks besides the two streams: places, the prompt's mask, and the time step.

    images one after the other, each row by row     target | condition image | ...     prompt
    frame      0, 1, ... of the image                                                   M + 0, 1, ... in all three
    row, column   centred: -ceil(n / 2) ... floor(n / 2) - 1                            M the largest half of a side
    modulated by  the time step | time step 0 (Edit-2511's ``zero_cond_t``)             the time step

A prompt is padded to the longest of a batch; its mask may have any pattern, and places count masked tokens too.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.layers.rope import text_angles
from refsim.models.qwenimage.config import QwenImageConfig, image_sizes
from refsim.runtime.device import Device

_THETA = 10000.0
_SHAPE = 3
"""Frames, rows and columns of tokens."""


def image_positions(img_shapes: list[list[int]]) -> tuple[Tensor, Tensor, int]:
    """Return the places (N, 3) of all images' tokens, the image of each, (N,), and where the prompt begins."""
    places = []
    numbers = []
    for number, (frames, rows, columns) in enumerate(img_shapes):
        sides = (
            number + torch.arange(frames),
            torch.arange(rows) - (rows - rows // 2),
            torch.arange(columns) - (columns - columns // 2),
        )
        places.append(torch.stack([side.flatten() for side in torch.meshgrid(*sides, indexing="ij")], -1))
        numbers.append(torch.full((frames * rows * columns,), number))
    return torch.cat(places), torch.cat(numbers), max(side for _, *sides in img_shapes for side in sides) // 2


def sequences_of(
    device: Device, config: QwenImageConfig, img_shapes_M3: Tensor, tokens: int, mask_BL: Tensor
) -> Sequences:
    """Cut the images' ``tokens`` and the prompt; tables and modulation are those of this device's tokens."""
    places_N3, numbers_N, first = image_positions(image_sizes(img_shapes_M3, tokens))
    text_L3 = (first + torch.arange(mask_BL.shape[1]))[:, None].expand(-1, _SHAPE)

    def angles(places_N3: Tensor) -> Tensor:  # in fp32, as diffusers computes them
        axes = zip(places_N3.unbind(-1), config.axes_dims_rope, strict=True)
        return torch.cat([text_angles(*axis, _THETA) for axis in axes], -1)

    sequences = Sequences.of(device, tokens, mask_BL.shape[1]).turned(device, places_N3, text_L3, angles)
    picks_1N = sequences.tokens.cut((numbers_N > 0).long()[None], device.groups["sp"].index, dim=1)
    return replace(sequences, prompt_mask=mask_BL.bool(), modulate_index=picks_1N if config.zero_cond_t else None)
