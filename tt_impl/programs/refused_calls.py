"""Calls of ttnn on a mesh: some that no mesh like it can do, and beside each its neighbour that is right.

ttnn's host side takes each of the wrong ones, or ends the process with it; on a device they hang or give wrong values.
A call is wrong by what the mesh is (links, rings, cores) and by what the operation does with its memory. Counterpart of
nothing in ``refsim``: only ttnn has such calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.base.errors import HazardError, UserError
from refsim.base.mesh import MeshSpec, Topology
from refsim.base.options import RunOptions
from tt_impl.layers.paged_cache import PAGE, PagePool
from tt_impl.parallel.buffers import BufferLedger
from tt_impl.parallel.context import Context
from tt_impl.parallel.manager import CCLManager

Call = Callable[[], Any]
Named = Iterator[tuple[str, bool | str, Call]]
"""Calls by name, with whether each is right; of a wrong one what its sentence names, if that is to be judged."""


def program(device: ttnn.MeshDevice, options: RunOptions, **_: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Make every call; the report tells by name which wrong ones were ``accepted`` and which right ones were not."""
    bench = Bench(device, options)
    report: dict[str, Any] = {"accepted": [], "refused": [], "calls": 0}
    for calls in (links, topologies, cores, parts, buffers, ledger, semaphores, pages, freed, divided):
        for name, right, call in calls(bench):
            error = _error(call)
            report["calls"] += 1
            sentence = f"{name}: {type(error).__name__} {error}".splitlines()[0]
            if right is True and error is not None:
                report["refused"].append(sentence)
            named = right if isinstance(right, str) else ""
            if right is not True and not (isinstance(error, UserError | HazardError) and named in str(error)):
                report["accepted"].append(sentence)
    return report, {}


def _error(call: Call) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@dataclass
class Bench:
    """A mesh and short ways to make tensors on it."""

    device: ttnn.MeshDevice
    options: RunOptions

    @property
    def spec(self) -> MeshSpec:
        return self.options.mesh

    @property
    def axes(self) -> list[int]:
        """Mesh axes of more than one device."""
        return [axis for axis in (0, 1) if self.spec.shape[axis] > 1]

    @property
    def grid(self) -> tuple[int, int]:
        size = self.device.compute_with_storage_grid_size()
        return size.x, size.y

    def tensor(self, *shape: int, dtype: ttnn.DataType = ttnn.bfloat16, layout: ttnn.Layout = ttnn.TILE_LAYOUT) -> Any:
        return ttnn.zeros(shape, dtype=dtype, layout=layout, device=self.device)

    def semaphores(self, count: int) -> list[Any]:
        x, y = self.grid
        cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(x - 1, y - 1))})
        return [ttnn.create_global_semaphore(self.device, cores, 0) for _ in range(count)]


def links(b: Bench) -> Named:
    """No more Ethernet links than an axis has; over two axes, than each; without an axis, than any has."""
    x = b.tensor(1, 1, 32, 64)
    two = b.tensor(8, 4, 4, 32, layout=ttnn.ROW_MAJOR_LAYOUT)
    for axis in b.axes:
        for more in (0, 1):
            count = b.spec.links[axis] + more
            gather = partial(ttnn.all_gather, x, 3, cluster_axis=axis, num_links=count)
            yield f"all_gather on axis {axis} by {count} links", not more, gather
    most = max(b.spec.links) + 1
    yield f"all_gather on no axis by {most} links", False, lambda: ttnn.all_gather(x, 3, num_links=most)
    if len(b.axes) > 1:
        for which in ((0, 0), (0, 1), (1, 0)):
            count = [n + more for n, more in zip(b.spec.links, which, strict=True)]
            yield f"neighbor_pad by {count} links", not any(which), partial(_pad, b, two, count)


def _pad(b: Bench, x: ttnn.Tensor, count: Any, topology: ttnn.Topology = ttnn.Topology.Linear) -> Any:
    """Pad by a row and a column of the neighbours on either side."""
    each = [1, 1]
    pair = b.semaphores(2)
    barrier = b.semaphores(1)
    return ttnn.experimental.neighbor_pad_async(
        x, [1, 2], each, each, "zeros", [0, 1], pair, barrier, num_links=count, topology=topology
    )


