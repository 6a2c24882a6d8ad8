"""What collectives of one submesh need: topology and links per axis, global semaphores, ping-pong buffers.

Semaphores and buffers come in pairs per axis and flip at every use, so that a call never takes what the call before it
on the same axis may still be using; a ledger keeps both. Buffers are allocated once per (shape, dim, axis, dtype).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ttnn

from refsim.base.mesh import MeshSpec, Topology
from tt_impl.parallel import programs
from tt_impl.parallel.buffers import BufferLedger, Loan

_TOPOLOGY = {Topology.LINEAR: ttnn.Topology.Linear, Topology.RING: ttnn.Topology.Ring, None: ttnn.Topology.Linear}
_AG_SEMAPHORES = 2
_RS_SEMAPHORES = 3
SLOTS = 2
"""Ping-pong: how many buffers and sets of semaphores take turns."""


class CCLManager:
    """Collectives over the axes of a submesh ``shape`` cut from ``spec``, of more than one device each."""

    def __init__(self, device: ttnn.MeshDevice, spec: MeshSpec, shape: tuple[int, int]) -> None:
        self.device = device
        self.shape = shape
        whole = [shape[axis] == spec.shape[axis] for axis in (0, 1)]
        self.topology = [_TOPOLOGY[spec.topology(axis) if whole[axis] else Topology.LINEAR] for axis in (0, 1)]
        self.num_links = [max(1, spec.links[axis]) for axis in (0, 1)]
        grid = device.compute_with_storage_grid_size()
        last = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
        self._num_cores = grid.x * grid.y
        self._cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), last)})
        self._semaphores: dict[tuple[str, int], list[list]] = {}
        self._buffers: dict[tuple, list[ttnn.Tensor]] = {}
        self._ledger = BufferLedger(SLOTS)
        self._loans: list[Loan] = []

    def wires(self, axis: int) -> dict[str, Any]:
        """Return the arguments by which a collective runs along an axis, over all its links."""
        return {"num_links": self.num_links[axis], "topology": self.topology[axis], "cluster_axis": axis}

    def all_gather(self, x: ttnn.Tensor, *, dim: int, axis: int) -> ttnn.Tensor:
        """Every device gets the shards of its row or column, in order, along ``dim``."""
        with self.collective(axis):
            buffer = self.gather_buffer(x, dim=dim, axis=axis)
            return self._all_gather(x, buffer, dim=dim, axis=axis)

    def _all_gather(self, x: ttnn.Tensor, buffer: ttnn.Tensor, *, dim: int, axis: int) -> ttnn.Tensor:
        return ttnn.experimental.all_gather_async(
            x,
            persistent_output_buffer=buffer,
            dim=dim,
            multi_device_global_semaphore=self.semaphores("all_gather", axis, _AG_SEMAPHORES),
            **self.wires(axis),
        )

    def all_gather_matmul(self, x: ttnn.Tensor, weight: ttnn.Tensor, *, axis: int, **how: Any) -> list[ttnn.Tensor]:
        """Gather the last dim along ``axis`` and multiply by ``weight`` in one operation, in as many parts as it
        is asked for; ``how``: the rest of its arguments."""
        with self.collective(axis):
            buffer = self.gather_buffer(x, dim=3, axis=axis)
            return ttnn.experimental.all_gather_minimal_matmul_async(
                x,
                weight,
                persistent_output_buffer=buffer,
                multi_device_global_semaphore=self.semaphores("all_gather", axis, _AG_SEMAPHORES),
                **self.wires(axis),
                **how,
            )

    def reduce_scatter(self, x: ttnn.Tensor, *, dim: int, axis: int) -> ttnn.Tensor:
        """Sum over the row or column, cut along ``dim``."""
        size = math.prod(x.padded_shape) * (4 if x.dtype == ttnn.float32 else 2)
        with self.collective(axis):
            return ttnn.experimental.reduce_scatter_minimal_async(
                x,
                persistent_output_buffers=None,
                dim=dim,
                multi_device_global_semaphore=self.semaphores("reduce_scatter", axis, _RS_SEMAPHORES),
                barrier_semaphore=self.semaphores("barrier", axis, 1)[0],
                **self.wires(axis),
                intermediate_memory_config=programs.scratch_memory(2 * size, self._num_cores),  # a line has both ways
            )

    def neighbor_pad(
        self, x: ttnn.Tensor, *, dims: list[int], axes: list[int], by: int, mode: str = "zeros"
    ) -> ttnn.Tensor:
        """``by`` more rows on either side of each dim, the neighbours' along its axis; at the ends zeros, or
        the outermost row again (``mode`` "replicate").

        Always along a Line: the ends of a picture never meet, however the mesh is wired. The op shares out what stands
        before a dim over the links, so it takes no more links than that.
        """
        links = [
            min(self.num_links[axis], math.prod(tuple(x.shape)[:dim])) for dim, axis in zip(dims, axes, strict=True)
        ]
        with self.collective(*axes):
            return ttnn.experimental.neighbor_pad_async(
                x,
                dims,
                [by] * len(dims),
                [by] * len(dims),
                mode,
                axes,
                [self.semaphores("neighbor_pad", axis, 1)[0] for axis in axes],
                self.semaphores("barrier", axes[0], 1),
                num_links=links,
                topology=ttnn.Topology.Linear,
            )

    @contextmanager
    def collective(self, *axes: int) -> Iterator[None]:
        """Issue a collective on ``axes`` in the block. All devices of an axis meet in it, so whatever was issued
        before it has been read by the time it is over; what it gathers is read by the operation that follows."""
        yield
        for axis in axes:
            self._ledger.synchronised(axis)
        for loan in self._loans:
            loan.read()
        self._loans.clear()

    def semaphores(self, op: str, axis: int, count: int) -> list:
        """Lend the next of two sets of global semaphores for ``op`` on ``axis``."""
        key = (op, axis)
        if key not in self._semaphores:
            self._semaphores[key] = [
                [ttnn.create_global_semaphore(self.device, self._cores, 0) for _ in range(count)] for _ in range(SLOTS)
            ]
        loan = self._ledger.lend(("semaphores", *key), axis, op)
        self._loans.append(loan)
        return self._semaphores[key][loan.slot]

    def owned(self) -> list[dict[str, Any]]:
        """List the persistent buffers by owner: axis, shape and dtype of one, number, bytes of one device in all."""
        return [
            {
                "owner": key[0],
                "axis": key[3],
                "shape": list(key[1]),
                "dtype": str(key[4]).rpartition(".")[2],
                "count": len(buffers),
                "bytes": sum(dram_bytes(buffer) for buffer in buffers),
            }
            for key, buffers in self._buffers.items()
        ]

    def gather_buffer(self, x: ttnn.Tensor, *, dim: int, axis: int, name: str = "all_gather") -> ttnn.Tensor:
        """Lend the next of two persistent buffers with ``dim`` of ``x`` as long as the whole axis makes it.

        ``name`` keeps apart what is gathered in one call: K and V of one ring attention have a pair each, so that two
        calls in a row never share a buffer (sharing one pair hands both slots out at once).
        """
        shape = list(x.shape)
        shape[dim] *= self.shape[axis]
        key = (name, tuple(shape), dim, axis, x.dtype, x.layout)
        if key not in self._buffers:
            self._buffers[key] = [
                ttnn.zeros(shape, dtype=x.dtype, layout=x.layout, device=self.device) for _ in range(SLOTS)
            ]
            ttnn.synchronize_device(self.device)  # or a neighbour's zeros overwrite what a device ahead has sent
        loan = self._ledger.lend(key, axis, f"what follows {name}")
        self._loans.append(loan)
        return self._buffers[key][loan.slot]


def dram_bytes(x: ttnn.Tensor) -> int:
    """Bytes of one device's DRAM that a tensor takes: its pages go round the banks, which all give out the same."""
    banks = x.device().dram_grid_size().x
    return -(-x.buffer_num_pages() // banks) * banks * x.buffer_aligned_page_size()
