"""Faults of the reference that leave values alone: buffers, schedules, axes. Hazards and the trace show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.faults.ref_tools import CFG2, GATHERED, LINE, RING, SP2_TP2, around, fault, instead
from refsim.base.mesh import Topology
from refsim.ccl import exchange
from refsim.models.sd35 import transformer
from refsim.parallel import ring
from refsim.parallel.kv_ring import KVGathered, KVRing
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.runtime import device as runtime
from refsim.runtime.buffers import BufferPool, DeviceBuffer, PingPong, Semaphore

BUFFERS, SCHEDULE, CONFIGURATION = "buffers", "schedule", "configuration"


@fault(
    BUFFERS, RING, "One buffer instead of a ping-pong pair.", "single-buffered gathers: 'a potential correctness issue'"
)
def single_buffer() -> Iterator[None]:
    with around(PingPong, "__getitem__", lambda original, self, step: original(self, 0)):
        yield


@fault(BUFFERS, RING, "K and V share a pair of buffers.", "a buffer cache keyed by shape: tt_dit, gap 9")
def pair_shared_by_k_and_v() -> Iterator[None]:
    def shared(pool: BufferPool, name: str, shape: Any, dtype: Any) -> PingPong:
        return PingPong(tuple(pool.persistent(f"{name.replace('.v', '.k')}[{slot}]", shape, dtype) for slot in (0, 1)))

    with instead(BufferPool, "ping_pong", shared):
        yield


@fault(BUFFERS, RING, "The buffer that is being filled is read.", "ping-pong index one step ahead")
def wrong_buffer_read() -> Iterator[None]:
    def storage(original: Any, self: KVRing, shard: int) -> tuple[Tensor, Tensor]:
        k, v = original(self, shard)
        name = self.device.buffers.of(k).id
        other = name.replace("[0]", "[2]").replace("[1]", "[0]").replace("[2]", "[1]")
        return self.device.buffers.persistent(other, tuple(k.shape), k.dtype).tensor, v

    with around(KVRing, "storage", storage):
        yield


@fault(
    BUFFERS,
    RING,
    "Nobody waits until the next shard has arrived.",
    "semaphore wait left out",
    says="without waiting",
)
def arrival_not_awaited() -> Iterator[None]:
    pending: list[Any] = []

    def late(self: Semaphore, value: int) -> None:
        pending.append(self)

    def result(original: Any, self: Any) -> Any:
        for semaphore in pending:
            for complete in semaphore.pending:
                complete()
        pending.clear()
        return original(self)

    with instead(Semaphore, "wait", late), around(OnlineSoftmax, "result", result):
        yield


@fault(
    BUFFERS,
    RING,
    "A semaphore is waited for once more than it is signalled.",
    "an off-by-one target",
    says="never reach",
)
def semaphore_never_reached() -> Iterator[None]:
    with around(Semaphore, "wait", lambda original, self, value: original(self, value + 1)):
        yield


@fault(BUFFERS, RING, "A transfer is forgotten.", "no wait at the end of a collective", says="without waiting")
def transfer_forgotten() -> Iterator[None]:
    def isend(original: Any, self: Any, *args: Any, **more: Any) -> Any:
        posted = original(self, *args, **more)
        if more["step"] == 3:
            posted.wait = lambda: None
        return posted

    with around(runtime.Device, "isend", isend):
        yield


@fault(BUFFERS, RING, "A buffer is given back while its shard is being sent.", "released early; the next owner gets it")
def released_early() -> Iterator[None]:
    def isend(original: Any, self: Any, tensor: Tensor, *args: Any, **more: Any) -> Any:
        posted = original(self, tensor, *args, **more)
        buffer = self.buffers.of(tensor)
        if buffer is not None and more["step"] == 3 and ".k" in buffer.id:
            self.buffers.release(buffer)
        return posted

    with around(runtime.Device, "isend", isend):
        yield


@fault(
    BUFFERS, GATHERED, "K and V are gathered into the same persistent buffer.", "a buffer key without the tensor's name"
)
def gathered_into_one_buffer() -> Iterator[None]:
    def persistent(original: Any, self: BufferPool, name: str, *args: Any) -> DeviceBuffer:
        return original(self, name.replace(".v.gathered", ".k.gathered"), *args)

    with around(BufferPool, "persistent", persistent):
        yield


@fault(BUFFERS, SP2_TP2, "Chunks of one exchange land in the same memory.", "worker slice mapping of two links")
def chunks_in_one_place() -> Iterator[None]:
    def split(original: Any, x: Tensor, chunk_bytes: int) -> list[Tensor]:
        chunks = original(x, max(4, x.numel() * x.element_size() // 2))
        return [chunks[0]] * len(chunks) if all(c.shape == chunks[0].shape for c in chunks) else chunks

    with around(exchange, "split_chunks", split):
        yield


@fault(SCHEDULE, RING, "All shards are gathered before anything is computed.", "overlap of gather and SDPA lost")
def overlap_lost() -> Iterator[None]:
    def gathered(device: Any, *shard: Any) -> KVGathered:
        return KVGathered(device, device.groups["ring"], *shard)

    with instead(ring, "kv_source", gathered):
        yield


@fault(
    SCHEDULE,
    CFG2,
    "The cfg branches run one after the other.",
    "tt-metal #46083, PR #47515: .1905 -> .3611 s a step, output bit-identical",
)
def cfg_branches_in_turn() -> Iterator[None]:
    def call(original: Any, self: Any, **inputs: Any) -> Tensor:
        group = self._device.groups["cfg"]
        token = torch.zeros(1)
        if group.index == 1:
            self._device.irecv(token, group, 0, step=0).wait()
        sample = original(self, **inputs)
        if group.index == 0:
            self._device.isend(token, group, 1, step=0).wait()
        return sample

    with around(transformer.SD35Transformer, "__call__", call):
        yield


@fault(SCHEDULE, RING, "Every shard of K is sent twice.", "bytes that nobody reads")
def sent_twice() -> Iterator[None]:
    with _echo():
        yield


def _echo() -> Any:
    """A patch that sends every shard of K twice, the second time to nobody's use."""

    def isend(original: Any, self: Any, tensor: Tensor, group: Any, to: int, **more: Any) -> Any:
        if more.get("channel") == 0 and more["step"] == 1:
            original(self, tensor, group, to, **(more | {"channel": 7})).wait()
        return original(self, tensor, group, to, **more)

    def irecv(original: Any, self: Any, tensor: Tensor, group: Any, source: int, **more: Any) -> Any:
        if more.get("channel") == 0 and more["step"] == 1:
            extra = original(self, torch.empty_like(tensor), group, source, **(more | {"channel": 7}))
            posted = original(self, tensor, group, source, **more)
            wait = posted.wait
            posted.wait = lambda: (extra.wait(), wait())
            return posted
        return original(self, tensor, group, source, **more)

    class Both:
        def __enter__(self) -> None:
            self._patches = around(runtime.Device, "isend", isend), around(runtime.Device, "irecv", irecv)
            for patch in self._patches:
                patch.__enter__()

        def __exit__(self, *error: Any) -> None:
            for patch in self._patches:
                patch.__exit__(*error)

    return Both()


