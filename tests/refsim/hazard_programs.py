"""Programs with one mistake in their synchronisation each; what they compute comes out right all the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from refsim.parallel.ring import ring_attention
from refsim.runtime.buffers import BufferPool, DeviceBuffer, PingPong, Semaphore
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor, shards

Answer = tuple[dict[str, Any], dict[str, Tensor]]
ONES = torch.ones(4)


def program(device: Device, *, mistake: str, group: str = "sp") -> Answer:
    """Rank 0 plays ``mistake`` against rank 1; every rank ends with ones in ``value``."""
    members = device.groups[group]
    buffer = device.buffers.persistent("k", (4,), torch.float32)
    with device.collective("demo", members):
        MISTAKES[mistake](device, members, buffer)
    return {"value": buffer.tensor.tolist()}, {}


def fill(device: Device, buffer: DeviceBuffer) -> None:
    with device.writing("fill", buffer.tensor, step=0):
        buffer.tensor.fill_(1)


def use(device: Device, tensor: Tensor, step: int = 1) -> None:
    with device.compute("sdpa", tensor, step=step):
        pass


def send_while_filled(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Each posts the receive into the very memory it is still sending."""
    fill(device, buffer)
    other = 1 - group.index
    posted = [
        device.isend(buffer.tensor, group, other, step=1),
        device.irecv(buffer.tensor, group, other, step=2 - group.index),
    ]
    for transfer in posted:
        transfer.wait()
    use(device, buffer.tensor, step=2)


