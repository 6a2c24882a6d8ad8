"""Places of both streams and the time step of each token; counterpart of ``refsim.models.qwenimage.embeddings``."""

from __future__ import annotations

from dataclasses import replace

import torch

from refsim.models.qwenimage.config import QwenImageConfig, image_sizes
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.rope import rotary_angles
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import put_tokens


def image_positions(img_shapes: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the places (N, 3) of all images' tokens, the image of each, (N,), and where the prompt begins."""
    places = []
    numbers = []
    for number, (frames, rows, columns) in enumerate(img_shapes):
        token = torch.arange(frames * rows * columns)
        row = token // columns % rows - (rows + 1) // 2
        column = token % columns - (columns + 1) // 2
        places.append(torch.stack([number + token // (rows * columns), row, column], -1))
        numbers.append(torch.full_like(token, number))
    longest = max(max(rows, columns) for _, rows, columns in img_shapes)
    return torch.cat(places), torch.cat(numbers), longest // 2


def sequences_of(
    ctx: Context, config: QwenImageConfig, img_shapes_M3: torch.Tensor, tokens: int, prompt_L: torch.Tensor
) -> Sequences:
    """Of ``tokens`` of all images and of a prompt of which those at the places ``prompt_L`` are there."""
    places_N3, numbers_N, first = image_positions(image_sizes(img_shapes_M3, tokens))
    text_L3 = (first + prompt_L)[:, None].expand(-1, 3)

    def angles(places_N3: torch.Tensor) -> torch.Tensor:
        return rotary_angles(places_N3.unbind(-1), config.axes_dims_rope)

    sequences = Sequences.of(ctx, tokens, len(prompt_L)).turned(ctx, places_N3, text_L3, angles)
    if not config.zero_cond_t:
        return sequences
    return replace(sequences, modulate_index=put_tokens(ctx, (numbers_N > 0).float()[None, :, None]))
