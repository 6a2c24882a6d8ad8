"""Pooling, rotation and sampling of images whose values differ from device to device, against torch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, only, spread

KERNELS = st.sampled_from([(2, 2), (3, 3), (3, 2), (1, 3)])
SIZES = st.sampled_from([(8, 8), (7, 9), (10, 6)])
STRIDES = st.sampled_from([(1, 1), (2, 2), (2, 1)])


def _images(t: Env, n: int, h: int, w: int, c: int) -> tuple[Any, list[Tensor]]:
    """Channels last on the mesh, channels first in torch."""
    x, parts = spread(t, 1, 1, n * h * w, c)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    return x, [part.reshape(n, h, w, c).permute(0, 3, 1, 2) for part in parts]


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(1, 1, -1, x.shape[1])


@drawn(10, size=SIZES, kernel=KERNELS, stride=STRIDES, padded=st.booleans(), ceil=st.booleans())
def max_pools(t: Env, size: tuple[int, int], kernel: tuple, stride: tuple, padded: bool, ceil: bool) -> None:
    x, images = _images(t, 2, *size, 32)
    padding = tuple(k // 2 for k in kernel) if padded else (0, 0)
    out = t.ttnn.max_pool2d(x, 2, *size, 32, list(kernel), list(stride), list(padding), [1, 1], ceil)
    t.check(out, [_last(F.max_pool2d(i, kernel, stride, padding, ceil_mode=ceil)) for i in images])


def max_pool_of_four_sides(t: Env) -> None:
    """Top, bottom, left and right differ; two rows of the window lie apart."""
    x, images = _images(t, 1, 8, 8, 32)
    out = t.ttnn.max_pool2d(x, 1, 8, 8, 32, [2, 3], [1, 2], [0, 1, 1, 0], [2, 1])
    framed = [F.pad(i, (1, 0, 0, 1), value=-math.inf) for i in images]
    t.check(out, [_last(F.max_pool2d(i, (2, 3), (1, 2), dilation=(2, 1))) for i in framed])


def last_window_behind_the_image(t: Env) -> None:
    """Rounding up, a window that would begin in the padding after the image is left out."""
    x, images = _images(t, 1, 7, 9, 32)
    out = t.ttnn.max_pool2d(x, 1, 7, 9, 32, [2, 2], [2, 2], [1, 1], [1, 1], True)
    t.check(out, [_last(F.max_pool2d(i, 2, 2, 1, ceil_mode=True)) for i in images])
    out = t.ttnn.avg_pool2d(x, 1, 7, 9, 32, [2, 2], [2, 2], [1, 1], True)
    t.check(out, [_last(F.avg_pool2d(i, 2, 2, 1, True)) for i in images], ulps=2)


def max_pool_indices(t: Env) -> None:
    """Where the largest values were: row * width + column of the image without its padding."""
    x, images = _images(t, 1, 8, 8, 32)
    values, places = t.ttnn.max_pool2d(x, 1, 8, 8, 32, [3, 3], [2, 2], [1, 1], [1, 1], return_indices=True)
    wanted = [F.max_pool2d(i, 3, 2, 1, return_indices=True) for i in images]
    t.check(values, [_last(value) for value, _ in wanted])
    t.check(places, [_last(place) for _, place in wanted])


def max_pool_indices_of_four_sides(t: Env) -> None:
    """A border on one side only is no part of a place."""
    x, images = _images(t, 1, 8, 10, 32)
    _, places = t.ttnn.max_pool2d(x, 1, 8, 10, 32, [3, 3], [1, 1], [1, 0, 0, 1], [1, 1], return_indices=True)
    framed = [F.pad(i, (0, 1, 1, 0), value=-math.inf) for i in images]
    found = [F.max_pool2d(f, 3, 1, return_indices=True)[1] for f in framed]
    t.check(places, [_last((place // 11 - 1) * 10 + place % 11) for place in found])


@drawn(12, size=SIZES, kernel=KERNELS, stride=STRIDES, padded=st.booleans(), ceil=st.booleans(),
       count=st.booleans(), divisor=st.sampled_from([None, None, 5]))  # fmt: skip
def avg_pools(
    t: Env,
    size: tuple[int, int],
    kernel: tuple,
    stride: tuple,
    padded: bool,
    ceil: bool,
    count: bool,
    divisor: int | None,
) -> None:
    x, images = _images(t, 2, *size, 32)
    padding = tuple(k // 2 for k in kernel) if padded else (0, 0)
    out = t.ttnn.avg_pool2d(x, 2, *size, 32, list(kernel), list(stride), list(padding), ceil, count, divisor)
    wanted = [F.avg_pool2d(i, kernel, stride, padding, ceil, count, divisor) for i in images]
    t.check(out, [_last(w) for w in wanted], ulps=2)


def avg_pools_of_four_sides(t: Env) -> None:
    """Top, bottom, left and right differ; a window that reaches over an end counts what it covers, or what it means."""
    x, images = _images(t, 1, 8, 10, 32)
    for count in (True, False):
        out = t.ttnn.avg_pool2d(x, 1, 8, 10, 32, [2, 3], [1, 2], [0, 1, 1, 0], False, count)
        framed = [F.pad(i, (1, 0, 0, 1)) for i in images]
        inside = F.pad(torch.ones(1, 1, 8, 10), (1, 0, 0, 1), value=float(count))
        t.check(out, [_last(F.avg_pool2d(f, (2, 3), (1, 2)) / F.avg_pool2d(inside, (2, 3), (1, 2))) for f in framed])


def global_pools(t: Env) -> None:
    """One mean of a whole image; ttnn's own function is made of other operations."""
    x, parts = spread(t, 2, 6, 10, 64)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    t.check(t.ttnn.global_avg_pool2d(x), [p.mean((1, 2), keepdim=True) for p in parts], ulps=2)


