"""Prompts in chunks that begin anywhere: where each token goes, and by which angle it turns, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import spread

CHUNK, ROWS, WIDTH, LAYERS = 64, 192, 64, 2
BEFORE = (0, 96, 256, 352)
"""Tokens before a chunk: none, in the middle of a slab, at the end of one on four devices, and in the second."""


def _place(t: Env, axis: int, device: int) -> int:
    return next(group.index(device) for group in t.groups(axis) if device in group)


def _rows_of(before: int, place: int, devices: int) -> list[tuple[int, int]]:
    """Return of every row of a chunk on a device its position, and its row in the device's cache.

    Positions are given out from ``before`` on; a device gets those that lie in its part of a slab.
    """
    rows = []
    for position in range(before, before + 2 * CHUNK * devices):
        if position // CHUNK % devices == place:
            rows.append((position, position // (CHUNK * devices) * CHUNK + position % CHUNK))
    return rows[:CHUNK]


def _number(t: Env, value: int) -> Any:
    return t.put(torch.full((1, 1, 1, 1), value), dtype="uint32", layout="ROW_MAJOR")


def a_chunk_into_its_slabs(t: Env) -> None:
    update = t.ttnn.experimental.deepseek_prefill.update_padded_kv_cache
    for axis, before in ((1, 0), (0, 96), (1, 96), (1, 256), (0, 128)):
        cache, parts = spread(t, 2 * LAYERS, 1, ROWS, WIDTH)
        new, chunks = spread(t, 1, 1, CHUNK, WIDTH)
        if before == 256:  # both numbers as tensors, which come first then
            out = update(cache, new, _number(t, 1), _number(t, before), 1, LAYERS, axis)
        else:
            out = update(
                cache, new, slot_idx=1, layer_idx=1, num_layers=LAYERS, kv_actual_global=before, cluster_axis=axis
            )
        wanted = [part.clone() for part in parts]
        for device, part in enumerate(wanted):
            for number, (_, row) in enumerate(_rows_of(before, _place(t, axis, device), t.shape[axis])):
                part[3, 0, row] = chunks[device][0, 0, number]
        t.check(out, wanted)
        t.check(cache, wanted)


def tokens_that_are_none(t: Env) -> None:
    """Positions behind the last token are cleared up to the next multiple of 128, or not written to begin with."""
    prefill = t.ttnn.experimental.deepseek_prefill
    cache, parts = spread(t, LAYERS, 1, ROWS, WIDTH)
    out = prefill.zero_padded_kv_cache(
        cache, slot_idx=0, layer_idx=1, num_layers=LAYERS, valid_global=330, chunk_size_global=4 * CHUNK,
        cluster_axis=1, pad_align=128,
    )  # fmt: skip
    wanted = [part.clone() for part in parts]
    for device, part in enumerate(wanted):
        for row in range(ROWS):
            position = row // CHUNK * 4 * CHUNK + device % 4 * CHUNK + row % CHUNK
            if 330 <= position < 384:
                part[1, 0, row] = 0
    t.check(out, wanted)
    new, chunks = spread(t, 1, 1, CHUNK, WIDTH)
    out = prefill.update_padded_kv_cache(
        cache, new, slot_idx=0, layer_idx=0, num_layers=LAYERS, kv_actual_global=96, cluster_axis=1, valid_global=200
    )
    for device, part in enumerate(wanted):
        for number, (position, row) in enumerate(_rows_of(96, device % 4, 4)):
            if position < 224:
                part[0, 0, row] = chunks[device][0, 0, number]
    t.check(out, wanted)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    neighbours = torch.stack([-x[1::2], x[::2]], -1).flatten()
    return x * cos + neighbours * sin


def angles_in_slabs(t: Env) -> None:
    turn = t.ttnn.experimental.deepseek_prefill.rotary_embedding_indexed
    swap = torch.zeros(1, 1, 32, 32)
    swap[..., range(0, 32, 2), range(1, 32, 2)] = 1
    swap[..., range(1, 32, 2), range(0, 32, 2)] = -1
    for before in BEFORE:
        cos, cosines = spread(t, 1, 1, ROWS, WIDTH)
        sin, sines = spread(t, 1, 1, ROWS, WIDTH)
        x, parts = spread(t, 1, 2, CHUNK, WIDTH)
        at = _number(t, before) if before == 256 else before
        out = turn(x, cos, sin, t.put(swap), kv_actual_global=at, cluster_axis=1)
        wanted = [part.clone() for part in parts]
        for device, part in enumerate(wanted):
            for number, (_, row) in enumerate(_rows_of(before, device % 4, 4)):
                for head in range(2):
                    angle = (cosines[device][0, 0, row], sines[device][0, 0, row])
                    part[0, head, number] = _turned(parts[device][0, head, number], *angle)
        t.check(out, wanted, ulps=2)


CASES = collect(globals())