def no_wait_for_the_second(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 1 reads again before it has waited for the second message: old ones or new ones."""
    for step in (0, 1):
        if group.index == 0:
            device.isend(ONES, group, 1, step=step).wait()
        else:
            arrival = device.irecv(buffer.tensor, group, 0, step=step)
            if step == 0:
                arrival.wait()
            use(device, buffer.tensor, step=step)
            if step == 1:
                arrival.wait()
                use(device, buffer.tensor, step=2)
    if group.index == 0:
        fill(device, buffer)
        use(device, buffer.tensor)


def no_wait_at_all(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 1 reads a buffer into which the first message is still under way; the memory happens to hold ones."""
    buffer.tensor.fill_(1)
    if group.index == 0:
        device.isend(ONES, group, 1, step=1).wait()
    else:
        arrival = device.irecv(buffer.tensor, group, 0, step=1)
        use(device, buffer.tensor)
        arrival.wait()


def never_written(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    buffer.tensor.fill_(1)
    if group.index == 1:
        use(device, buffer.tensor)


def lost_message(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Nobody looks at the first message before the second one replaces it."""
    for step in (0, 1):
        if group.index == 0:
            device.isend(ONES, group, 1, step=step).wait()
        else:
            device.irecv(buffer.tensor, group, 0, step=step).wait()
    if group.index == 0:
        fill(device, buffer)
    use(device, buffer.tensor)


def two_at_once(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    if group.index == 0:
        for step in (0, 1):
            device.isend(ONES, group, 1, step=step).wait()
        fill(device, buffer)
    else:
        for arrival in [device.irecv(buffer.tensor, group, 0, step=step) for step in (0, 1)]:
            arrival.wait()
    use(device, buffer.tensor)


def released_early(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 0 gives its memory away while the send is under way, and the next owner gets it."""
    fill(device, buffer)
    if group.index == 0:
        send = device.isend(buffer.tensor, group, 1, step=1)
        device.buffers.release(buffer)
        next_owner = device.buffers.persistent("v", (4,), torch.float32)
        assert next_owner.tensor.data_ptr() == buffer.tensor.data_ptr()
        send.wait()
    else:
        arrived = torch.empty(4)
        device.irecv(arrived, group, 0, step=1).wait()
        use(device, buffer.tensor)


def used_after_release(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    fill(device, buffer)
    if group.index == 0:
        device.buffers.release(buffer)
        device.isend(buffer.tensor, group, 1, step=1).wait()
    else:
        device.irecv(torch.empty(4), group, 0, step=1).wait()
        use(device, buffer.tensor)


def old_handle_read(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 1 reads K by its old handle when the memory has become V, which was written in the meantime."""
    fill(device, buffer)
    use(device, buffer.tensor, step=0)
    if group.index == 1:
        old = buffer.tensor.view(2, 2)
        device.buffers.release(buffer)
        fill(device, device.buffers.persistent("v", (4,), torch.float32))
        use(device, old)
        use(device, device.buffers.persistent("v", (4,), torch.float32).tensor)


def old_handle_written(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 0's message lands where rank 1's K was: V loses what it holds."""
    if group.index == 0:
        device.isend(ONES, group, 1, step=1).wait()
        fill(device, buffer)
    else:
        device.buffers.release(buffer)
        taken = device.buffers.persistent("v", (4,), torch.float32)
        fill(device, taken)
        device.irecv(buffer.tensor, group, 0, step=1).wait()
        buffer = taken
    use(device, buffer.tensor)


def double_release(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 1 gives K back twice; in between its memory has become V."""
    fill(device, buffer)
    if group.index == 1:
        device.buffers.release(buffer)
        device.buffers.persistent("v", (4,), torch.float32)
        device.buffers.release(buffer)


def never_signalled(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Rank 1 waits for two arrivals of which rank 0 sends one."""
    fill(device, buffer)
    if group.index == 0:
        device.isend(buffer.tensor, group, 1, step=1).wait()
    else:
        semaphore = Semaphore(
            "k arrived", waiter="rank 1's sdpa of step 1 of demo", signaller="rank 0's send of step 1 of demo"
        )
        semaphore.signal_on(device.irecv(torch.empty(4), group, 0, step=1).wait)
        semaphore.wait(2)


def posted_early(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """No mistake: rank 1 posts both receives at once, but rank 0 sends the second only when told that the first has
    been read; only the messages of both ranks together show it."""
    if group.index == 0:
        device.isend(ONES, group, 1, step=0).wait()
        device.irecv(torch.empty(1), group, 1, step=0).wait()
        device.isend(ONES, group, 1, step=1).wait()
        fill(device, buffer)
    else:
        first, second = [device.irecv(buffer.tensor, group, 0, step=step) for step in (0, 1)]
        first.wait()
        use(device, buffer.tensor, step=0)
        device.isend(torch.zeros(1), group, 0, step=0).wait()
        second.wait()
    use(device, buffer.tensor)


def posted_early_untold(device: Device, group: Group, buffer: DeviceBuffer) -> None:
    """Do as the program above, without the word that the first message has been read (it comes before the reading)."""
    if group.index == 0:
        device.isend(ONES, group, 1, step=0).wait()
        device.irecv(torch.empty(1), group, 1, step=0).wait()
        device.isend(ONES, group, 1, step=1).wait()
        fill(device, buffer)
    else:
        first, second = [device.irecv(buffer.tensor, group, 0, step=step) for step in (0, 1)]
        first.wait()
        device.isend(torch.zeros(1), group, 0, step=0).wait()
        use(device, buffer.tensor, step=0)
        second.wait()
    use(device, buffer.tensor)


def layers(device: Device, *, policy: str, late_s: float, rest_s: float) -> Answer:
    """Two ranks swap a shard per layer and read it; the fabric may write at any time, as all receives are posted first.

    Under ``upstream`` all layers use one buffer, under ``alternate`` two in turn. Rank 1 is ``late_s`` late before its
    first read; the rest of a layer takes ``rest_s``. Each rank tells the layers whose shards it read.
    """
    group = device.groups["sp"]
    other, slots = 1 - group.index, {"upstream": 1, "alternate": 2}[policy]
    buffers = [device.buffers.persistent(f"k{slot}", (4,), torch.float32) for slot in range(slots)]
    read = []
    with device.collective("ring_attention", group):
        arriving = [device.irecv(buffers[layer % slots].tensor, group, other, step=layer) for layer in range(4)]
        for layer, arrival in enumerate(arriving):
            sent = device.isend(torch.full((4,), float(layer)), group, other, step=layer)
            arrival.wait()
            time.sleep(late_s if layer == 0 and group.index == 1 else 0)
            with device.compute("sdpa", buffers[layer % slots].tensor, step=layer):
                read.append(int(buffers[layer % slots].tensor[0]))
            sent.wait()
            time.sleep(rest_s)
    return {"read": read}, {}


def single_buffer(pair: PingPong, step: int) -> DeviceBuffer:
    return pair._slots[0]


def shared_by_k_and_v(pool: BufferPool, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> PingPong:
    return PingPong(tuple(pool.persistent(f"{name.replace('.v', '.k')}[{slot}]", shape, dtype) for slot in (0, 1)))


PLANTED = {
    "none": contextlib.nullcontext,
    "single_buffer": partial(mock.patch.object, PingPong, "__getitem__", single_buffer),
    "shared_by_k_and_v": partial(mock.patch.object, BufferPool, "ping_pong", shared_by_k_and_v),
}


def ring(device: Device, *, planted: str) -> Answer:
    """Ring attention with a planted mistake. All shards of K and V are the same, so the answer is right anyhow."""
    q, k = (torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    with PLANTED[planted]():
        cut = shards(device.groups, tp=1, ring=2)
        qkv = tuple(MeshTensor(x, cut) for x in (q, k, k))
        (out, _), (lse, _) = ring_attention(device, qkv, valid=lambda shard: [(0, 8)])
    return {"out": out.local.tolist(), "lse": lse.local.tolist()}, {}


MISTAKES: dict[str, Callable[[Device, Group, DeviceBuffer], None]] = {
    f.__name__: f
    for f in (
        send_while_filled,
        no_wait_for_the_second,
        no_wait_at_all,
        never_written,
        lost_message,
        two_at_once,
        released_early,
        used_after_release,
        old_handle_read,
        old_handle_written,
        double_release,
        never_signalled,
        posted_early,
        posted_early_untold,
    )
}
