"""Corners: ties, images that are not square, five dims, float32, a device unlike its replicas, equal addresses."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import each, spread


def ties(t: Env) -> None:
    """Of equal values the first is the largest; halves are rounded to the even number."""
    ttnn = t.ttnn
    x = torch.tensor([3.0, 7.0, 7.0, -1.0] * 8).repeat(1, 1, 32, 1)
    t.check(ttnn.argmax(t.put(x, layout="ROW_MAJOR"), dim=3), torch.ones(1, 1, 32, dtype=torch.int64))
    halves = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.0]).repeat(1, 1, 32, 4)
    t.check(ttnn.round(t.put(halves)), halves.round())
    values, places = ttnn.topk(t.put(x.repeat(1, 1, 1, 2)), 32, dim=-1)
    t.check(values, torch.tensor([7.0] * 32).expand(1, 1, 32, 32))
    assert all((where % 4 != 0).all() and (where % 4 != 3).all() for where in t.shadow.values(places))


def numbers_beyond(t: Env) -> None:
    """A float of Python is a float of C to ttnn: infinity beyond its range, as is what bfloat16 has not."""
    ttnn = t.ttnn
    lowest = torch.finfo(torch.float32).min
    x = {name: t.put(torch.ones(1, 1, 32, 32), dtype=name) for name in ("bfloat16", "float32")}
    for dtype, number, wanted in (
        ("bfloat16", -sys.float_info.max, -torch.inf),
        ("bfloat16", lowest, -torch.inf),
        ("float32", -sys.float_info.max, -torch.inf),
        ("float32", lowest, lowest),
    ):
        of = {"dtype": getattr(ttnn, dtype), "layout": ttnn.TILE_LAYOUT, "device": t.device}
        for made in (
            ttnn.full((1, 1, 32, 32), number, **of),
            ttnn.full_like(x[dtype], number),
            ttnn.fill(x[dtype], number),
            ttnn.where(x[dtype], number, 0.0),
            ttnn.pad(x[dtype], [(0, 0), (0, 0), (0, 0), (0, 32)], value=number),
        ):
            assert {float(value[0, 0, 0, -1]) for value in t.shadow.values(made)} == {wanted}, (dtype, number)


def zero_times_infinity(t: Env) -> None:
    """Zero where both operands and the result have 16 bits, not a number where one of them has 32."""
    zeros, infinite = torch.zeros(1, 1, 32, 32), torch.full((1, 1, 32, 32), torch.inf)
    for a, b, wanted in (
        ("bfloat16", "bfloat16", 0.0),
        ("float32", "float32", torch.nan),
        ("bfloat16", "float32", torch.nan),
        ("float32", "bfloat16", torch.nan),
    ):
        out = t.ttnn.multiply(t.put(zeros, dtype=a), t.put(infinite, dtype=b))
        t.check(out, torch.full((1, 1, 32, 32), wanted))


def images_that_are_not_square(t: Env) -> None:
    """Six rows of ten pixels, with more padding on one side than on the other."""
    ttnn = t.ttnn
    image, weight = t.rand(2, 6, 10, 32), t.rand(32, 32, 3, 2, scale=0.1)
    rows = t.put(image.reshape(1, 1, -1, 32), layout="ROW_MAJOR")
    size = dict(batch_size=2, stride=(1, 2), padding=(2, 0, 1, 1), dilation=(1, 1))
    out = ttnn.conv2d(
        input_tensor=rows, weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16), device=t.device, groups=1,
        in_channels=32, out_channels=32, input_height=6, input_width=10, kernel_size=(3, 2), **size,
    )  # fmt: skip
    wanted = F.conv2d(F.pad(image.permute(0, 3, 1, 2), (1, 1, 2, 0)), weight, stride=(1, 2)).permute(0, 2, 3, 1)
    t.check(out, wanted.reshape(1, 1, -1, 32), ulps=2)
    pooled = ttnn.max_pool2d(
        input_tensor=rows, input_h=6, input_w=10, channels=32, kernel_size=[3, 2], **size | {"padding": (1, 0, 1, 1)}
    )
    framed = F.pad(image.permute(0, 3, 1, 2), (1, 1, 1, 0), value=-torch.inf)
    t.check(pooled, F.max_pool2d(framed, (3, 2), (1, 2)).permute(0, 2, 3, 1).reshape(1, 1, -1, 32))
    wide = ttnn.upsample(t.put(image, layout="ROW_MAJOR"), [2, 3])
    t.check(wide, image.repeat_interleave(2, 1).repeat_interleave(3, 2))


def five_dims(t: Env) -> None:
    ttnn = t.ttnn
    x, y = t.rand(2, 3, 2, 33, 50), t.rand(2, 3, 2, 33, 50)
    a, b = t.put(x), t.put(y)
    for out, wanted in (
        (ttnn.add(a, b), x + y),
        (ttnn.multiply(a, 0.5), x * 0.5),
        (ttnn.permute(a, (0, 2, 1, 4, 3)), x.permute(0, 2, 1, 4, 3)),
        (ttnn.reshape(a, (6, 2, 33, 50)), x.reshape(6, 2, 33, 50)),
        (ttnn.slice(a, [0, 1, 0, 0, 0], [2, 3, 1, 33, 50]), x[:, 1:3, :1]),
        (ttnn.concat([a, b], 1), torch.cat([x, y], 1)),
        (ttnn.softmax(a, dim=-1), x.softmax(-1)),
        (ttnn.sum(a, dim=2, keepdim=True), x.sum(2, keepdim=True)),
    ):
        t.check(out, wanted, ulps=2)


def float32_is_not_rounded(t: Env) -> None:
    """Values that bfloat16 has not: only an operation that rounds them on the way would be off by more than an ulp."""
    ttnn = t.ttnn
    x, y = (torch.linspace(-1, 1, 64 * 96).reshape(1, 1, 64, 96) + shift for shift in (1e-4, 0.3))
    a, b = (t.put(value, dtype="float32") for value in (x, y))
    for out, wanted in (
        (ttnn.add(a, b), x + y),
        (ttnn.subtract(a, b), x - y),
        (ttnn.matmul(a, b, transpose_b=True), x @ y.mT),
        (ttnn.transpose(a, 2, 3), x.mT),
        (ttnn.concat([a, b], 3), torch.cat([x, y], 3)),
        (ttnn.mean(a, dim=3, keepdim=True), x.mean(3, keepdim=True)),
        (ttnn.all_gather(a, 3, cluster_axis=1, topology=t.linear), torch.cat([x] * t.shape[1], 3)),
    ):
        assert out.dtype == ttnn.float32
        t.check(out, wanted, ulps=4)


def one_device_unlike_its_replicas(t: Env) -> None:
    """What devices that hold the same share of work is not what the one that differs holds."""
    ttnn = t.ttnn
    parts = [t.rand(1, 1, 32, 64)] * t.n
    parts[3] = t.rand(1, 1, 32, 64)
    stacked = torch.stack(parts).unflatten(0, t.shape)
    x = t.put(torch.cat([torch.cat([*row], 1) for row in stacked], 0), (0, 1))
    t.check(ttnn.exp(x), each(torch.exp, parts))
    t.check(ttnn.softmax(x, dim=-1), each(lambda x: x.softmax(-1), parts), ulps=2)
    t.check(ttnn.add(x, x), each(lambda x: x + x, parts))
    for axis in (0, 1):
        gathered: list[Any] = [None] * t.n
        summed: list[Any] = [None] * t.n
        for group in t.groups(axis):
            for device in group:
                gathered[device] = torch.cat([parts[other] for other in group], 2)
                summed[device] = sum(parts[other] for other in group)
        t.check(ttnn.all_gather(x, 2, cluster_axis=axis, topology=t.linear), gathered)
        t.check(ttnn.all_reduce(x, cluster_axis=axis, topology=t.linear), summed, ulps=2)


def clones_beside_what_is_written(t: Env) -> None:
    """An operation in place changes its tensor, and no copy of it."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 32, 64)
    y, others = spread(t, 1, 1, 32, 64)
    writes = {
        "add_": lambda a, b: a + b,
        "subtract_": lambda a, b: a - b,
        "multiply_": lambda a, b: a * b,
        "rsub_": lambda a, b: b - a,
        "squared_difference_": lambda a, b: (a - b) ** 2,
        "gt_": lambda a, b: (a > b).float(),
        "lt_": lambda a, b: (a < b).float(),
        "logical_and_": lambda a, b: ((a != 0) & (b != 0)).float(),
    }
    for name, function in writes.items():
        target, copy, view = ttnn.clone(x), ttnn.clone(x), None
        beside = ttnn.clone(target)
        view = ttnn.reshape(target, (1, 32, 64))
        getattr(ttnn, name)(target, y)
        wanted: list[Tensor] = each(function, parts, others)
        t.check(target, wanted)
        t.check(view, each(lambda value: value.reshape(1, 32, 64), wanted))
        for untouched in (x, copy, beside):
            t.check(untouched, parts)


CASES = collect(globals())
