"""Properties of what changes how values lie in memory: tiles and rows, dtypes, copies, shards, padding, look-ups."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect, packed
from tests.tt_impl.properties import drawn, each, on_mesh, only, spread

SOME = st.booleans()
ODD = st.sampled_from([(1, 1, 33, 50), (2, 3, 32, 7), (1, 64, 64), (5, 32)])
WHOLE_TILES = st.sampled_from([(1, 1, 32, 64), (2, 1, 64, 32), (1, 96, 32), (64, 64)])
DTYPES = st.sampled_from(["bfloat16", "float32", "int32", "uint16"])


def _numbers(t: Env, shape: tuple[int, ...], dtype: str, layout: str = "TILE") -> tuple[Any, list[Tensor]]:
    """Other values on every device: integers that uint16 holds, or numbers."""

    def part() -> Tensor:
        integers = torch.randint(0, 60000, shape, generator=t.random, dtype=torch.int32)
        return integers if "int" in dtype else t.rand(*shape, scale=3.0)

    x = on_mesh(t, part, dtype, layout)
    return x, t.shadow.values(x)


@drawn(8, shape=WHOLE_TILES, dtype=DTYPES)
def tilized(t: Env, shape: tuple, dtype: str) -> None:
    x, xs = _numbers(t, shape, dtype, "ROW_MAJOR")
    out = t.ttnn.tilize(x)
    assert out.layout == t.ttnn.TILE_LAYOUT
    t.check(out, xs, ulps=0)


@drawn(8, shape=ODD, dtype=DTYPES)
def untilized(t: Env, shape: tuple, dtype: str) -> None:
    """The rows and columns that fill tiles up are not in the result."""
    x, xs = _numbers(t, shape, dtype)
    out = t.ttnn.untilize(x)
    assert out.layout == t.ttnn.ROW_MAJOR_LAYOUT
    t.check(out, xs, ulps=0)


def _cast(x: Tensor, source: str, target: str) -> Tensor:
    """Floats lose their fraction, but go to the nearest in uint16; what is below 0 or above the highest is cut."""
    if "int" not in target:
        return x.to(getattr(torch, target))
    if "int" in source:
        return x.clamp(0, 2**16 - 1) if target == "uint16" else x % 2**32 if target == "uint32" else x
    whole = torch.floor(x.double() + 0.5) if target == "uint16" else torch.trunc(x.double())
    low, high = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "uint16": (0, 2**16 - 1)}[target]
    return whole.clamp(low, high).long()


@drawn(14, shape=ODD, source=st.sampled_from(["bfloat16", "float32", "int32"]), named=SOME,
       target=st.sampled_from(["bfloat16", "float32", "int32", "uint32", "uint16"]))  # fmt: skip
def typecasts(t: Env, shape: tuple, source: str, target: str, named: bool) -> None:
    """Signs, fractions and numbers beyond the range; ``named`` gives the dtype that the tensor has, too."""

    def part() -> Tensor:
        x = t.rand(*shape, scale=5e4)
        return x.int() if source == "int32" else torch.where(x.abs() < 5e4, x / 2**12, x)

    x = on_mesh(t, part, source)
    given = [getattr(t.ttnn, source)] if named and source != target else []
    out = t.ttnn.typecast(x, *given, getattr(t.ttnn, target))
    t.check(out, [_cast(part, source, target) for part in t.shadow.values(x)], ulps=0)


@drawn(6, shape=ODD, bits=st.sampled_from([3, 7]))
def blocks_of_sixteen(t: Env, shape: tuple, bits: int) -> None:
    x, xs = _numbers(t, shape, "bfloat16")
    out = t.ttnn.typecast(x, getattr(t.ttnn, f"bfloat{bits + 1}_b"))
    t.check(out, each(lambda part: packed(part, bits), xs), ulps=0)


@drawn(8, shape=ODD, dtype=DTYPES, name=st.sampled_from(["copy", "assign", "into", "l1", "reallocate", "move"]))
def copies(t: Env, shape: tuple, dtype: str, name: str) -> None:
    """The copy stays as it was when the original is written."""
    ttnn = t.ttnn
    x, xs = _numbers(t, shape, dtype)
    target, _ = _numbers(t, shape, dtype)
    if name == "copy":
        ttnn.copy(x, target)
    elif name == "assign":
        assert ttnn.assign(x, target).buffer_unique_id() == target.buffer_unique_id()
    elif name == "into":
        ttnn.assign(x, memory_config=ttnn.DRAM_MEMORY_CONFIG, output_tensor=target)
    elif name == "l1":
        target = ttnn.assign(x, memory_config=ttnn.L1_MEMORY_CONFIG)
    else:
        target = getattr(ttnn, name)(x)
        t.check(target, xs, ulps=0)
        return
    ttnn.copy(_numbers(t, shape, dtype)[0], x)
    t.check(target, xs, ulps=0)


def _shards(t: Env, how: str, height: int, width: int, cores: int) -> Any:
    """A memory configuration of ``cores`` shards of whole tiles; the last ones may be partly or wholly empty."""
    ttnn = t.ttnn
    across, down = {"HEIGHT": (1, cores), "WIDTH": (cores, 1), "BLOCK": (2, cores)}[how]
    shape = tuple(-(-size // count // 32) * 32 for size, count in ((height, down), (width, across)))
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(across - 1, down - 1))})
    spec = ttnn.ShardSpec(grid, shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, f"{how}_SHARDED"), ttnn.BufferType.L1, spec)


STRATEGIES = st.sampled_from(["HEIGHT", "WIDTH", "BLOCK"])


@drawn(8, first=STRATEGIES, second=STRATEGIES, cores=st.sampled_from([2, 3, 4]), rows=st.sampled_from([64, 160]))
def sharded(t: Env, first: str, second: str, cores: int, rows: int) -> None:
    """Into shards, into other shards, and out of them; the last shard may be smaller."""
    ttnn, shape = t.ttnn, (1, 2, rows, 128)
    x, xs = _numbers(t, shape, "bfloat16")
    configs = [_shards(t, how, 2 * rows, 128, cores) for how in (first, second)]
    held = ttnn.interleaved_to_sharded(x, configs[0])
    t.check(held, xs, ulps=0)
    moved = ttnn.reshard(held, configs[1])
    assert moved.memory_config() == configs[1]
    t.check(moved, xs, ulps=0)
    out = ttnn.sharded_to_interleaved(moved, ttnn.DRAM_MEMORY_CONFIG)
    assert not out.is_sharded()
    t.check(out, xs, ulps=0)


@drawn(
    8,
    shape=ODD,
    fill=st.sampled_from([0.0, -1.5, 2.0**20, -float("inf")]),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)
def filled_tiles(t: Env, shape: tuple, fill: float, dtype: str) -> None:
    """The values stay; what lies beyond the shape can be read, and is the number."""
    x = t.ttnn.exp(_numbers(t, shape, dtype)[0])  # so that nobody knows what lies there
    out = t.ttnn.fill_implicit_tile_padding(x, fill)
    t.check(out, t.shadow.values(x), ulps=0)
    if shape[-2] % 32 == shape[-1] % 32 == 0:
        return
    ends = [size - 1 for size in (*shape[:-2], -(-shape[-2] // 32) * 32, -(-shape[-1] // 32) * 32)]
    around = (0, -shape[-1] % 32, 0, -shape[-2] % 32)
    t.check(t.ttnn.untilize_with_unpadding(out, ends), [F.pad(p, around, value=fill) for p in t.shadow.values(x)])


@drawn(6, shape=st.sampled_from([(40,), (5, 32), (2, 33, 7), (2, 3, 32, 7)]), dtype=DTYPES)
def four_dims(t: Env, shape: tuple, dtype: str) -> None:
    x = t.put(t.rand(*shape, scale=9.0).abs().int() if "int" in dtype else t.rand(*shape), dtype=dtype)
    held = t.shadow.values(x)
    t.check(t.ttnn.unsqueeze_to_4D(x), [v.reshape((1,) * (4 - len(shape)) + shape) for v in held], ulps=0)


@drawn(8, batch=st.sampled_from([1, 3]), length=st.sampled_from([32, 40]), width=st.sampled_from([32, 96]),
       tiles=SOME, padded=SOME, wide=SOME)  # fmt: skip
def embeddings(t: Env, batch: int, length: int, width: int, tiles: bool, padded: bool, wide: bool) -> None:
    """Other words and other tables on every device; a padding word has a row of its own in the table."""
    ttnn, words = t.ttnn, 50
    only(not tiles or length == 32)
    ids = on_mesh(
        t,
        lambda: torch.randint(0, words, (batch, length), generator=t.random, dtype=torch.int32),
        "uint32",
        "ROW_MAJOR",
    )
    shape = (1, 1, words, width) if wide else (words, width)
    table = on_mesh(t, lambda: t.rand(*shape), layout="ROW_MAJOR")
    how: dict[str, Any] = {"layout": ttnn.TILE_LAYOUT} if tiles else {}
    if padded:
        how |= dict(padding_idx=3, embeddings_type=ttnn.EmbeddingsType.PADDED)

    def expected(ids: Tensor, table: Tensor) -> Tensor:
        return F.one_hot(ids.long(), words).float() @ table.reshape(words, width)

    t.check(ttnn.embedding(ids, table, **how), each(expected, t.shadow.values(ids), t.shadow.values(table)), ulps=0)


@drawn(
    6, size=st.sampled_from([(4, 6), (5, 8)]), scale=st.sampled_from([2, 3, (1, 2), (3, 2)]), n=st.sampled_from([1, 2])
)
def enlarged(t: Env, size: tuple, scale: int | tuple, n: int) -> None:
    x, xs = _numbers(t, (n, *size, 32), "bfloat16", "ROW_MAJOR")
    down, across = (scale, scale) if isinstance(scale, int) else scale

    def expected(x: Tensor) -> Tensor:
        rows = [x[:, y // down] for y in range(size[0] * down)]
        return torch.stack([torch.stack(rows, 1)[:, :, z // across] for z in range(size[1] * across)], 2)

    t.check(t.ttnn.upsample(x, scale), each(expected, xs), ulps=0)


@drawn(6, dim=st.sampled_from([0, 1, 2]), places=st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True))
def filled_by_index(t: Env, dim: int, places: list[int]) -> None:
    x, xs = _numbers(t, (6, 5, 64), "bfloat16", "ROW_MAJOR")
    index = t.put(torch.tensor(places, dtype=torch.int32), dtype="uint32", layout="ROW_MAJOR")

    def expected(x: Tensor) -> Tensor:
        parts = [torch.full_like(p, 7.0) if i in places else p for i, p in enumerate(x.unbind(dim))]
        return torch.stack(parts, dim)

    t.check(t.ttnn.index_fill_new(x, dim, index, 7.0), each(expected, xs), ulps=0)


@drawn(6, dims=st.sampled_from([[0], [1], [0, 1]]), count=st.sampled_from([1, 4]))
def picked(t: Env, dims: list[int], count: int) -> None:
    """Places of one dim, or pairs of places of two."""
    x, xs = _numbers(t, (6, 5, 64), "bfloat16", "ROW_MAJOR")
    places = [torch.randint(0, 5, (count,), generator=t.random) for _ in dims]
    held = [t.put(p.int(), dtype="int32", layout="ROW_MAJOR") for p in places]

    def expected(x: Tensor) -> Tensor:
        rows = zip(*(p.tolist() for p in places), strict=True)
        if dims == [1]:
            return torch.stack([x[:, row[0]] for row in rows], 1)
        return torch.stack([x[row] for row in rows])

    t.check(t.ttnn.moreh_getitem(x, held, dims), each(expected, xs), ulps=0)


@drawn(6, first=st.sampled_from([0, 8, 16]), rows=st.sampled_from([32, 48]), cores=st.sampled_from([1, 2]))
def padded_slices(t: Env, first: int, rows: int, cores: int) -> None:
    """Rows of an interleaved tensor, cut out into shards."""
    ttnn = t.ttnn
    x, xs = _numbers(t, (1, 1, 64, 64), "bfloat16", "ROW_MAJOR")
    config = ttnn.create_sharded_memory_config(
        [1, 1, rows, 64], ttnn.CoreGrid(x=1, y=cores), ttnn.ShardStrategy.HEIGHT, ttnn.ShardOrientation.ROW_MAJOR
    )
    out = ttnn.experimental.padded_slice(
        x, [0, 0, first, 0], [1, 1, first + rows, 64], [1, 1, 1, 1], memory_config=config
    )
    t.check(out, [v[:, :, first : first + rows] for v in xs], ulps=0)


@drawn(4, channels=st.sampled_from([3, 8]), pixels=st.sampled_from([128, 256]), cores=st.sampled_from([2, 4]))
def channels_turned(t: Env, channels: int, pixels: int, cores: int) -> None:
    """Before the pixels and after them; what pads a row of channels is not compared."""
    ttnn = t.ttnn

    def config(shape: list[int], how: Any, x: int) -> Any:
        return ttnn.create_sharded_memory_config(shape, ttnn.CoreGrid(x=x, y=1), how, ttnn.ShardOrientation.ROW_MAJOR)

    x, xs = spread(t, 1, 1, channels, pixels)
    x = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
    rows = ttnn.to_memory_config(x, config([1, 1, channels, pixels], ttnn.ShardStrategy.WIDTH, cores))
    for value, part in zip(t.shadow.values(ttnn.experimental.convert_to_hwc(rows)), xs, strict=True):
        assert torch.equal(value[..., :channels], part.transpose(2, 3))
    y, ys = spread(t, 1, 1, pixels, 32)
    tall = ttnn.to_memory_config(y, config([1, 1, pixels, 32], ttnn.ShardStrategy.HEIGHT, cores))
    t.check(ttnn.experimental.convert_to_chw(tall), [v.transpose(2, 3) for v in ys], ulps=0)


CASES = collect(globals())
