"""Properties of views, of cutting and stacking, and of what picks or moves single values, over drawn shapes."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, only, spread

SHAPES = st.sampled_from([(1, 2, 32, 64), (2, 3, 33, 50), (2, 4, 64, 32)])


def _flat(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The values in their order, row by row."""
    result = torch.empty(shape)
    result.view(-1)[:] = torch.tensor(x.flatten().tolist())
    return result


@drawn(8, old=SHAPES, name=st.sampled_from(["reshape", "method", "rows", "view", "experimental"]))
def reshaped(t: Env, old: tuple[int, ...], name: str) -> None:
    """The first two dims in one; views only of whole tiles."""
    ttnn = t.ttnn
    only(name in ("reshape", "method") or old == (2, 4, 64, 32))
    new = (1, old[0] * old[1], *old[2:])
    x, xs = spread(t, *old)
    if name == "rows":
        out = ttnn.reshape_on_device(x, *new)
    elif name == "method":
        out = x.reshape(new)
    else:
        out = {"reshape": ttnn.reshape, "view": ttnn.view, "experimental": ttnn.experimental.view}[name](x, new)
    t.check(out, [_flat(v, new) for v in xs], ulps=0)


@drawn(6, shape=SHAPES, dim=st.integers(-5, 4), name=st.sampled_from(["clone", "move"]))
def dims_of_one(t: Env, shape: tuple[int, ...], dim: int, name: str) -> None:
    """A dim of one entry in and out again, and a copy between."""
    x, xs = spread(t, *shape)
    place = dim if dim >= 0 else dim + 5
    new = (*shape[:place], 1, *shape[place:])
    wider = t.ttnn.unsqueeze(x, dim)
    t.check(wider, [_flat(v, new) for v in xs], ulps=0)
    t.check(t.ttnn.squeeze(getattr(t.ttnn, name)(wider), place), xs, ulps=0)


@drawn(6, rows=st.sampled_from([32, 64]), heads=st.sampled_from([1, 3]), how=st.sampled_from(["expand", "broadcast"]))
def repeated(t: Env, rows: int, heads: int, how: str) -> None:
    x, xs = spread(t, 1, 1, 1, 64)
    shape = (1, heads, rows, 64)
    out = t.ttnn.expand(x, shape) if how == "expand" else t.ttnn.experimental.broadcast_to(x, t.ttnn.Shape(shape))
    t.check(out, [torch.cat([torch.cat([v] * rows, 2)] * heads, 1) for v in xs], ulps=0)


@drawn(6, dim=st.sampled_from([1, 2, 3, -1]), count=st.sampled_from([2, 4]), name=st.sampled_from(["split", "chunk"]))
def cut_and_stacked(t: Env, dim: int, count: int, name: str) -> None:
    """Equal parts, and those as entries of a new first dim."""
    x, xs = spread(t, 1, 4, 128, 128)
    size = xs[0].shape[dim] // count
    parts = t.ttnn.split(x, size, dim) if name == "split" else t.ttnn.chunk(x, count, dim)
    assert len(parts) == count
    for number, part in enumerate(parts):
        t.check(part, [v.narrow(dim, number * size, size) for v in xs], ulps=0)
    t.check(t.ttnn.stack(parts, 0), [torch.stack(v.split(size, dim)) for v in xs], ulps=0)


@drawn(6, first=st.integers(0, 5), rows=st.integers(1, 3))
def written_slices(t: Env, first: int, rows: int) -> None:
    """Some rows of a tensor replaced by those of another; the others stay."""
    ttnn = t.ttnn
    (part, parts), (target, targets) = spread(t, 1, rows, 8, 32), spread(t, 1, 8, 8, 32)
    part, target = (ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT) for x in (part, target))
    ttnn.experimental.slice_write(part, target, [0, first, 0, 0], [1, first + rows, 8, 32], [1, 1, 1, 1])

    def expected(part: Tensor, before: Tensor) -> Tensor:
        return torch.cat([before[:, :first], part, before[:, first + rows :]], 1)

    t.check(target, each(expected, parts, targets), ulps=0)


@drawn(6, columns=st.sampled_from([32, 64]), keep=st.booleans())
def best_places(t: Env, columns: int, keep: bool) -> None:
    x, _ = spread(t, 1, 2, 32, columns)
    x = t.ttnn.to_layout(t.ttnn.typecast(x, t.ttnn.float32), t.ttnn.ROW_MAJOR_LAYOUT)

    def expected(x: Tensor) -> Tensor:
        rows = [row.index(max(row)) for row in x.flatten(0, -2).tolist()]
        return torch.tensor(rows).reshape(*x.shape[:-1], *([1] if keep else []))

    t.check(t.ttnn.argmax(x, dim=-1, keepdim=keep), [expected(v) for v in t.shadow.values(x)])


@drawn(
    6,
    shape=SHAPES,
    factor=st.sampled_from([0.5, -2.0]),
    powers=st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=2, max_size=4),
)
def sums_with_factors(t: Env, shape: tuple[int, ...], factor: float, powers: list[float]) -> None:
    (a, xs), (b, ys) = spread(t, *shape), spread(t, *shape)
    t.check(t.ttnn.addalpha(a, b, factor), each(lambda x, y: x + factor * y, xs, ys), ulps=2)
    t.check(t.ttnn.subalpha(a, b, factor), each(lambda x, y: x - factor * y, xs, ys), ulps=2)
    wanted = [sum(c * x.double() ** n for n, c in enumerate(reversed(powers))).float() for x in xs]
    t.check(t.ttnn.polyval(a, powers), wanted, ulps=4)


@drawn(4, angle=st.sampled_from([30.0, -75.0, 135.0]), size=st.sampled_from([(12, 12), (9, 16)]))
def turned_planes(t: Env, angle: float, size: tuple[int, int]) -> None:
    """Bilinear interpolation of a plane is exact: each device has a plane of its own."""
    y, x = torch.meshgrid(torch.arange(float(size[0])), torch.arange(float(size[1])), indexing="ij")
    slopes = [(1.0 + i, 3.0 - i) for i in range(t.n)]
    planes = [(a * x + b * y).reshape(1, *size, 1).expand(1, *size, 32) for a, b in slopes]
    rows = torch.stack(planes).unflatten(0, t.shape)
    whole = torch.cat([torch.cat(list(row), 1) for row in rows], 0)
    held = t.put(whole.contiguous(), (0, 1), dtype="float32", layout="ROW_MAJOR")
    out: Any = t.ttnn.rotate(held, angle, interpolation_mode="bilinear")
    turn, middle = math.radians(angle), ((size[0] - 1) / 2, (size[1] - 1) / 2)
    column = math.cos(turn) * (x - middle[1]) - math.sin(turn) * (y - middle[0]) + middle[1]
    row = math.sin(turn) * (x - middle[1]) + math.cos(turn) * (y - middle[0]) + middle[0]
    inside = (row >= 0) & (row <= size[0] - 1) & (column >= 0) & (column <= size[1] - 1)
    for value, (a, b) in zip(t.shadow.values(out), slopes, strict=True):
        torch.testing.assert_close(value[0, :, :, 0][inside], (a * column + b * row)[inside], rtol=1e-4, atol=2e-3)


CASES = collect(globals())
