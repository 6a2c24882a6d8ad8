"""One buffer read and written through tensors of several shapes, and what fills tiles up."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect, raises
from tt_impl.mock.storage.padding import Padding
from tt_impl.mock.storage.views import View


def padding_within_a_tile(t: Env) -> None:
    """``ttnn.pad`` gives a view of the same buffer: both tensors stay readable."""
    x = t.rand(1, 1, 30, 20)
    a = t.put(x)
    padded = t.ttnn.pad(a, [(0, 0), (0, 0), (0, 2), (0, 12)], 1.5)
    assert padded.buffer_unique_id() == a.buffer_unique_id()
    t.check(padded, F.pad(x, (0, 12, 0, 2), value=1.5))
    t.check(a, x)


def reshapes_share_a_buffer(t: Env) -> None:
    """What is written through one shape is read through the other ones."""
    ttnn, x = t.ttnn, t.rand(4, 1, 64, 64)
    a = t.put(x)
    flat = ttnn.reshape(a, (1, 1, 256, 64))
    tall = ttnn.reshape(a, (8, 32, 64))
    assert flat.buffer_unique_id() == tall.buffer_unique_id() == a.buffer_unique_id()
    ttnn.add_(flat, 1.0)
    wanted = (x + 1).bfloat16().float()
    t.check(flat, wanted.reshape(1, 1, 256, 64))
    t.check(tall, wanted.reshape(8, 32, 64))
    t.check(a, wanted)
    t.check(ttnn.unsqueeze(a, 0), wanted[None])
    t.check(ttnn.squeeze(ttnn.unsqueeze(a, 0), 0), wanted)
    ttnn.deallocate(tall, force=False)  # of what others share nothing is freed
    t.check(a, wanted)


def padded_rows_are_no_rows(t: Env) -> None:
    """[2, 30, 32] and [60, 32] lie differently in tiles: a reshape moves, a view of both does not exist."""
    ttnn, x = t.ttnn, t.rand(2, 30, 32)
    a = t.put(x)
    t.check(ttnn.reshape(a, (1, 2, 30, 32)), x[None])
    t.check(ttnn.reshape(a, (60, 32)), x.reshape(60, 32))
    t.check(a, x)


def rows_that_tiles_keep(t: Env) -> None:
    """Two shapes of one memory are a reshape of each other where whole tiles or the same rows and columns lie in it."""

    def seen(padded: int, *shape: int) -> View:
        return View(shape, (*shape[:-2], padded, shape[-1]), (32, 32))

    for one, other, same in (
        (seen(32, 2, 32, 64), seen(64, 64, 64), True),
        (seen(32, 2, 30, 64), seen(64, 60, 64), False),
        (seen(32, 2, 30, 64), seen(32, 2, 1, 30, 64), True),
        (seen(64, 64, 32), seen(32, 32, 64), False),
        (seen(32, 2, 30, 64), seen(32, 1, 30, 64), False),
        (seen(32, 1, 30, 64), seen(64, 60, 32), False),
        (seen(32, 0, 30, 64), seen(64, 0, 32), True),  # of nothing
    ):
        assert one.is_reshape_of(other) is same, (one, other)


def _in_memory(view: View, value: torch.Tensor, padding: float) -> torch.Tensor:
    """The memory of a tensor of three dims, one number after the other: tiles by rows, each of them by rows."""
    count, rows, columns = view.padded
    height, width = view.tile or (1, columns)
    memory = torch.full((count * rows * columns,), padding)
    for at in product(*map(range, view.shape)):
        row, column = at[0] * rows + at[1], at[2]
        tile = row // height * (columns // width) + column // width
        memory[(tile * height + row % height) * width + column % width] = value[at]
    return memory


def one_memory_in_other_shapes(t: Env) -> None:
    """Tiles of any height and width, and rows: what one view has written, another one of as much memory reads."""
    from tt_impl.mock.storage.views import seen_by

    views = [
        View((2, 13, 30), (2, 16, 32), (16, 32)),
        View((1, 32, 9), (1, 64, 16), (32, 16)),
        View((2, 3, 32), (2, 16, 32), (16, 32)),
        View((1, 20, 30), (1, 32, 32), (32, 32)),
        View((3, 7, 30), (4, 8, 32), None),
    ]
    for written, seen in product(views, views):
        value = t.rand(*written.shape)
        memory = _in_memory(written, value, 7.0)
        assert written.room == memory.numel() == 1024
        got = seen_by(value, written, seen, 7.0)
        wanted = _in_memory(seen, got, 7.0)
        inside = _in_memory(seen, torch.ones(seen.shape), 0.0) > 0
        assert got.shape == seen.shape and torch.equal(wanted[inside], memory[inside]), (written, seen)
        hidden = bool((_in_memory(written, torch.zeros(written.shape), 1.0)[inside] > 0).any())
        assert (seen_by(value, written, seen, None) is None) is hidden, (written, seen)


def logical_and_padded_shape(t: Env) -> None:
    """A reshape to fewer rows of the same memory is a view of the first ones."""
    from tt_impl.trace.intercept import uncaught

    ttnn, x = t.ttnn, t.rand(1, 1, 30, 32)
    a = t.put(x)
    fewer = ttnn.reshape(a, (1, 1, 20, 32), (1, 1, 32, 32))
    t.check(fewer, x[:, :, :20])
    assert t.shadow.store.fills(a) == Padding(0.0, 0.0)
    assert t.shadow.store.fills(fewer) == Padding()  # ten rows of what is there are data
    for shape, rows in (((1, 1, 30, 32), 30), ((1, 1, 30, 20), 32)):  # of narrower rows none is one of the view's
        whole = ttnn.reshape(t.put(t.rand(*shape)), (1, 1, 32, 32), (1, 1, 32, 32))
        assert t.shadow.store.rows_within(whole) == rows
    with uncaught():
        unseen = t.put(x)
    assert t.shadow.store.rows_within(unseen) == 30
    t.check(ttnn.reshape(a, (1, 1, 32, 32), (1, 1, 32, 32)), F.pad(x, (0, 0, 0, 2)))
    t.check(a, x)
    ones = ttnn.ones((1, 1, 30, 32), layout=ttnn.TILE_LAYOUT, device=t.device)
    for fill in (7.0, 1.0):  # beside the one number that the tensor is
        ttnn.fill_implicit_tile_padding(ones, fill)
        whole = ttnn.reshape(ones, (1, 1, 32, 32), (1, 1, 32, 32))
        t.check(whole, F.pad(torch.ones(1, 1, 30, 32), (0, 0, 0, 2), value=fill))
        assert (set(t.shadow.values(whole)[0].stride()) == {0}) is (fill == 1.0)


def unknown_padding_is_refused(t: Env) -> None:
    """exp(0) is 1, but what a softmax leaves in rows of padding nobody tells, so reading it is an error."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn, x = t.ttnn, t.rand(1, 1, 30, 32)
    known = ttnn.reshape(ttnn.exp(t.put(x)), (1, 1, 32, 32), (1, 1, 32, 32))
    t.check(known, F.pad(x.exp(), (0, 0, 0, 2), value=1.0))
    out = ttnn.softmax(t.put(x), dim=-1)
    whole = ttnn.reshape(out, (1, 1, 32, 32), (1, 1, 32, 32))
    raises(ShadowError, lambda: t.shadow.values(whole), "padding", "fill_implicit_tile_padding")
    filled = ttnn.fill_implicit_tile_padding(out, 3.0)
    t.check(out, x.softmax(-1))
    t.check(filled, x.softmax(-1))
    t.check(whole, F.pad(x.softmax(-1), (0, 0, 0, 2), value=3.0))