def topologies(b: Bench) -> Named:
    """Ask for a ring where the ends of a whole axis are wired and where not; asynchronous collectives ask for it unless
    told otherwise."""
    ring = ttnn.Topology.Ring
    line = ttnn.Topology.Linear
    x = b.tensor(1, 1, 32, 64)
    rows = b.tensor(8, 4, 4, 32, layout=ttnn.ROW_MAJOR_LAYOUT)
    for axis in b.axes:
        is_ring = b.spec.topology(axis) is Topology.RING
        gather = partial(ttnn.all_gather, x, 3, cluster_axis=axis, num_links=1)
        yield f"ring on axis {axis}", is_ring, partial(gather, topology=ring)
        yield f"line on axis {axis}", True, partial(gather, topology=line)
        later = partial(ttnn.experimental.all_gather_async, x, num_links=1)
        unsaid = partial(later, None, 3, b.semaphores(2), barrier_semaphore=b.semaphores(1)[0], cluster_axis=axis)
        yield f"asynchronous on axis {axis}, no word of a topology", is_ring, unsaid
        if not is_ring:
            by_place = partial(later, 3, axis, b.device, ring, b.semaphores(2))
            yield f"asynchronous ring on axis {axis} by place", False, by_place
    if b.spec.is_1d:
        is_ring = b.spec.topology(b.axes[0]) is Topology.RING
        yield "ring on no axis, there being one", is_ring, lambda: ttnn.all_gather(x, 3, topology=ring)
    if len(b.axes) > 1 and not all(b.spec.topology(axis) is Topology.RING for axis in b.axes):
        yield "ring over two axes of which one is a line", False, lambda: _pad(b, rows, [1, 1], ring)


def cores(b: Bench) -> Named:
    """No core beyond the device's grid, wherever a call names one."""
    x = b.tensor(1, 1, 64, 256)
    w = b.tensor(1, 1, 256, 256)
    q = b.tensor(1, 4, 64, 64)
    attend = ttnn.transformer.scaled_dot_product_attention
    for more in ((0, 0), (1, 0), (0, 1)):
        size = tuple(n + m for n, m in zip(b.grid, more, strict=True))
        right = not any(more)
        grid = ttnn.CoreGrid(x=size[0], y=size[1])
        yield f"linear on {size} cores", right, partial(ttnn.linear, x, w, core_grid=grid)
        config = ttnn.MinimalMatmulConfig(
            M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
            compute_with_storage_grid_size=ttnn.CoreCoord(*size),
        )  # fmt: skip
        yield f"matmul on {size} cores", right, partial(ttnn.experimental.minimal_matmul, x, w, config=config)
        chunks = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=size, q_chunk_size=32, k_chunk_size=32)
        yield f"attention on {size} cores", right, partial(attend, q, q, q, program_config=chunks)


def parts(b: Bench) -> Named:
    """Cut by reduce-scatter and partition: whole tiles, or whole rows where there are no tiles, and nothing else."""
    for axis in b.axes:
        n = b.spec.shape[axis]
        for dim, unit in ((3, 32), (2, 32), (1, 1)):
            for extra in (0, unit):
                size = [2, n, 64, 64]
                size[dim] = n * unit + extra
                x = b.tensor(*size)
                what = f"reduce_scatter of {size[dim]} in dim {dim} over {n}"
                named = f"dim {dim} of size {size[dim]} into {n} parts, which needs a multiple of {n * unit}"
                yield what, not extra or named, partial(ttnn.reduce_scatter, x, dim, cluster_axis=axis)
                yield f"asynchronous {what}", not extra, partial(_reduce, b, x, None, dim, axis)
        for extra in (0, 1):
            y = b.tensor(1, 1, 32, n * 32 + extra)
            yield f"partition of {y.shape[3]} over {n}", not extra, partial(ttnn.mesh_partition, y, 3, axis)


