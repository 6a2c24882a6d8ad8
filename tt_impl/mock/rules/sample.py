"""Images read at other places: rotation and sampling by a grid. Channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.storage.values import Shards


def _pixels(image: Tensor, row: Tensor, column: Tensor, fill: float) -> Tensor:
    """Read pixels [N, ..., C] of an image [N, H, W, C] at whole rows and columns [N, ...]; ``fill`` outside."""
    height, width = image.shape[1:3]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    batch = torch.arange(image.shape[0]).view(-1, *[1] * (row.dim() - 1))
    pixels = image[batch, row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return torch.where(inside.unsqueeze(-1), pixels, torch.full((), fill))


def _between(image: Tensor, row: Tensor, column: Tensor, fill: float) -> Tensor:
    """Read at any places: the four pixels around, weighted by how near they are."""
    top = row.floor()
    left = column.floor()
    result = torch.zeros(1)
    for down in (0, 1):
        for beside in (0, 1):
            weight = (1 - (row - top - down).abs()) * (1 - (column - left - beside).abs())
            result = result + weight.unsqueeze(-1) * _pixels(image, (top + down).long(), (left + beside).long(), fill)
    return result


@per_device("rotate")
def rotate(
    input_tensor: Tensor,
    angle: float,
    *,
    center: Sequence[float] | None = None,
    fill: float = 0.0,
    expand: bool = False,
    interpolation_mode: str = "nearest",
) -> Tensor:
    """Turn [N, H, W, C] counter-clockwise by ``angle`` degrees around ``center`` (x, y), ``fill`` from outside.

    The center is counted from the image's upper left corner, as torchvision counts: the first pixel lies at (0.5, 0.5).
    """
    batch, height, width = input_tensor.shape[:3]
    center_x, center_y = (place - 0.5 for place in center or (width / 2, height / 2))
    sine = math.sin(math.radians(angle))
    cosine = math.cos(math.radians(angle))
    y = torch.arange(height, dtype=torch.float64).view(1, -1, 1) - center_y
    x = torch.arange(width, dtype=torch.float64).view(1, 1, -1) - center_x
    column = (cosine * x - sine * y + center_x).expand(batch, -1, -1)
    row = (sine * x + cosine * y + center_y).expand(batch, -1, -1)
    if interpolation_mode == "nearest":
        return _pixels(input_tensor, (row + 0.5).floor().long(), (column + 0.5).floor().long(), fill)
    return _between(input_tensor, row.float(), column.float(), fill)


@across("grid_sample")
def grid_sample(
    call: Call,
    input_tensor: Shards,
    grid: Shards,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    use_precomputed_grid: bool = False,
    batch_output_channels: bool = False,
) -> list[Tensor]:
    """Read [N, H, W, C] at [N, H', W', 2*K] places (x, y) from -1 to 1: [N, H', W'*K, C] or [N, H', W', K*C].

    A precomputed grid has six numbers a place, as ``ttnn.prepare_grid_sample_grid`` makes them: row and column above
    and left of it, 16-bit integers where bfloat16 are expected, and the weights of the four pixels around; for
    ``nearest`` only row and column, -1 outside.
    """
    if mode not in ("bilinear", "nearest"):
        raise call.unsupported(f"mode='{mode}'")
    shape = tuple(call.outputs[0].shape)

    def sampled(image: Tensor, places: Tensor) -> Tensor:
        flat = places.reshape(*places.shape[:2], -1, 6 if use_precomputed_grid and mode == "bilinear" else 2)
        if use_precomputed_grid:
            result = _precomputed(image, flat)
        else:
            result = F.grid_sample(
                image.permute(0, 3, 1, 2), flat.float(), mode, "zeros", align_corners=align_corners
            ).permute(0, 2, 3, 1)
        return result.reshape(shape)  # K places in a row: as columns, or side by side in channels

    raw = [stored.reshape(grid.shape) for stored in grid.stored] if use_precomputed_grid else grid
    return call.each(sampled, input_tensor, raw)


def _precomputed(image: Tensor, places: Tensor) -> Tensor:
    """Read pixels [N, H', W', C] by a precomputed grid [N, H', W', 6 or 2] in bfloat16."""
    row, column = places.contiguous().view(torch.int16).long()[..., :2].unbind(-1)
    if places.shape[-1] == 2:
        return _pixels(image, row, column, 0.0)
    result = torch.zeros(1)
    for number, (down, beside) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        weight = places[..., 2 + number].float().unsqueeze(-1)
        result = result + weight * _pixels(image, row + down, column + beside, 0.0)
    return result
