"""Keys and values on their way past a member: which shard comes at which step, and in which memory it lies then.

    KVRing       two slots per direction: what one holds is attended and sent on while the other one is filled
    KVGathered   all shards in one buffer per tensor before the first step

Both are walked the same way, step by step and in a step block by block (see ``refsim.parallel.ring``). A block is
``device.options.chunk_sizes[1]`` rows of a shard, which attention takes at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from refsim.base.mesh import Topology
from refsim.ccl import all_gather
from refsim.parallel.sdpa import intersect
from refsim.parallel.sequence import Keys
from refsim.runtime.buffers import DeviceBuffer, Semaphore
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.transports.transport import Transfer

KeyRanges = Callable[[int], Keys]
"""Shard index -> rows of that shard that are keys; the rest is padding, or masked."""


class BlockLayout:
    """A (B, H, N, E) shard as flat storage in which every block (B, H, rows, E) is one contiguous piece."""

    def __init__(self, shape: torch.Size, k_chunk_size: int) -> None:
        self._b, self._h, n, self._e = shape
        self._row = self._b * self._h * self._e
        self.numel = self._row * n
        self.bounds = [(start, min(start + k_chunk_size, n)) for start in range(0, n, k_chunk_size)]

    def __len__(self) -> int:
        return len(self.bounds)

    def flat(self, storage: Tensor, block: int) -> Tensor:
        """Return the elements of a block, as they travel."""
        start, stop = self.bounds[block]
        return storage[start * self._row : stop * self._row]

    def view(self, storage: Tensor, block: int) -> Tensor:
        """Return the same elements as (B, H, rows, E)."""
        return self.flat(storage, block).view(self._b, self._h, -1, self._e)

    def pack(self, shard_BHNE: Tensor, storage: Tensor) -> None:
        """Copy a shard into flat storage."""
        for block, (start, stop) in enumerate(self.bounds):
            self.view(storage, block).copy_(shard_BHNE[:, :, start:stop])


@dataclass(frozen=True)
class Stream:
    """One direction of travel as one member sees it: whose shard passes by at which step, from where and to where."""

    name: str
    group: Group
    direction: int  # +1: shards move to the right, -1: to the left

    def shard(self, step: int) -> int | None:
        """Return the shard this member holds at ``step``, None once the stream has run dry."""
        n = self.group.size
        shard = self.group.index - self.direction * step
        if self.group.topology is Topology.RING:
            return shard % n if step < n else None
        return shard if 0 <= shard < n else None

    def passes_on(self, step: int) -> bool:
        """Whether the next member still needs the shard held at ``step``."""
        if self.group.topology is Topology.RING:
            return step < self.group.size - 1
        return self.shard(step) is not None and 0 <= self.group.index + self.direction < self.group.size

    @property
    def source(self) -> int:
        return (self.group.index - self.direction) % self.group.size

    @property
    def to(self) -> int:
        return (self.group.index + self.direction) % self.group.size


def streams(group: Group) -> list[Stream]:
    """Return one direction on a Ring, both on a Line."""
    if group.topology is Topology.LINEAR:
        return [Stream(".from_left", group, +1), Stream(".from_right", group, -1)]
    return [Stream("", group, +1)]


class KVShards(ABC):
    """K and V of every member of a group, shard by shard in the order in which they reach this member.

    Args:
        k_BHNE, v_BHNE: this member's shard; the same shape on every member.
        valid: the rows of a shard that are keys.
    """

    def __init__(self, device: Device, group: Group, k_BHNE: Tensor, v_BHNE: Tensor, valid: KeyRanges) -> None:
        self.device = device
        self.group = group
        self.valid = valid
        self.layout = BlockLayout(k_BHNE.shape, device.options.chunk_sizes[1])
        self.streams = streams(group)
        self._local = (k_BHNE, v_BHNE)
        # the local shard belongs to both directions of a Line but is attended once
        arriving = [[s for s in self.streams if s.shard(step) is not None] for step in range(1, group.size)]
        self._visits = [self.streams[:1], *(visit for visit in arriving if visit)]

    @abstractmethod
    def __enter__(self) -> KVShards:
        """Take in the local shard."""

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave no transfer under way."""

    def steps(self) -> range:
        """Step 0 has the local shard; every further one brings one shard, or one from either side."""
        return range(len(self._visits))

    @abstractmethod
    def prefetch(self, step: int) -> None:
        """Have the shards of ``step``, if there are any, sent here while the step before is computed."""

    def blocks(self, step: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, block) in the order in which to attend to them; each has arrived when it is handed out."""
        for block in range(len(self.layout)):
            for stream in self._visits[step]:
                yield stream.shard(step), block

    def view(self, shard: int, block: int) -> tuple[Tensor, Tensor, Keys]:
        """Return K and V of a block that ``blocks`` has handed out, (B, H, rows, E), and which rows are keys."""
        k, v = (self.layout.view(storage, block) for storage in self.storage(shard))
        return k, v, self.keys(shard, block)

    def keys(self, shard: int, block: int) -> Keys:
        """Return the rows of a block that are keys: none of a block beyond the last token."""
        return intersect(self.valid(shard), *self.layout.bounds[block])

    @abstractmethod
    def storage(self, shard: int) -> tuple[Tensor, Tensor]:
        """Return the flat memory that holds K and V of a shard now."""


class KVGathered(KVShards):
    """All shards are gathered, into one persistent buffer per tensor, before the first step."""

    def __enter__(self) -> KVShards:
        self._gathered = []
        for name, shard in zip("kv", self._local, strict=True):
            shape = (self.group.size, self.layout.numel)
            buffer = self.device.buffers.persistent(f"{self.group.name}.{name}.gathered", shape, shard.dtype)
            mine = torch.empty(self.layout.numel, dtype=shard.dtype)
            self.layout.pack(shard, mine)
            all_gather(self.device, mine, self.group, dim=0, out=buffer.tensor)
            self._gathered.append(buffer.tensor)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Nothing is under way."""

    def prefetch(self, step: int) -> None:
        """Nothing is left to be sent."""

    def storage(self, shard: int) -> tuple[Tensor, Tensor]:
        k, v = self._gathered
        return k[shard], v[shard]