def _reduce(b: Bench, x: ttnn.Tensor, into: Any, dim: int, axis: int) -> Any:
    return ttnn.experimental.reduce_scatter_minimal_async(
        x, into, dim, b.semaphores(3), barrier_semaphore=b.semaphores(1)[0], num_links=1,
        topology=ttnn.Topology.Linear, cluster_axis=axis,
    )  # fmt: skip


def buffers(b: Bench) -> Named:
    """Gather and sum into memory of the caller's, which must fit in shape and in dtype."""
    for axis in b.axes:
        n = b.spec.shape[axis]
        x = b.tensor(1, 1, 64, 64)
        for what, buffer in (
            ("that fits", b.tensor(1, 1, 64, 64 * n)),
            ("that is short", b.tensor(1, 1, 64, 64 * n - 32)),
            ("that is long", b.tensor(1, 1, 64, 64 * n + 32)),
            ("in fp32", b.tensor(1, 1, 64, 64 * n, dtype=ttnn.float32)),
        ):
            right = what == "that fits"
            yield f"gather into a buffer {what}", right, partial(_gather, b, x, axis, buffer)
            yield f"gather into a buffer {what}, by place", right, partial(_gather_by_place, b, x, axis, buffer)
            if b.spec.topology(axis) is not Topology.RING or right:
                yield f"gather and multiply, a buffer {what}", right, partial(_multiply, b, x, axis, buffer)
        wide = b.tensor(2, 1, 64, 64 * n)
        for halves in (2, 1):
            into = [b.tensor(2 * halves, 1, 64, 64 * n), b.tensor(2, 1, 64, 64)]
            what = f"reduce_scatter on a line through room for {halves} directions"
            yield what, halves == 2 or f"shape (4, 1, 64, {64 * n})", partial(_reduce, b, wide, into, 3, axis)


def _gather(b: Bench, x: ttnn.Tensor, axis: int, buffer: ttnn.Tensor) -> Any:
    return ttnn.experimental.all_gather_async(
        x, persistent_output_buffer=buffer, dim=-1, multi_device_global_semaphore=b.semaphores(2), num_links=1,
        topology=ttnn.Topology.Linear, cluster_axis=axis,
    )  # fmt: skip


def _gather_by_place(b: Bench, x: ttnn.Tensor, axis: int, buffer: ttnn.Tensor) -> Any:
    more = {"num_links": 1, "topology": ttnn.Topology.Linear, "cluster_axis": axis}
    return ttnn.experimental.all_gather_async(x, buffer, 3, b.semaphores(2), **more)


def _multiply(b: Bench, x: ttnn.Tensor, axis: int, buffer: ttnn.Tensor) -> Any:
    x_axis, y_axis = b.grid
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=1, subblock_h=1, subblock_w=1,
        compute_with_storage_grid_size=ttnn.CoreCoord(x_axis, y_axis - 1),
    )  # fmt: skip
    return ttnn.experimental.all_gather_minimal_matmul_async(
        x, b.tensor(1, 1, 64 * b.spec.shape[axis], 64), persistent_output_buffer=buffer, config=config,
        multi_device_global_semaphore=b.semaphores(2), num_links=1, topology=ttnn.Topology.Linear, cluster_axis=axis,
        num_workers_per_link=x_axis, num_buffers_per_channel=8,
    )  # fmt: skip


def ledger(b: Bench) -> Named:
    """Give a buffer away again: only when whoever reads it was issued and its axis has met since."""

    def lent(*steps: str) -> Call:
        def play() -> None:
            ledger = BufferLedger()
            loans = []
            for step in steps:
                what, _, axis = step.partition(" ")
                if what == "lend":
                    loans.append(ledger.lend("K", int(axis), step))
                elif what == "read":
                    loans[int(axis)].read()
                else:
                    ledger.synchronised(int(axis) if axis else None)

        return play

    twice = ("lend 1", "lend 1")
    yield "two buffers lent", True, lent(*twice)
    yield "a third one lent", False, lent(*twice, "lend 1")
    yield "lent after the axis met, never issued", False, lent(*twice, "met 1", "lend 1")
    yield "lent after it was issued, nobody met", False, lent(*twice, "read 0", "lend 1")
    yield "lent after the other axis met", False, lent(*twice, "read 0", "met 0", "lend 1")
    yield "lent after it was read", True, lent(*twice, "read 0", "met 1", "lend 1")
    yield "lent after all devices met", True, lent(*twice, "read 0", "met", "lend 1")
    yield "the second one lent, the first was read", False, lent(*twice, "read 0", "met 1", "lend 1", "lend 1")
    yield "met before it was issued", False, lent(*twice, "met 1", "read 0", "lend 1")