def adaptive_pools(t: Env) -> None:
    """Windows that overlap, but are all of one size; ttnn itself refuses others."""
    ttnn = t.ttnn
    x, images = _images(t, 1, 7, 8, 32)
    averages = ttnn.adaptive_avg_pool2d(x, 1, 7, 8, 32, [3, 4])
    t.check(averages, [_last(F.adaptive_avg_pool2d(i, (3, 4))) for i in images], ulps=2)
    largest = ttnn.adaptive_max_pool2d(x, 1, 7, 8, 32, [3, 2])
    t.check(largest, [_last(F.adaptive_max_pool2d(i, (3, 2))) for i in images])


def quarter_turns(t: Env) -> None:
    """Right angles move pixels and change none: counter-clockwise, as numpy turns."""
    x, parts = spread(t, 2, 9, 9, 32)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    for quarters in (1, 2, -1):
        for mode in ("nearest", "bilinear"):
            out = t.ttnn.rotate(x, 90.0 * quarters, interpolation_mode=mode)
            t.check(out, [torch.rot90(p, quarters, (1, 2)) for p in parts], ulps=2)


def turned_around_a_corner(t: Env) -> None:
    """Around the first pixel by 90 degrees everything but the first column leaves, and ``fill`` comes in."""
    x, parts = spread(t, 1, 4, 4, 32)
    x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    wanted = []
    for part in parts:
        turned = torch.full_like(part, 2.0)
        turned[:, 0] = part[:, :, 0]  # what was below is now to the right
        wanted.append(turned)
    t.check(t.ttnn.rotate(x, 90.0, center=(0.5, 0.5), fill=2.0), wanted)


def turned_by_any_angle(t: Env) -> None:
    """A plane stays a plane, around any center: bilinear interpolation of x + 3 y is exact."""
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    plane = (x + 3 * y).view(1, 16, 16, 1).expand(1, 16, 16, 32).contiguous()
    image = t.put(plane, dtype="float32", layout="ROW_MAJOR")
    for middle_x, middle_y in ((8.0, 8.0), (4.0, 11.5)):
        _turned(t, image, x, y, middle_x - 0.5, middle_y - 0.5)


