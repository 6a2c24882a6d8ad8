"""Policies that gather every shard into a buffer of all shards, which the next layer, or the one after, uses again.

upstream      one gathered buffer per tensor, no barrier (facts read from tt_dit's code)
barrier       the same with a barrier along the axis at the end of every call
alternate     two per tensor, used by every other layer
fused         all-gather + matmul in one operation: gathers into memory that the operation before has just read
fused_synced  the same with a barrier in front, as a test has that synchronizes in every iteration
no_wait       as alternate, but nobody waits for the last piece: a semaphore that counts the local shard, too
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from parity.policies.operations import Fabric, Link, Op, Place, Stream, Thread, steps, streams


@dataclass
class _Call:
    """One layer's gather on one rank: how its operations are named, and what has travelled so far on every link."""

    policy: str
    rank: int
    ranks: int
    tensors: str
    fabric: Fabric
    layer: int = 0
    sent: Counter[Link] = field(default_factory=Counter)
    arrived: Counter[Link] = field(default_factory=Counter)

    @property
    def passing(self) -> list[Stream]:
        return streams(self.rank, self.ranks, self.fabric)

    @property
    def last(self) -> int:
        return max(steps(self.passing))

    def place(self, tensor: str, shard: int, piece: int) -> Place:
        twice = self.policy in ("alternate", "no_wait")
        return Place(f"{tensor}{self.layer % 2}" if twice else tensor, shard * self.fabric.slices + piece)

    def arrivals(self, stream: Stream, step: int, channel: int, *, short: bool = False) -> Iterator[Op]:
        """Wait for the pieces of ``step``; ``short`` of the last one."""
        if step and stream.shard(step) is not None:
            link = stream.link(channel, incoming=True)
            self.arrived[link] += len(self.tensors) * len(stream.slices(step, channel))
            yield Op("arrived", self.layer, step, n=self.arrived[link] - short, link=link)

    def all_arrivals(self, step: int) -> Iterator[Op]:
        """Wait for what every link brings at ``step``; under ``no_wait`` not for the last piece of the last one."""
        short = self.policy == "no_wait" and step == self.last
        for stream in self.passing:
            for channel in range(self.fabric.links):
                yield from self.arrivals(stream, step, channel, short=short)

    def sends(self, stream: Stream, step: int, channel: int) -> Iterator[Op]:
        """Send the pieces of ``step`` on, out of the buffer, or out of the input if they are this rank's own."""
        if stream.passes_on(step):
            shard = stream.shard(step)
            link = stream.link(channel, incoming=False)
            for tensor in self.tensors:
                for piece in stream.slices(step + 1, channel):
                    place = self.place(tensor, shard, piece)
                    self.sent[link] += 1
                    out = place if step else None
                    yield Op("send", self.layer, step, place, (self.layer, shard), out, link=link)

    def reads(self, step: int) -> Iterator[Op]:
        """Compute on what came at ``step``; the local shard is read from the input."""
        if not step:
            yield Op("work", self.layer, step, n=1)
            return
        for stream in self.passing:
            shard = stream.shard(step)
            pieces = [piece for channel in range(self.fabric.links) for piece in stream.slices(step, channel)]
            if shard is not None:
                for tensor in self.tensors:
                    for piece in pieces:
                        place = self.place(tensor, shard, piece)
                        n = len(self.tensors) * self.fabric.slices
                        yield Op("read", self.layer, step, place, (self.layer, shard), n=n)

    def finish(self, link: Link) -> Op:
        return Op("sent", self.layer, self.last, n=self.sent[link], link=link)

    def barrier(self, name: str, step: int) -> Iterator[Op]:
        everyone = tuple(f"{name} {rank}" for rank in range(self.ranks))
        yield Op("signal", self.layer, step, n=self.layer, flags=(everyone[self.rank],))
        yield Op("wait", self.layer, step, n=self.layer, flags=everyone)

    def before(self) -> Iterator[Op]:
        """Yield what comes before the gather: a fused one gets the memory of what the operation before it reads."""
        if self.policy.startswith("fused"):
            whole = [self.place("X", shard, p) for shard in range(self.ranks) for p in range(self.fabric.slices)]
            for kind in ("write", "read"):
                for place in whole:
                    yield Op(kind, self.layer, -1, place, (self.layer, self.rank), n=len(whole))
        if self.policy == "fused_synced":
            yield from self.barrier("before", -1)

    def after(self) -> Iterator[Op]:
        if self.policy == "barrier":
            yield from self.barrier("end", self.last)
        yield Op("work", self.layer, self.last)


def gathered(policy: str, rank: int, ranks: int, layers: int, tensors: str, fabric: Fabric) -> list[Thread]:
    """Return the threads of one rank."""
    build = _with_workers if fabric.workers else _alone
    return build(_Call(policy, rank, ranks, tensors, fabric), layers)


def _alone(call: _Call, layers: int) -> list[Thread]:
    """Let one thread do all: it waits, sends on, and computes, step by step."""
    ops: list[Op] = []
    channels = range(call.fabric.links)
    for call.layer in range(layers):
        ops += call.before()
        for step in steps(call.passing):
            ops += call.all_arrivals(step)
            for stream in call.passing:
                for channel in channels:
                    ops += call.sends(stream, step, channel)
            ops += call.reads(step)
        ops += [call.finish(link) for link in call.sent]
        ops += call.after()
    return [Thread(call.rank, ops)]


def _with_workers(call: _Call, layers: int) -> list[Thread]:
    """Let the computing thread start the workers of a call and end it when all of them have."""
    channels = range(call.fabric.links)
    compute = Thread(call.rank)
    workers = {
        (stream, channel): Thread(call.rank, name=f"worker {channel}{'>' if stream.direction > 0 else '<'}")
        for stream in call.passing
        for channel in channels
    }
    ended = tuple(f"rank {call.rank} {thread.name}" for thread in workers.values())
    go = (f"rank {call.rank} go",)
    mine = {key: replace(call, sent=Counter(), arrived=Counter()) for key in workers}
    for call.layer in range(layers):
        compute.ops += call.before()
        compute.ops.append(Op("signal", call.layer, 0, n=call.layer, flags=go))
        for step in steps(call.passing):
            compute.ops += call.all_arrivals(step)
            compute.ops += call.reads(step)
        for (stream, channel), thread in workers.items():
            call_of_worker = mine[stream, channel]
            call_of_worker.layer = call.layer
            thread.ops.append(Op("wait", call.layer, 0, n=call.layer, flags=go))
            for step in range(stream.hops):
                if stream.passes_on(step):
                    thread.ops += [
                        *call_of_worker.arrivals(stream, step, channel),
                        *call_of_worker.sends(stream, step, channel),
                    ]
            # what this rank does not pass on arrives all the same
            for step in range(1, stream.hops + 1):
                if not stream.passes_on(step) and stream.shard(step) is not None:
                    link = stream.link(channel, incoming=True)
                    call_of_worker.arrived[link] += len(call.tensors) * len(stream.slices(step, channel))
            thread.ops += [call_of_worker.finish(link) for link in call_of_worker.sent]
            flag = (f"rank {call.rank} {thread.name}",)
            thread.ops.append(Op("signal", call.layer, call.last, n=call.layer, flags=flag))
        compute.ops.append(Op("wait", call.layer, call.last, n=call.layer, flags=ended))
        compute.ops += call.after()
    return [compute, *workers.values()]