def semaphores(b: Bench) -> Named:
    """Two collectives in a row may be under way, a third waits for one of them; each buffer says its axis."""
    x = b.tensor(1, 1, 32, 64)

    def gathers(ccl: CCLManager, axis: int, count: int) -> None:
        for _ in range(count):
            ccl.gather_buffer(x, dim=3, axis=axis, name="K")

    def whole(ccl: CCLManager, axis: int) -> None:
        for _ in range(4):
            ccl.all_gather(x, dim=3, axis=axis)

    for axis in b.axes:
        ccl = CCLManager(b.device, b.spec, b.spec.shape)
        yield f"two buffers on axis {axis}", True, partial(gathers, ccl, axis, 2)
        yield f"a third buffer on axis {axis}", False, partial(gathers, ccl, axis, 1)
        yield f"a buffer on axis {axis} says which it is", True, partial(_names_its_axis, ccl, axis)
        again = CCLManager(b.device, b.spec, b.spec.shape)
        yield f"four whole collectives on axis {axis}", True, partial(whole, again, axis)


def _names_its_axis(ccl: CCLManager, axis: int) -> None:
    (owned,) = ccl.owned()
    taken = owned["count"] * math.prod(owned["shape"]) * 2
    if (owned["owner"], owned["axis"], owned["dtype"]) != ("K", axis, "BFLOAT16") or owned["bytes"] < taken:
        raise ValueError(f"a buffer of axis {axis} says {owned}")


def pages(b: Bench) -> Named:
    """Give out pages of a cache, each to one user, all and no more; ttnn skips what a table has as page -1."""
    ctx = Context(b.device, b.options)
    table = list[int]()
    pool = PagePool(ctx, 1, 8)

    def all_lent(count: int) -> None:
        few = PagePool(ctx, 1, count)
        first = list[int]()
        second = list[int]()
        few.reserve(first, 3 * PAGE)
        few.reserve(second, (count - 4) * PAGE + 1)
        if sorted(first + second) != list(range(count)) or len(first) != 3:
            raise ValueError(f"{count} pages were given out as {first} and {second}")

    def named() -> None:
        rows = ttnn.to_torch(ttnn.get_device_tensors(pool.on_device([3, 0, 5], 2))[0]).tolist()
        if rows != [[3, 0, 5, -1, -1, -1, -1, -1]] * 2:
            raise ValueError(f"a table of the pages 3, 0 and 5 says {rows}")

    for count in (7, 8):
        yield f"{count} pages for two users", True, partial(all_lent, count)
    yield "rows that the pages have room for", True, lambda: pool.reserve(table, 8 * PAGE)
    yield "a row more", "all 8 pages", lambda: pool.reserve(table, 8 * PAGE + 1)
    yield "a table of three pages", True, named


def freed(b: Bench) -> Named:
    """Use a tensor whose memory was given back, which is refused."""
    x = b.tensor(1, 1, 32, 64)
    yield "a tensor that is there", True, lambda: ttnn.add(x, 1.0)
    yield "given back", True, lambda: ttnn.deallocate(x)
    yield "a tensor that was given back", False, lambda: ttnn.add(x, 1.0)


def divided(b: Bench) -> Named:
    """Beside its submeshes a mesh is used no more; last, because it stays divided."""
    x = b.tensor(1, 1, 32, 64)
    made = list[Any]()
    yield "a part of the mesh", True, lambda: made.append(b.device.create_submesh(ttnn.MeshShape(1, 1)))
    yield "a tensor of a mesh that was divided", False, lambda: ttnn.add(x, 1.0)
    yield "a tensor on a mesh that was divided", False, lambda: b.tensor(1, 1, 32, 32)