def _turned(t: Env, image: Any, x: torch.Tensor, y: torch.Tensor, middle_x: float, middle_y: float) -> None:
    """Compare with pixels turned around the place of one: half a pixel beside what ttnn and torchvision are told."""
    center = {} if middle_x == middle_y == 7.5 else {"center": (middle_x + 0.5, middle_y + 0.5)}
    out = t.ttnn.rotate(image, 30.0, interpolation_mode="bilinear", fill=2.0, **center)
    angle = math.radians(30.0)
    column = math.cos(angle) * (x - middle_x) - math.sin(angle) * (y - middle_y) + middle_x
    row = math.sin(angle) * (x - middle_x) + math.cos(angle) * (y - middle_y) + middle_y
    inside = (row >= 0) & (row <= 15) & (column >= 0) & (column <= 15)
    got = t.shadow.values(out)[0][0, :, :, 0]
    torch.testing.assert_close(got[inside], (column + 3 * row)[inside], rtol=1e-4, atol=1e-3)
    near_row, near_column = row.clamp(0, 15), column.clamp(0, 15)
    beyond = (row - near_row).abs() + (column - near_column).abs()
    edge = (beyond > 0) & (beyond < 1) & ((row == near_row) | (column == near_column))  # between a border and ``fill``
    assert edge.sum() > 10
    nearest = t.shadow.values(t.ttnn.rotate(image, 30.0, **center))[0][0, :, :, 0]
    whole = torch.floor(column + 0.5) + 3 * torch.floor(row + 0.5)
    assert torch.equal(nearest[inside], whole[inside])
    wanted = (1 - beyond) * (near_column + 3 * near_row) + beyond * 2.0
    torch.testing.assert_close(got[edge], wanted[edge], rtol=1e-4, atol=1e-3)


@drawn(6, corners=st.booleans(), sets=st.sampled_from([1, 2]), channels=st.booleans())
def sampled_by_grids(t: Env, corners: bool, sets: int, channels: bool) -> None:
    """Places inside and outside; two places in a row become two columns, or lie side by side in the channels."""
    only(sets > 1 or not channels)
    ttnn = t.ttnn
    x, parts = spread(t, 2, 6, 8, 32)
    x = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
    grid = torch.rand(2, 4, 5 * sets, 2, generator=t.random) * 2.4 - 1.2
    on_device = t.put(grid.reshape(2, 4, 5, 2 * sets), dtype="float32", layout="ROW_MAJOR")
    out = ttnn.grid_sample(x, on_device, align_corners=corners, batch_output_channels=channels)
    shape = (2, 4, 5, 32 * sets) if channels else (2, 4, 5 * sets, 32)
    wanted = [_sampled(part, grid, align_corners=corners).reshape(shape) for part in parts]
    t.check(out, wanted, ulps=2)


def _sampled(image: Tensor, grid: Tensor, **options: Any) -> Tensor:
    return F.grid_sample(image.permute(0, 3, 1, 2), grid, **options).permute(0, 2, 3, 1)


@drawn(6, mode=st.sampled_from(["bilinear", "nearest"]), corners=st.booleans())
def sampled_by_prepared_grids(t: Env, mode: str, corners: bool) -> None:
    """ttnn's host function turns places into pixels, and into weights of bfloat16."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 6, 8, 32)
    x = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
    grid = torch.rand(1, 4, 5, 2, generator=t.random) * 2.4 - 1.2
    host = ttnn.from_torch(grid, dtype=ttnn.float32, layout=ttnn.ROW_MAJOR_LAYOUT)
    options = dict(mode=mode, align_corners=corners)
    prepared = ttnn.prepare_grid_sample_grid(host, [1, 6, 8, 32], output_dtype=ttnn.bfloat16, **options)
    out = ttnn.grid_sample(x, ttnn.to_device(prepared, t.device), use_precomputed_grid=True, **options)
    for value, part in zip(t.shadow.values(out), parts, strict=True):
        torch.testing.assert_close(value, _sampled(part, grid, **options), rtol=0.02, atol=0.02)


CASES = collect(globals())
