"""One step of a collective: post the receives, post the sends, wait for all of them, in chunks."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from refsim.runtime.device import Device
from refsim.runtime.group import Group

CHUNK_BYTES = 1 << 20
"""Transfers are cut into pieces of this size; the last one is whatever is left."""


def split_chunks(tensor: Tensor, chunk_bytes: int) -> list[Tensor]:
    """Cut a contiguous tensor into flat views of at most ``chunk_bytes``; the last one may be shorter."""
    flat = tensor.view(-1)
    return [flat] if tensor.nbytes <= chunk_bytes else list(flat.split(max(1, chunk_bytes // tensor.element_size())))


def exchange(
    device: Device,
    group: Group,
    step: int,
    *,
    sends: list[tuple[Tensor, int]],
    recvs: list[tuple[Tensor, int]],
    chunk_bytes: int,
) -> None:
    """Run one step: ``sends`` and ``recvs`` are (contiguous tensor, member index) pairs, members all different."""
    sequences = [
        [partial(device.irecv, chunk, group, source, step=step) for chunk in split_chunks(tensor, chunk_bytes)]
        for tensor, source in recvs
    ]
    sequences += [
        [partial(device.isend, chunk, group, to, step=step) for chunk in split_chunks(tensor, chunk_bytes)]
        for tensor, to in sends
    ]
    for transfer in device.delays.shuffle(device.delays.interleave(sequences)):
        transfer.wait()
