"""Ring joint attention: queries stay, keys and values travel, two persistent buffers each.

    Ring, member i              step 0        step 1        step 2        step 3
      computes on shard         i             i-1           i-2           i-3, then the prompt (rear)
      K, V live in buffer       [0]           [1]           [0]           [1]
      meanwhile receives into   [1]           [0]           [1]           -
      meanwhile sends           [0] to i+1    [1] to i+1    [0] to i+1    -

    Line, member i: shards travel both ways. At step s it has shard i-s from the left and i+s from the right, as far
    as they exist, and passes both on; each direction has its own pair of buffers. Step 0 is the local shard.

One step is: wait for what arrives, post receive and send of the next shard, compute. The order of visits differs
from member to member; the log-sum-exp merge makes the answer the same up to fp32 rounding (and the same bits from
run to run). Keys beyond ``logical_n`` are never seen: a block is cut at the border, a block beyond it is skipped.

Bytes sent by member i, B = bytes of its K and V together (n-1 steps):
    Ring  (n-1) * B              Line  ((i+1)*[i<n-1] + (n-i)*[i>0]) * B

``device.options.ring_order`` (same result to the bit, other traces):
    gather  all shards first, into one persistent gathered buffer per tensor, then compute
    step    the transfer of step s+1 is under way while step s is computed
    block   the same per k block: a block is passed on and consumed as soon as it has arrived

Source: tt-metal's ring_joint_scaled_dot_product_attention; Ring Attention (arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from refsim.ccl import all_gather
from refsim.mesh import Topology
from refsim.parallel.sdpa import OnlineSoftmax, intersect
from refsim.parallel.sequence import Range
from refsim.runtime.buffers import DeviceBuffer, Semaphore
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.transport import Transfer

KeyRanges = Callable[[int], list[Range]]


def ring_attention(
    device: Device,
    q_BHNE: Tensor,
    k_BHNE: Tensor,
    v_BHNE: Tensor,
    *,
    group: Group,
    valid: KeyRanges,
    rear: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of the local queries over the keys of all members, then over ``rear``.

    Args:
        q_BHNE: local queries, any number of rows (spatial rows, prompt rows behind them).
        k_BHNE, v_BHNE: this member's shard; the same shape on every member.
        valid: row ranges of a member's shard that are keys, by shard index.
        rear: (k_BHLE, v_BHLE) that every member holds (the replicated prompt), attended on the last step.

    Returns:
        (out_BHNE in q's dtype, lse_BHN in fp32, natural logarithm, scale included).
    """
    ring_order, k_chunk_size = device.options.ring_order, device.options.k_chunk_size
    state = OnlineSoftmax(device, q_BHNE)
    blocks = _Blocks(k_BHNE.shape, k_chunk_size)
    moved = (k_BHNE, v_BHNE) if group.size > 1 else ()
    with device.collective("ring_attention", group, *moved):
        if ring_order == "gather" and group.size > 1:
            last = _gather_then_compute(device, state, blocks, k_BHNE, v_BHNE, group, valid)
        else:
            last = _overlapped(device, state, blocks, k_BHNE, v_BHNE, group, valid, ring_order == "block")
        if rear is not None:
            for start in range(0, rear[0].shape[2], k_chunk_size):
                k, v = (t[:, :, start : start + k_chunk_size] for t in rear)
                state.attend(k, v, step=last, buffer="joint")
    return state.result()


class _Blocks:
    """A (B, H, N, E) shard as flat storage in which every k block (B, H, rows, E) is one contiguous piece."""

    def __init__(self, shape: torch.Size, k_chunk_size: int) -> None:
        self._b, self._h, n, self._e = shape
        self._row = self._b * self._h * self._e
        self.numel = self._row * n
        self.bounds = [(start, min(start + k_chunk_size, n)) for start in range(0, n, k_chunk_size)]

    def __len__(self) -> int:
        return len(self.bounds)

    def flat(self, storage: Tensor, block: int) -> Tensor:
        start, stop = self.bounds[block]
        return storage[start * self._row : stop * self._row]

    def view(self, storage: Tensor, block: int) -> Tensor:
        return self.flat(storage, block).view(self._b, self._h, -1, self._e)

    def pack(self, shard_BHNE: Tensor, storage: Tensor) -> None:
        for block, (start, stop) in enumerate(self.bounds):
            self.view(storage, block).copy_(shard_BHNE[:, :, start:stop])

    def attend(
        self,
        state: OnlineSoftmax,
        k: Tensor,
        v: Tensor,
        ranges: list[Range],
        block: int,
        *,
        step: int,
        buffer: str,
    ) -> None:
        """Attend to one block of a shard in flat storage, padding cut away."""
        with state.device.reading("sdpa", self.flat(k, block), self.flat(v, block), step=step):
            k, v = self.view(k, block), self.view(v, block)
            for a, b in intersect(ranges, *self.bounds[block]):
                state.attend(k[:, :, a:b], v[:, :, a:b], step=step, buffer=buffer)


@dataclass
class _Stream:
    """One direction of travel as one member sees it: whose shard passes by at which step, and from where to where."""

    name: str
    group: Group
    direction: int  # +1: shards move to the right, -1: to the left

    def shard(self, step: int) -> int | None:
        """The shard this member holds at ``step``, None once the stream has run dry."""
        n, shard = self.group.size, self.group.index - self.direction * step
        if self.group.topology is Topology.RING:
            return shard % n if step < n else None
        return shard if 0 <= shard < n else None

    @property
    def source(self) -> int:
        return (self.group.index - self.direction) % self.group.size

    def passes_on(self, step: int) -> bool:
        """Whether the next member still needs the shard held at ``step``."""
        if self.group.topology is Topology.RING:
            return step < self.group.size - 1
        return self.shard(step) is not None and 0 <= self.group.index + self.direction < self.group.size

    @property
    def to(self) -> int:
        return (self.group.index + self.direction) % self.group.size


