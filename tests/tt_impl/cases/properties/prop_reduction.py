"""Reductions, scans and orders against sums and comparisons written down: dims, keepdim, dtypes, different shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import agree, choose, held, hold, numbers, on_mesh, shape_of, whole

Formula = Callable[..., Tensor]


def _to_last(x: Tensor, dims: list[int]) -> Tensor:
    """The dims of a reduction as one, the last one."""
    dims = sorted(d % x.dim() for d in dims)
    rest = [d for d in range(x.dim()) if d not in dims]
    return x.permute(*rest, *dims).reshape([x.shape[d] for d in rest] + [-1])


def _kept(result: Tensor, x: Tensor, dims: list[int]) -> Tensor:
    gone = {d % x.dim() for d in dims}
    return result.reshape([1 if d in gone else x.shape[d] for d in range(x.dim())])


def _deviation(flat: Tensor, correction: int) -> Tensor:
    count = flat.shape[-1]
    centred = flat - flat.sum(-1, keepdim=True) / count
    return (centred * centred).sum(-1) / (count - correction)


OVER: dict[str, tuple[Formula, dict[str, Any]]] = {
    "sum": (lambda flat: flat @ torch.ones(flat.shape[-1], dtype=flat.dtype), {}),
    "mean": (lambda flat: flat @ torch.full((flat.shape[-1],), 1 / flat.shape[-1], dtype=flat.dtype), {}),
    "max": (lambda flat: flat.sort(-1).values[..., -1], {}),
    "min": (lambda flat: flat.sort(-1).values[..., 0], {}),
    "var": (lambda flat: _deviation(flat, 1), {}),
    "std": (lambda flat: _deviation(flat, 0).sqrt(), {"correction": False}),
}
"""By operation: what it makes of the last dim, in float64."""


def over_dims(t: Env) -> None:
    for name in OVER:
        hold(t, 6, partial(_over, t, name))


def _over(env: Env, name: str, data: Any) -> None:
    formula, options = OVER[name]
    dtype = choose(data, ["bfloat16", "float32"])
    shape = shape_of(data, (2, 3, 4))
    dims = choose(data, [[-1], [-2], [0], [len(shape) - 1, 0], [-2, -1], None])
    keepdim = choose(data, [True, False])
    x = on_mesh(env, lambda: numbers(data, shape, -1.0, 3.0), dtype)
    every = list(range(len(shape))) if dims is None else sorted({d % len(shape) for d in dims})
    if name in ("var", "std") and math.prod(shape[d] for d in every) < 2:
        return
    dim = dims[0] if dims is not None and len(dims) == 1 and choose(data, [True, False]) else dims
    out = getattr(env.ttnn, name)(x, dim=dim if not isinstance(dim, list) else every, keepdim=keepdim, **options)
    results = [formula(_to_last(value, every)) for value in held(env, x)]
    wanted = [_kept(r, v, every) if keepdim else r for r, v in zip(results, held(env, x), strict=True)]
    agree(env, out, wanted, ulps=32.0 if dtype == "float32" else 2.0)


def scalars(t: Env) -> None:
    """A scalar multiplies what is reduced, before that: a negative one turns maxima into minima."""
    ttnn, x = t.ttnn, t.rand(2, 3, 32, 64)
    t.check(ttnn.sum(t.put(x), dim=-1, scalar=0.5), x.sum(-1) / 2)
    t.check(ttnn.mean(t.put(x), dim=1, scalar=-2.0), x.mean(1) * -2)
    t.check(ttnn.max(t.put(x), dim=-1, scalar=2.0), x.amax(-1) * 2)
    t.check(ttnn.var(t.put(x), dim=-1, scalar=3.0), x.var(-1) * 9)
    t.check(ttnn.sum(t.put(x), dim=[]), x.sum())
    t.check(ttnn.sum(t.put(torch.tensor(3.0)), scalar=-0.5), torch.tensor(-1.5))
    t.check(ttnn.max(t.put(x), dim=-1, scalar=-2.0, correction=False), x.amin(-1) * -2)
    whole = torch.tensor([[-7, 3, 5, 2]], dtype=torch.int32)
    for scalar, least in ((0.5, -3), (-3.0, -15)):
        assert t.shadow.values(ttnn.min(t.put(whole, dtype="int32"), dim=-1, scalar=scalar))[0].tolist() == [least]


def of_pictures(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 3, 32, 64)
    mean, n = x.sum((2, 3), keepdim=True) / 2048, 2048
    variance = ((x - mean) ** 2).sum((2, 3), keepdim=True) / n
    t.check(ttnn.var_hw(t.put(x)), variance)
    t.check(ttnn.std_hw(t.put(x)), variance**0.5)
    t.check(ttnn.normalize_hw(t.put(x)), (x - mean) / variance**0.5, ulps=2.0)
    deviation = (((x - x.sum() / x.numel()) ** 2).sum() / x.numel()) ** 0.5
    t.check(ttnn.normalize_global(t.put(x)), (x - x.sum() / x.numel()) / deviation, ulps=2.0)


def products(t: Env) -> None:
    ttnn, x = t.ttnn, (1 + t.rand(2, 3, 32, 64, scale=0.1)).bfloat16().float()
    logs = x.double().log()
    t.check(ttnn.prod(t.put(x), dim=1), logs.sum(1).exp().float(), ulps=2.0)
    t.check(ttnn.prod(t.put(x), dim=-1, keepdim=True), logs.sum(-1, keepdim=True).exp().float(), ulps=2.0)
    out = t.empty(1, 1, 32, 64)
    t.check(ttnn.prod(t.put(x), out, dims=[0, 1]), logs.sum((0, 1), keepdim=True).exp().float(), ulps=2.0)


def running(t: Env) -> None:
    for name in ("cumsum", "cumprod"):
        hold(t, 4, partial(_running, t, name))


def _running(env: Env, name: str, data: Any) -> None:
    shape = shape_of(data, (2, 3, 4))
    dim, reverse = whole(data, -len(shape), len(shape) - 1), choose(data, [False, True])
    x = on_mesh(env, lambda: numbers(data, shape, 0.8, 1.2), "float32")
    out = getattr(env.ttnn, name)(x, dim, reverse_order=reverse)
    agree(env, out, [_totals(name, value, dim, reverse) for value in held(env, x)], ulps=32.0)


def _totals(name: str, x: Tensor, dim: int, reverse: bool) -> Tensor:
    rows = list(x.unbind(dim))
    rows = rows[::-1] if reverse else rows
    for place in range(1, len(rows)):
        rows[place] = rows[place - 1] + rows[place] if name == "cumsum" else rows[place - 1] * rows[place]
    return torch.stack(rows[::-1] if reverse else rows, dim)


def tables_and_averages(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 4, 5, 32)
    wanted = torch.stack([torch.stack([x[:, : w + 1, : h + 1].sum((1, 2)) for h in range(5)], 1) for w in range(4)], 1)
    t.check(ttnn.experimental.intimg(t.put(x)), wanted, ulps=2.0)
    series, alpha = t.rand(1, 2, 32, 64), 0.25
    weights = torch.tensor([[(1 - alpha) * alpha ** (i - j) if j <= i else 0.0 for j in range(64)] for i in range(64)])
    t.check(ttnn.ema(t.put(series), alpha), series @ weights.T, ulps=2.0)
    y = t.rand(3, 4, 32, 64)
    t.check(ttnn.experimental.fast_reduce_nc(t.put(y), dims=[0, 1]), y.sum((0, 1), keepdim=True), ulps=2.0)


def orders(t: Env) -> None:
    hold(t, 6, partial(_orders, t))


def _orders(env: Env, data: Any) -> None:
    """Different values, so that there is one order; the values at the places are the values."""
    shape = (whole(data, 1, 2), 1, 32, choose(data, [32, 64]))
    dim, descending = choose(data, [-1, -2, 3]), choose(data, [True, False])
    x = on_mesh(env, lambda: _different(data, shape))
    values, places = env.ttnn.sort(x, dim=dim, descending=descending)
    _check_order(env, held(env, x), values, places, dim, descending)
    k = choose(data, [1, 5, 32])
    values, places = env.ttnn.topk(x, k, -1, descending, True)
    _check_order(env, held(env, x), values, places, -1, descending)


def _different(data: Any, shape: tuple[int, ...]) -> Tensor:
    """Whole numbers up to 255, all different along either of the last two dims."""
    rows, columns = shape[-2:]
    random = torch.Generator().manual_seed(whole(data, 0, 2**31))
    grid = (torch.randperm(rows, generator=random)[:, None] + torch.randperm(columns, generator=random)) % max(
        rows, columns
    )
    return grid.expand(shape).float()


def _check_order(env: Env, parts: list[Tensor], values: Any, places: Any, dim: int, descending: bool) -> None:
    count = values.shape[dim]
    wanted = []
    for part in parts:
        line = part.movedim(dim, -1).reshape(-1, part.shape[dim])
        ordered = torch.tensor([sorted(row, reverse=descending)[:count] for row in line.tolist()], dtype=torch.float64)
        wanted.append(ordered.reshape(*part.movedim(dim, -1).shape[:-1], count).movedim(-1, dim))
    agree(env, values, wanted)
    for part, place, want in zip(parts, held(env, places), wanted, strict=True):
        assert torch.equal(part.take_along_dim(place.long(), dim), want)


def places(t: Env) -> None:
    ttnn, x = t.ttnn, torch.stack([torch.randperm(64, generator=t.random) for _ in range(32)]).reshape(1, 1, 32, 64)
    names = torch.randint(0, 999, (1, 1, 32, 64), generator=t.random)
    values, found = ttnn.topk(t.put(x.float()), 32, -1, indices_tensor=t.put(names.int(), dtype="uint32"))
    rows = [
        sorted(zip(v, n, strict=True), reverse=True)[:32]
        for v, n in zip(x[0, 0].tolist(), names[0, 0].tolist(), strict=True)
    ]
    t.check(values, torch.tensor([[v for v, _ in row] for row in rows])[None, None].float())
    t.check(found, torch.tensor([[n for _, n in row] for row in rows])[None, None])
    row_major = t.put(x.float(), layout="ROW_MAJOR")
    best = torch.tensor([row.index(63) for row in x[0, 0].tolist()])
    t.check(ttnn.argmax(row_major, dim=-1, keepdim=True), best[None, None, :, None])
    flat = x.clone()
    flat[0, 0, 7, 9] = 100
    t.check(ttnn.argmax(t.put(flat.float(), layout="ROW_MAJOR")), torch.tensor(7 * 64 + 9))


def expert_weight(t: Env) -> None:
    """The softmax over the k best, of which the first expert's part is asked for."""
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 64)
    nothing = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 32)
    out = ttnn.moe(t.put(x), *map(t.put, nothing), 32)
    wanted = []
    for row in x[0, 0].tolist():
        best = sorted(row, reverse=True)[:32]
        inside = row[0] >= best[-1]
        wanted.append(math.exp(row[0]) / sum(map(math.exp, best)) if inside else 0.0)
    t.check(out, torch.tensor(wanted)[None, None, :, None], ulps=2.0)


CASES = collect(globals())