def _groups(change: Any) -> Any:
    def groups(original: Any, mesh: Any, config: Any, rank: int) -> Any:
        return change(partial(original, mesh, rank=rank), mesh, config, rank)

    return around(runtime, "parallel_groups", groups)


@fault(
    CONFIGURATION,
    SP2_TP2,
    "Sequence and tensor parallelism are on each other's mesh axis.",
    "axes swapped on a square mesh",
)
def factors_on_the_wrong_axis() -> Iterator[None]:
    def change(original: Any, mesh: Any, config: Any, rank: int) -> Any:
        other = {name: replace(f, mesh_axis=1 - f.mesh_axis) for name, f in vars(config).items()}
        return original(config=replace(config, **other))

    with _groups(change):
        yield


@fault(
    CONFIGURATION,
    LINE,
    "A Ring is run on a Line.",
    "Topology.Ring on an axis without wrap-around link; a hang on silicon",
)
def ring_on_a_line() -> Iterator[None]:
    def change(original: Any, mesh: Any, config: Any, rank: int) -> Any:
        found = original(config=config)
        return {
            name: replace(g, topology=Topology.RING) if g.topology is Topology.LINEAR and g.size > 2 else g
            for name, g in found.items()
        }

    with _groups(change):
        yield


@fault(CONFIGURATION, RING, "A Line is run on a Ring.", "the wrap-around link is left idle")
def line_on_a_ring() -> Iterator[None]:
    def change(original: Any, mesh: Any, config: Any, rank: int) -> Any:
        found = original(config=config)
        return {
            name: replace(g, topology=Topology.LINEAR) if g.topology is Topology.RING else g
            for name, g in found.items()
        }

    with _groups(change):
        yield