def _streams(group: Group) -> list[_Stream]:
    if group.topology is Topology.LINEAR:
        return [_Stream(".from_left", group, +1), _Stream(".from_right", group, -1)]
    return [_Stream("", group, +1)]


def _visits(streams: list[_Stream], n: int) -> list[list[_Stream]]:
    """Per step the streams that bring a shard; step 0, the local shard, counts once."""
    steps = [streams[:1]] + [[t for t in streams if t.shard(s) is not None] for s in range(1, n)]
    return [arrived for arrived in steps if arrived]


def _gather_then_compute(
    device: Device,
    state: OnlineSoftmax,
    blocks: _Blocks,
    k: Tensor,
    v: Tensor,
    group: Group,
    valid: KeyRanges,
) -> int:
    gathered: list[DeviceBuffer] = []
    for name, shard in (("k", k), ("v", v)):
        buffer = device.buffers.persistent(f"{group.name}.{name}.gathered", (group.size, blocks.numel), k.dtype)
        mine = torch.empty(blocks.numel, dtype=k.dtype)
        blocks.pack(shard, mine)
        all_gather(device, mine, group, dim=0, out=buffer.tensor)
        gathered.append(buffer)
    k_all, v_all = (buffer.tensor for buffer in gathered)
    steps = _visits(_streams(group), group.size)
    for s, arrived in enumerate(steps):
        for block in range(len(blocks)):
            for shard in (stream.shard(s) for stream in arrived):
                ranges = valid(shard)
                blocks.attend(state, k_all[shard], v_all[shard], ranges, block, step=s, buffer=gathered[0].id)
    return len(steps) - 1


def _overlapped(
    device: Device,
    state: OnlineSoftmax,
    blocks: _Blocks,
    k: Tensor,
    v: Tensor,
    group: Group,
    valid: KeyRanges,
    per_block: bool,
) -> int:
    """The ping-pong order drawn on top. A piece is what one transfer moves: a block, or the whole shard."""
    streams = _streams(group)
    steps = _visits(streams, group.size)
    pieces = len(blocks) if per_block else 1

    def piece(slot: DeviceBuffer, index: int) -> Tensor:
        return blocks.flat(slot.tensor, index) if per_block else slot.tensor

    pairs = {
        stream.name: [
            device.buffers.ping_pong(f"{group.name}.{name}{stream.name}", (blocks.numel,), k.dtype)
            for name in ("k", "v")
        ]
        for stream in streams
    }

    def slots(stream: _Stream, step: int) -> list[DeviceBuffer]:
        """K's and V's buffer at ``step``; the local shard (step 0) is in the first stream's, for all streams."""
        return [pair[step] for pair in pairs[streams[0].name if step == 0 else stream.name]]

    for slot, shard in zip(slots(streams[0], 0), (k, v), strict=True):
        with device.writing("copy of the local shard", slot.tensor):
            blocks.pack(shard, slot.tensor)

    def receives(stream: _Stream, step: int) -> list[list[Callable[[], None]]]:
        """What posts the receives of the shard of ``step``, one lane each for K and V."""
        who = f"sdpa of step {step} of ring_attention", f"sends of step {step} of ring_attention"
        lanes = []
        arriving[stream.name] = []
        for channel, slot in enumerate(slots(stream, step)):
            semaphore = Semaphore(
                slot.id,
                waiter=f"rank {device.rank}'s {who[0]}",
                signaller=f"rank {group.ranks[stream.source]}'s {who[1]}",
            )
            arriving[stream.name].append(semaphore)

            def post(index: int, slot=slot, channel=channel, semaphore=semaphore) -> None:
                transfer = device.irecv(piece(slot, index), group, stream.source, step=step, channel=channel)
                semaphore.signal_on(transfer.wait)

            lanes.append([partial(post, index) for index in range(pieces)])
        return lanes

    def pass_on(stream: _Stream, step: int, index: int) -> list[list[Callable[[], Transfer]]]:
        """What posts the sends of a piece of the shard of ``step``, one lane each for K and V."""
        return [
            [partial(device.isend, piece(slot, index), group, stream.to, step=step + 1, channel=channel)]
            for channel, slot in enumerate(slots(stream, step))
        ]

    order = device.delays
    arriving: dict[str, list[Semaphore]] = {}
    sends: list[Transfer] = []
    for s, arrived in enumerate(steps):
        for transfer in order.shuffle(sends):  # the buffers to receive into were sent from in the step before
            transfer.wait()
        sends, arrived_now, arriving = [], arriving, {}
        order.interleave(lane for t in streams if t.shard(s + 1) is not None for lane in receives(t, s + 1))
        for block in range(len(blocks)):
            index = block if per_block else 0
            if per_block or block == 0:
                for stream in order.shuffle(streams):
                    for semaphore in order.shuffle(arrived_now.get(stream.name, [])):
                        semaphore.wait(index + 1)
                lanes = [lane for t in streams if t.passes_on(s) for lane in pass_on(t, s, index)]
                sends += order.interleave(lanes)
            for stream in arrived:
                k_slot, v_slot = slots(stream, s)
                ranges = valid(stream.shard(s))
                blocks.attend(state, k_slot.tensor, v_slot.tensor, ranges, block, step=s, buffer=k_slot.id)
    for transfer in order.shuffle(sends):
        transfer.wait()
    return len(steps) - 1
