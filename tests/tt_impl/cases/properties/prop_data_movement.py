"""Cutting, joining, filling and looking up against Python's own indexing: layouts, dtypes, steps, negative dims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import agree, choose, held, hold, numbers, on_mesh, shape_of, whole


def _picked(x: Tensor, places: Sequence[Sequence[int]]) -> Tensor:
    """The values at the given places of every dim, one at a time."""
    values = [x[place].item() for place in itertools.product(*places)]
    return torch.tensor(values, dtype=x.dtype).reshape([len(p) for p in places])


def _drawn(env: Env, data: Any, shape: Sequence[int], layouts: Sequence[str] = ("TILE", "ROW_MAJOR")) -> Any:
    """A tensor of a drawn dtype and layout, with values that all dtypes hold."""
    dtype, layout = choose(data, ["bfloat16", "float32", "int32", "uint32"]), choose(data, layouts)

    def part() -> Tensor:
        values = numbers(data, shape, 0, 200, integers=True)
        return values.int() if "int" in dtype else values.float()

    return on_mesh(env, part, dtype, layout)


def _same(env: Env, out: Any, x: Any, change: Callable[[Tensor], Tensor]) -> None:
    agree(env, out, [change(part) for part in held(env, x)])


def cuts(t: Env) -> None:
    hold(t, 8, partial(_cuts, t))


def _cuts(env: Env, data: Any) -> None:
    shape = (whole(data, 1, 2), whole(data, 1, 3), choose(data, [32, 40, 64]), choose(data, [32, 50, 64]))
    x = _drawn(env, data, shape, ["ROW_MAJOR"])
    start = [whole(data, 0, n - 1) for n in shape]
    end = [whole(data, s + 1, n) for s, n in zip(start, shape, strict=True)]
    step = [choose(data, [1, 1, 2, 3]) for _ in shape]
    places = [list(range(s, e, w)) for s, e, w in zip(start, end, step, strict=True)]
    _same(env, env.ttnn.slice(x, start, end, step), x, lambda part: _picked(part, places))


def cuts_of_tiles(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 3, 64, 96)
    on = t.put(x)
    t.check(ttnn.slice(on, [0, 1, 32, 32], [2, 3, 64, 96]), x[:, 1:, 32:, 32:])
    t.check(ttnn.slice(on, starts=[0, 0, 0, 0], ends=[1, 3, 64, 32], steps=[1, 1, 1, 1]), x[:1, :, :, :32])
    t.check(on[1, ..., -32:], x[1, ..., -32:])
    t.check(on[:, 1:2, 5:9, 7:8], x[:, 1:2, 5:9, 7:8])
    for a, b in zip(ttnn.split(on, [32, 64], 3), (x[..., :32], x[..., 32:]), strict=True):
        t.check(a, b)
    for a, b in zip(ttnn.chunk(on, 3, 1), (x[:, :1], x[:, 1:2], x[:, 2:]), strict=True):
        t.check(a, b)


def joins(t: Env) -> None:
    hold(t, 6, partial(_joins, t))


def _joins(env: Env, data: Any) -> None:
    shape = list(shape_of(data, (2, 3, 4)))
    dim = whole(data, -len(shape), len(shape) - 1)
    sizes = [whole(data, 1, 2) * 32 for _ in range(whole(data, 2, 3))]
    parts = [on_mesh(env, partial(numbers, data, _with(shape, dim, n), -2.0, 2.0)) for n in sizes]
    out = env.ttnn.concat(parts, dim)
    each = [held(env, x) for x in parts]
    wanted = []
    for device in range(env.n):
        rows = [row for x in each for row in x[device].unbind(dim)]
        wanted.append(torch.stack(rows, dim))
    agree(env, out, wanted, ulps=0.0)


def _with(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [size if d == dim % len(shape) else n for d, n in enumerate(shape)]


def orders(t: Env) -> None:
    hold(t, 8, partial(_orders, t))


def _orders(env: Env, data: Any) -> None:
    ttnn, shape = env.ttnn, shape_of(data, (3, 4))
    x = _drawn(env, data, shape)
    dims = choose(data, list(itertools.permutations(range(len(shape)))))

    def permuted(part: Tensor) -> Tensor:
        result = torch.empty([shape[d] for d in dims], dtype=part.dtype)
        for place in itertools.product(*map(range, shape[:-1])):
            for last in range(shape[-1]):
                whole_place = (*place, last)
                result[tuple(whole_place[d] for d in dims)] = part[whole_place]
        return result

    if torch.Size(shape).numel() <= 2000:
        _same(env, ttnn.permute(x, dims), x, permuted)
    a, b = whole(data, -len(shape), -1), whole(data, 0, len(shape) - 1)
    order = list(range(len(shape)))
    order[a], order[b] = order[b], order[a]
    _same(env, ttnn.transpose(x, a, b), x, lambda part: part.permute(order))


def repeats(t: Env) -> None:
    hold(t, 4, partial(_repeats, t))


def _repeats(env: Env, data: Any) -> None:
    ttnn, shape = env.ttnn, (1, whole(data, 1, 2), 32, 64)
    x = on_mesh(env, lambda: numbers(data, shape, -2.0, 2.0))
    counts = [whole(data, 1, 2) for _ in shape]
    places = [list(range(n)) * c for n, c in zip(shape, counts, strict=True)]
    _same(
        env,
        ttnn.repeat(x, ttnn.Shape(counts)),
        x,
        lambda p: p[:, places[1]][..., places[2], :][..., places[3]][places[0]],
    )
    dim, count = choose(data, [1, 2, -1]), whole(data, 1, 3)
    spread = [i for i in range(shape[dim]) for _ in range(count)]
    _same(env, ttnn.repeat_interleave(x, count, dim=dim), x, lambda p: p.index_select(dim, torch.tensor(spread)))
    shift, along = whole(data, -40, 40), choose(data, [1, 2, 3])
    rolled = [(i - shift) % shape[along] for i in range(shape[along])]
    _same(env, ttnn.roll(x, shift, along), x, lambda p: p.index_select(along, torch.tensor(rolled)))


def paddings(t: Env) -> None:
    hold(t, 5, partial(_paddings, t))


def _paddings(env: Env, data: Any) -> None:
    ttnn, shape = env.ttnn, (whole(data, 1, 2), whole(data, 1, 2), choose(data, [8, 32]), choose(data, [16, 32]))
    x = on_mesh(env, lambda: numbers(data, shape, -2.0, 2.0), layout="ROW_MAJOR")
    pairs = [(0, whole(data, 0, 2)), (0, whole(data, 0, 2)), (0, choose(data, [0, 24])), (0, choose(data, [0, 16]))]
    value = choose(data, [0.0, 1.5])

    def padded(part: Tensor) -> Tensor:
        result = torch.full([b + n + a for n, (b, a) in zip(shape, pairs, strict=True)], value, dtype=part.dtype)
        result[tuple(slice(b, b + n) for n, (b, _) in zip(shape, pairs, strict=True))] = part
        return result

    _same(env, ttnn.pad(x, pairs, value), x, padded)
    whole_shape = [n + a for n, (_, a) in zip(shape, pairs, strict=True)]
    _same(env, ttnn.pad(x, whole_shape, [0, 0, 0, 0], value), x, padded)


def tiles_and_rows(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 2, 40, 50)
    rows = t.put(x, layout="ROW_MAJOR")
    shape = ttnn.Shape([1, 2, 64, 64])
    grown = ttnn.tilize_with_val_padding(rows, shape, 3.0)
    small = list(grown.shape) == [1, 2, 40, 50]
    wanted = torch.full((1, 2, 64, 64), 3.0)
    wanted[:, :, :40, :50] = x
    t.check(grown, x if small else wanted)
    zeros = ttnn.tilize_with_zero_padding(rows)
    t.check(zeros, x)
    for tiles, value in ((grown, 3.0), (zeros, 0.0)):
        whole = F.pad(x, (0, 14, 0, 24), value=value)
        (one, *_) = ttnn.get_device_tensors(tiles)
        assert one.to_torch_with_padded_shape().float().equal(whole), "what fills the tiles up"
    y = t.rand(1, 2, 64, 64)
    t.check(ttnn.untilize_with_unpadding(t.put(y), ttnn.Shape([0, 1, 39, 49])), y[:, :, :40, :50])
    t.check(ttnn.reshape_on_device(t.put(y), 1, 1, 128, 64), y.reshape(1, 1, 128, 64))
    one = t.rand(1, 1, 1, 64)
    t.check(
        ttnn.experimental.broadcast_to(t.put(one), ttnn.Shape([1, 2, 32, 64])),
        torch.cat([torch.cat([one] * 32, 2)] * 2, 1),
    )
    whole = t.empty(1, 1, 32, 64, fill=0.0)
    ttnn.experimental.broadcast_to(t.put(one), ttnn.Shape([1, 1, 32, 64]), output=whole)
    t.check(whole, one.expand(1, 1, 32, 64))
    stacked = ttnn.stack([t.put(y), t.put(y + 1)], 0)
    t.check(stacked, torch.cat([y[None], (y + 1).bfloat16().float()[None]]))


def partial_shards(t: Env) -> None:
    """Half of the rows at a time go into shards and come back."""
    ttnn, x = t.ttnn, t.rand(1, 1, 512, 64)
    on, back = t.put(x), t.empty(1, 1, 512, 64, fill=0.0)
    for half in range(2):
        sharded = ttnn.interleaved_to_sharded_partial(
            on,
            ttnn.CoreCoord(8, 1),
            [32, 64],
            2,
            half,
            ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
            ttnn.ShardOrientation.ROW_MAJOR,
        )
        t.check(sharded, x[:, :, half * 256 : half * 256 + 256])
        ttnn.sharded_to_interleaved_partial(sharded, back, 2, half, memory_config=ttnn.DRAM_MEMORY_CONFIG)
    t.check(back, x)


def pictures(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 8, 12, 16)
    folded = ttnn.fold(t.put(x, layout="ROW_MAJOR"), 2, 3)
    cells = [
        torch.cat([x[n, 2 * i + a, 3 * j + b] for a in range(2) for b in range(3)])
        for n in range(2)
        for i in range(4)
        for j in range(4)
    ]
    t.check(folded, torch.stack(cells).reshape(tuple(folded.shape)))
    part, target = t.rand(1, 2, 8, 32), t.rand(1, 8, 8, 32)
    rows = [t.put(v, layout="ROW_MAJOR") for v in (part, target)]
    ttnn.experimental.slice_write(rows[0], rows[1], [0, 3, 0, 0], [1, 5, 8, 32], [1, 1, 1, 1])
    wanted = torch.cat([target[:, :3], part, target[:, 5:]], 1)
    t.check(rows[1], wanted)


def filled(t: Env) -> None:
    ttnn = t.ttnn
    t.check(ttnn.arange(7, device=t.device), torch.tensor([0, 1, 2, 3, 4, 5, 6]))
    t.check(ttnn.arange(3, 7, device=t.device), torch.tensor([3, 4, 5, 6]))
    t.check(ttnn.arange(3, 20, 4, dtype=ttnn.float32, device=t.device), torch.tensor([3.0, 7.0, 11.0, 15.0, 19.0]))
    t.check(ttnn.moreh_full([2, 3, 32, 32], 2.5, t.device), torch.full((2, 3, 32, 32), 2.5))
    like = t.put(t.rand(2, 40))
    t.check(ttnn.moreh_full_like(like, 7, dtype=ttnn.int32), torch.full((2, 40), 7))
    evens = ttnn.moreh_arange(0, 10, 2, t.device, dtype=ttnn.bfloat16)
    t.check(evens, torch.tensor([0.0, 2.0, 4.0, 6.0, 8.0]).reshape(tuple(evens.shape)))
    fine = ttnn.moreh_arange(0.5, 300.5, 1.0, t.device, dtype=ttnn.float32)
    t.check(fine, (torch.arange(300) + 0.5).reshape(tuple(fine.shape)), ulps=0)
    t.check(ttnn.moreh_full([32, 32], 0.1, t.device, dtype=ttnn.float32), torch.full((32, 32), 0.1), ulps=0)
    corner = torch.zeros(1, 2, 32, 64)
    corner[:, :, :3, :5] = 1.0
    any_tensor = t.put(t.rand(1, 1, 32, 32), layout="ROW_MAJOR")
    t.check(ttnn.fill_ones_rm(1, 2, 32, 64, 3, 5, any_tensor), corner)
    t.check(ttnn.fill_rm(1, 2, 32, 64, 3, 5, any_tensor, 4.0, -1.0), corner * 5 - 1)


def looked_up(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 5, 64)
    names = torch.randint(0, 5, (2, 3), generator=t.random)
    index = t.put(names.int(), dtype="uint32")
    wanted = torch.stack([torch.stack([x[n, names[n, w]] for w in range(3)]) for n in range(2)])
    t.check(ttnn.tosa_gather(t.put(x), index), wanted)
    once = torch.stack([torch.randperm(5, generator=t.random)[:3] for _ in range(2)])
    source, result = t.rand(2, 3, 64), x.clone()
    for n, w in itertools.product(range(2), range(3)):
        result[n, once[n, w]] = source[n, w]
    t.check(ttnn.tosa_scatter(t.put(x), t.put(once.int(), dtype="uint32"), t.put(source)), result)


def scattered(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(8, 32)
    places = torch.randint(0, 8, (4, 32), generator=t.random)
    source = t.rand(4, 32)
    operands = [t.put(v, layout="ROW_MAJOR") for v in (x, source)]
    index = t.put(places.int(), dtype="int32", layout="ROW_MAJOR")
    added = x.clone()
    for row, column in itertools.product(range(4), range(32)):
        added[places[row, column], column] += source[row, column]
    t.check(ttnn.scatter_add(operands[0], 0, index, operands[1]), added, ulps=2.0)
    t.check(ttnn.scatter(operands[0], 0, index, operands[1], reduce="add"), added, ulps=2.0)


def places_named_twice(t: Env) -> None:
    """Of two values for one place nobody says which stays: no number is made up."""
    from tt_impl.mock.storage.errors import RefusedOption

    ttnn, x = t.ttnn, t.put(t.rand(4, 32), layout="ROW_MAJOR")
    twice = torch.tensor([[0, 3, 0, *range(4, 33)]]).clamp(max=31).expand(4, -1)
    index = t.put(twice.int(), dtype="int32", layout="ROW_MAJOR")
    raises(RefusedOption, lambda: ttnn.scatter(x, 1, index, x), "ttnn.scatter", "twice")
    ids = t.put(torch.tensor([[1, 1]]).int(), dtype="uint32")
    source = t.put(t.rand(1, 2, 64))
    raises(RefusedOption, lambda: ttnn.tosa_scatter(t.put(t.rand(1, 5, 64)), ids, source), "ttnn.tosa_scatter", "twice")
    names = t.put(torch.tensor([[[[3, 3]]]], dtype=torch.int32), dtype="uint32", layout="ROW_MAJOR")
    rows = [t.put(t.rand(n, 1, 32, 64), layout="ROW_MAJOR") for n in (4, 2)]
    raises(RefusedOption, lambda: ttnn.indexed_fill(names, *rows), "ttnn.indexed_fill", "twice")


def by_name(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(4, 1, 32, 64), t.rand(2, 1, 32, 64)
    names = t.put(torch.tensor([[[[3, 1]]]], dtype=torch.int32), dtype="uint32", layout="ROW_MAJOR")
    wanted = torch.stack([x[0], y[1], x[2], y[0]])
    rows = [t.put(v, layout="ROW_MAJOR") for v in (x, y)]
    t.check(ttnn.indexed_fill(names, *rows), wanted)
    few = t.put(torch.tensor([0, 2], dtype=torch.int32), dtype="uint32", layout="ROW_MAJOR")
    filled = torch.stack([torch.full((1, 32, 64), 9.0), x[1], torch.full((1, 32, 64), 9.0), x[3]])
    t.check(ttnn.index_fill(rows[0], 0, few, 9.0), filled)
    z = torch.tensor([[[[0.0, 4.0, 0.0, 2.0, 4.0, 0.0, 3.0, 0.0]]]])
    count, found = ttnn.nonzero(t.put(z, layout="ROW_MAJOR"))
    wanted_places = [[0, 0, 0, place] for place in (1, 3, 4, 6)]
    for value, where in zip(t.shadow.values(count), t.shadow.values(found), strict=True):
        assert value.flatten()[0] == 4
        assert where.flatten()[:16].reshape(4, 4).tolist() == wanted_places


def tables(t: Env) -> None:
    ttnn = t.ttnn
    ids, grad = torch.randint(0, 96, (2, 32), generator=t.random), t.rand(1, 1, 64, 32)
    table = t.rand(96, 32)
    out = ttnn.embedding_bw(
        t.put(ids.int(), dtype="uint32", layout="ROW_MAJOR"), t.put(table), t.put(grad), dtype=ttnn.bfloat16
    )
    wanted = torch.zeros(96, 32)
    for place, name in enumerate(ids.flatten().tolist()):
        wanted[name] += grad[0, 0, place]
    t.check(out, wanted.reshape(tuple(out.shape)), ulps=2.0)
    counts = t.put(torch.tensor([-1, 0, 5, 2**31 - 1], dtype=torch.int32), dtype="int32", layout="ROW_MAJOR")
    ttnn.plus_one(counts, skip_negative_entries=True)
    t.check(counts, torch.tensor([-1, 1, 6, 2**31 - 1]))
    more = t.put(torch.tensor([3, 4, 5, 6], dtype=torch.int32), dtype="int32", layout="ROW_MAJOR")
    ttnn.plus_one(more)
    t.check(more, torch.tensor([4, 5, 6, 7]))


def folds(t: Env) -> None:
    """With padding of each side, from channels first too, whose output is filled up to whole tiles, or cut."""
    ttnn, x = t.ttnn, t.rand(2, 8, 12, 16)

    def folded(x: Tensor, frame: Sequence[int], rows: int, columns: int) -> Tensor:
        x = F.pad(x, frame).unflatten(1, (rows, 2)).unflatten(3, (columns, 3))
        return x.transpose(2, 3).reshape(2, rows, columns, -1)

    out = ttnn.fold(t.put(x, layout="ROW_MAJOR"), 2, 3, padding=[1, 0])
    t.check(out, folded(x, (0, 0, 0, 0, 1, 1), 5, 4).reshape(tuple(out.shape)))
    out = ttnn.fold(t.put(x, layout="ROW_MAJOR"), 2, 3, padding=[2, 0, 1, 2])
    t.check(out, folded(x, (0, 0, 1, 2, 2, 0), 5, 5).reshape(tuple(out.shape)))
    first = t.put(x.permute(0, 3, 1, 2), layout="ROW_MAJOR")
    out = ttnn.fold(first, 2, 3, use_transpose_as_fold=True, padding=[1, 1, 1, 2, 0, 4])
    t.check(out, folded(x, (0, 4, 1, 2 + 3 * out.shape[2] - 15, 1, 1 + 2 * out.shape[1] - 10), *tuple(out.shape)[1:3]))


CASES = collect(globals())
