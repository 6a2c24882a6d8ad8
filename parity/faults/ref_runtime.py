"""Faults of the reference that leave values alone: buffers, schedules, axes. Hazards and the trace show them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.faults.around import Patch, around, at, instead, together
from parity.faults.ref_cases import CFG2, GATHERED, LINE, RING, SP2_TP2
from parity.faults.registry import fault
from refsim.base.mesh import Topology
from refsim.parallel.kv_ring import KVGathered, KVRing
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.runtime import device as runtime
from refsim.runtime.buffers import BufferPool, DeviceBuffer, PingPong, Semaphore

buffers = partial(fault, "buffers", case=RING)
schedule = partial(fault, "schedule", case=RING)
configuration = partial(fault, "configuration", case=SP2_TP2)


@buffers("One buffer instead of a ping-pong pair.", "single-buffered gathers: 'a potential correctness issue'")
@at("refsim.runtime.buffers:PingPong.__getitem__")
def single_buffer(original: Any, self: Any, step: Any) -> Any:
    return original(self, 0)


@buffers("K and V share a pair of buffers.", "a buffer cache keyed by shape: tt_dit, gap 9")
@at("refsim.runtime.buffers:BufferPool.ping_pong")
def pair_shared_by_k_and_v(_: Any, pool: BufferPool, name: str, shape: Any, dtype: Any) -> PingPong:
    return PingPong(tuple(pool.persistent(f"{name.replace('.v', '.k')}[{slot}]", shape, dtype) for slot in (0, 1)))


@buffers("The buffer that is being filled is read.", "ping-pong index one step ahead")
@at("refsim.parallel.kv_ring:KVRing.storage")
def wrong_buffer_read(original: Any, self: KVRing, shard: int) -> tuple[Tensor, Tensor]:
    k, v = original(self, shard)
    name = self.device.buffers.of(k).id
    other = name.replace("[0]", "[2]").replace("[1]", "[0]").replace("[2]", "[1]")
    return self.device.buffers.persistent(other, tuple(k.shape), k.dtype).tensor, v


@buffers("Nobody waits until the next shard has arrived.", "semaphore wait left out", says="without waiting")
def arrival_not_awaited() -> Patch:
    pending: list[Any] = []

    def late(self: Semaphore, value: int) -> None:
        pending.append(self)

    def result(original: Any, self: Any) -> Any:
        for semaphore in pending:
            for complete in semaphore.pending:
                complete()
        pending.clear()
        return original(self)

    return together(instead(Semaphore, "wait", late), around(OnlineSoftmax, "result", result))


@buffers("A semaphore is waited for once more than it is signalled.", "an off-by-one target", says="never reach")
@at("refsim.runtime.buffers:Semaphore.wait")
def semaphore_never_reached(original: Any, self: Any, value: Any) -> Any:
    return original(self, value + 1)


@buffers("A transfer is forgotten.", "no wait at the end of a collective", says="without waiting")
@at("refsim.runtime.device:Device.isend")
def transfer_forgotten(original: Any, self: Any, *args: Any, **more: Any) -> Any:
    posted = original(self, *args, **more)
    if more["step"] == 3:
        posted.wait = lambda: None
    return posted


@buffers("A buffer is given back while its shard is being sent.", "released early; the next owner gets it")
@at("refsim.runtime.device:Device.isend")
def released_early(original: Any, self: Any, tensor: Tensor, *args: Any, **more: Any) -> Any:
    posted = original(self, tensor, *args, **more)
    buffer = self.buffers.of(tensor)
    if buffer is not None and more["step"] == 3 and ".k" in buffer.id:
        self.buffers.release(buffer)
    return posted


@buffers(
    "K and V are gathered into the same persistent buffer.", "a buffer key without the tensor's name", case=GATHERED
)
@at("refsim.runtime.buffers:BufferPool.persistent")
def gathered_into_one_buffer(original: Any, self: BufferPool, name: str, *args: Any) -> DeviceBuffer:
    return original(self, name.replace(".v.gathered", ".k.gathered"), *args)


@buffers("Chunks of one exchange land in the same memory.", "worker slice mapping of two links", case=SP2_TP2)
@at("refsim.ccl.exchange:split_chunks")
def chunks_in_one_place(original: Any, x: Tensor, chunk_bytes: int) -> list[Tensor]:
    chunks = original(x, max(4, x.numel() * x.element_size() // 2))
    return [chunks[0]] * len(chunks) if all(c.shape == chunks[0].shape for c in chunks) else chunks


@schedule("All shards are gathered before anything is computed.", "overlap of gather and SDPA lost")
@at("refsim.parallel.ring:kv_source")
def overlap_lost(_: Any, device: Any, *shard: Any) -> KVGathered:
    return KVGathered(device, device.groups["ring"], *shard)


@schedule(
    "The cfg branches run one after the other.",
    "tt-metal #46083, PR #47515: .1905 -> .3611 s a step, output bit-identical",
    case=CFG2,
)
@at("refsim.models.sd35.transformer:SD35Transformer.__call__")
def cfg_branches_in_turn(original: Any, self: Any, **inputs: Any) -> Tensor:
    group = self._device.groups["cfg"]
    token = torch.zeros(1)
    if group.index == 1:
        self._device.irecv(token, group, 0, step=0).wait()
    sample = original(self, **inputs)
    if group.index == 0:
        self._device.isend(token, group, 1, step=0).wait()
    return sample


@schedule("Every shard of K is sent twice.", "bytes that nobody reads")
def sent_twice() -> Patch:
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

    return together(around(runtime.Device, "isend", isend), around(runtime.Device, "irecv", irecv))


@configuration("Sequence and tensor parallelism are on each other's mesh axis.", "axes swapped on a square mesh")
@at("refsim.runtime.device:parallel_groups")
def factors_on_the_wrong_axis(original: Any, mesh: Any, config: Any, rank: int) -> Any:
    other = {name: replace(f, mesh_axis=1 - f.mesh_axis) for name, f in vars(config).items()}
    return original(mesh, replace(config, **other), rank=rank)


@configuration(
    "A Ring is run on a Line.", "Topology.Ring on an axis without wrap-around link; a hang on silicon", case=LINE
)
@at("refsim.runtime.device:parallel_groups")
def ring_on_a_line(original: Any, mesh: Any, config: Any, rank: int) -> Any:
    groups = original(mesh, config, rank=rank)
    return {
        name: replace(g, topology=Topology.RING) if g.topology is Topology.LINEAR and g.size > 2 else g
        for name, g in groups.items()
    }


@configuration("A Line is run on a Ring.", "the wrap-around link is left idle", case=RING)
@at("refsim.runtime.device:parallel_groups")
def line_on_a_ring(original: Any, mesh: Any, config: Any, rank: int) -> Any:
    groups = original(mesh, config, rank=rank)
    return {
        name: replace(g, topology=Topology.LINEAR) if g.topology is Topology.RING else g for name, g in groups.items()
    }