class KVRing(KVShards):
    """Shards pass by: each is received into a slot, attended there, and sent on from there.

    A *slot* is a pair of persistent buffers, one for K and one for V. Each direction of travel has two; the shard of
    step s lies in slot s mod 2. A *piece*, sent at once, is the whole shard, or a block if ``ring_order`` is ``block``.
    """

    def __init__(self, device: Device, group: Group, k_BHNE: Tensor, v_BHNE: Tensor, valid: KeyRanges) -> None:
        super().__init__(device, group, k_BHNE, v_BHNE, valid)
        self._per_block = device.options.ring_order == "block"
        self._slots = {
            stream.name: [
                device.buffers.ping_pong(f"{group.name}.{name}{stream.name}", (self.layout.numel,), k_BHNE.dtype)
                for name in "kv"
            ]
            for stream in self.streams
        }
        self._in_use: dict[int, list[DeviceBuffer]] = {}
        self._arriving: dict[tuple[str, int], list[Semaphore]] = {}
        self._sending: list[Transfer] = []

    def __enter__(self) -> KVShards:
        for slot, shard in zip(self.slot(self.streams[0], 0), self._local, strict=True):
            with self.device.writing("copy of the local shard", slot.tensor):
                self.layout.pack(shard, slot.tensor)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._finish_sends()

    def slot(self, stream: Stream, step: int) -> list[DeviceBuffer]:
        """Return K's and V's buffer at ``step``; both directions have the local shard (step 0) in the first one's."""
        return [pair[step] for pair in self._slots[self.streams[0].name if step == 0 else stream.name]]

    def prefetch(self, step: int) -> None:
        # A slot may be received into once nobody needs what it holds. The shard of step - 2, which is in it, has been
        # attended before this call, and its sends, the last to read it, are waited for here. So two slots suffice, and
        # a posted receive is the credit on which the neighbour's send of that step may land: it is given only now.
        self._finish_sends()
        sequences = [
            sequence for s in self.streams if s.shard(step) is not None for sequence in self._receives(s, step)
        ]
        self.device.delays.interleave(sequences)

    def blocks(self, step: int) -> Iterator[tuple[int, int]]:
        # only what this step holds is handed out: the other slots are being filled
        self._in_use = {stream.shard(step): self.slot(stream, step) for stream in self._visits[step]}
        for block in range(len(self.layout)):
            if block == 0 or self._per_block:
                self._await(step, block)
                self._pass_on(step, block)  # reads the slot, as attention does: the two need no order
            for stream in self._visits[step]:
                yield stream.shard(step), block

    def storage(self, shard: int) -> tuple[Tensor, Tensor]:
        k, v = self._in_use[shard]
        return k.tensor, v.tensor

    def _piece(self, slot: DeviceBuffer, block: int) -> Tensor:
        return self.layout.flat(slot.tensor, block) if self._per_block else slot.tensor

    def _receives(self, stream: Stream, step: int) -> list[list[Callable[[], None]]]:
        """Return what posts the receives of the shard of ``step``, one sequence of calls each for K and V."""
        sequences = []
        semaphores = []
        self._arriving[stream.name, step] = semaphores
        for channel, slot in enumerate(self.slot(stream, step)):
            semaphore = Semaphore(
                slot.id,
                waiter=f"rank {self.device.rank}'s sdpa of step {step} of ring_attention",
                signaller=f"rank {self.group.ranks[stream.source]}'s sends of step {step} of ring_attention",
            )
            semaphores.append(semaphore)

            def post(block: int, slot=slot, channel=channel, semaphore=semaphore) -> None:
                piece = self._piece(slot, block)
                transfer = self.device.irecv(piece, self.group, stream.source, step=step, channel=channel)
                semaphore.signal_on(transfer.wait)

            sequences.append([partial(post, block) for block in range(len(self.layout) if self._per_block else 1)])
        return sequences

    def _await(self, step: int, block: int) -> None:
        """Wait until the piece with ``block`` has arrived from everywhere; pieces arrive in order."""
        order = self.device.delays
        for stream in order.shuffle(self.streams):
            for semaphore in order.shuffle(self._arriving.get((stream.name, step), [])):
                semaphore.wait(block + 1)

    def _pass_on(self, step: int, block: int) -> None:
        """Post the sends of the piece with ``block`` to whom the shard of ``step`` is new."""
        sequences = [
            [partial(self.device.isend, piece, self.group, stream.to, step=step + 1, channel=channel)]
            for stream in self.streams
            if stream.passes_on(step)
            for channel, piece in enumerate(self._piece(slot, block) for slot in self.slot(stream, step))
        ]
        self._sending += self.device.delays.interleave(sequences)

    def _finish_sends(self) -> None:
        for transfer in self.device.delays.shuffle(self._sending):
            transfer.wait()
        self._sending = []