def padding_of_layouts(t: Env) -> None:
    """``to_layout`` fills tiles up with a number of the caller's, which ``untilize_with_unpadding`` can uncover."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn, x = t.ttnn, t.rand(30, 20)
    rows = t.put(x, layout="ROW_MAJOR")
    for given, filled in (({}, 0.0), ({"pad_value": -2.0}, -2.0)):
        tiles = ttnn.to_layout(rows, ttnn.TILE_LAYOUT, **given)
        t.check(ttnn.untilize_with_unpadding(tiles, [31, 31]), F.pad(x, (0, 12, 0, 2), value=filled))
        t.check(ttnn.untilize_with_unpadding(tiles, [29, 15]), x[:, :16])
    computed = ttnn.softmax(tiles, dim=-1)
    raises(ShadowError, lambda: ttnn.untilize_with_unpadding(computed, [31, 31]), "padding")


def row_major_views(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(4, 8, 6)
    a = t.put(x, layout="ROW_MAJOR")
    t.check(ttnn.reshape(a, (32, 6)), x.reshape(32, 6))
    t.check(ttnn.experimental.view(a, (8, 24)), x.reshape(8, 24))
    t.check(ttnn.view(a, (2, 16, 6)), x.reshape(2, 16, 6))


def tiles_seen_in_another_width(t: Env) -> None:
    """A view of tiles in another width: the tiles keep their order, the elements do not."""
    x = t.rand(32, 64)
    seen = t.ttnn.experimental.view(t.put(x), (64, 32))
    t.check(seen, torch.cat([x[:, :32], x[:, 32:]]))


def one_device_of_many(t: Env) -> None:
    """A write into the tensor of one device leaves the others as they are."""
    ttnn = t.ttnn
    x = t.rand(1, 1, 32 * t.shape[0], 32 * t.shape[1])
    a = t.put(x, (2, 3))
    parts = ttnn.get_device_tensors(a)
    wanted = [part.clone() for part in t.shards(x, (2, 3))]
    for place in (3, 6):  # in the first row of devices and in the second
        wanted[place] = t.rand(1, 1, 32, 32)
        t.shadow.store.write(parts[place], [wanted[place]], "an operation on one device")
        t.check(a, wanted)
        t.check(parts[place], wanted[place])
    t.check(parts[0], wanted[0])


def windows(t: Env) -> None:
    """``ttnn.narrow`` shares memory: a write into one is seen in the other."""
    ttnn, x = t.ttnn, t.rand(24, 1, 32, 32)
    a = t.put(x)
    part, first = ttnn.narrow(a, 0, 12, 12), ttnn.narrow(a, 0, 0, 12)
    t.check(part, x[12:])
    ttnn.add_(part, 1.0)
    wanted = torch.cat([x[:12], x[12:] + 1]).bfloat16().float()
    t.check(part, wanted[12:])
    t.check(first, wanted[:12])
    t.check(a, wanted)
    ttnn.add_(a, 1.0)
    t.check(part, (wanted[12:] + 1).bfloat16().float())
    x = t.rand(48, 1, 32, 32)
    a = t.put(x)
    ttnn.add_(ttnn.narrow(a, 0, 12, 24), 1.0)
    t.check(a, torch.cat([x[:12], x[12:36] + 1, x[36:]]).bfloat16().float())


def windows_beside_a_clone(t: Env) -> None:
    """A clone shares values until one of both is written; parts of devices differ, and so do those of a window."""
    ttnn = t.ttnn
    for dims in ((None, None), (None, 3)):
        x = t.rand(24, 1, 32, 32 * (t.shape[1] if dims[1] else 1))
        a = t.put(x, dims)
        parts = t.shards(x, dims)
        clone = ttnn.clone(a)
        ttnn.add_(ttnn.narrow(a, 0, 12, 12), 1.0)
        t.check(clone, parts)
        t.check(a, [torch.cat([part[:12], part[12:] + 1]).bfloat16().float() for part in parts])
        copied = ttnn.clone(a)
        ttnn.copy(clone, a)
        t.check(copied, [torch.cat([part[:12], part[12:] + 1]).bfloat16().float() for part in parts])
        t.check(a, parts)


def one_address_in_two_memories(t: Env) -> None:
    """What lies in L1 takes nothing from a tensor in DRAM at the same address; what comes to DRAM there does."""
    from tt_impl.mock.calls.traces import Recorded
    from tt_impl.mock.storage.errors import ShadowError

    ttnn, x, y = t.ttnn, t.rand(1, 1, 32, 32), t.rand(1, 1, 32, 32)
    a = t.put(x)
    for number, memory in enumerate((ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG)):
        there: Any = Recorded(ttnn.to_memory_config(t.put(y), memory))
        there.address = a.buffer_address()
        there.buffer_unique_id = lambda number=number: -1 - number  # of a buffer that nobody else has
        t.check(a, x)
        t.shadow.store.write(there, [y] * t.n, "an operation")
    raises(ShadowError, lambda: t.shadow.values(a), "without a value", "before the shadow began")  # no trace took it


def rows_that_end_inside_of_a_shard(t: Env) -> None:
    """Rows of 50 in four shards of 16 columns lie 64 apart; a view without the first dim reads and writes them."""
    ttnn, x = t.ttnn, t.rand(1, 3, 40, 50)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))})
    spec = ttnn.ShardSpec(cores, (120, 16), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)
    a = ttnn.to_memory_config(t.put(x, layout="ROW_MAJOR"), config)
    view = ttnn.squeeze(a, 0)
    assert view.buffer_unique_id() == a.buffer_unique_id() and tuple(view.padded_shape) == (3, 40, 64)
    t.check(view, x[0], ulps=0)
    ttnn.copy(ttnn.squeeze(ttnn.to_memory_config(t.put(-x, layout="ROW_MAJOR"), config), 0), view)
    t.check(a, -x, ulps=0)


def slices(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 2, 64, 64)
    a = t.put(x)
    for index in (
        (0,), (slice(1, 2),), (slice(None), slice(None), slice(0, 32)), (Ellipsis, slice(32, 64)),
        (1, 0, slice(None), slice(0, 32)), (slice(None), -1), (0, 0, 0, 0),
    ):  # fmt: skip
        t.check(a[index], x[index])
    assert a[:, :].buffer_unique_id() == a.buffer_unique_id()
    t.check(a[:, :], x)
    ttnn.add_(a[:, :], 1.0)
    t.check(a, (x + 1).bfloat16().float())


CASES = collect(globals())
