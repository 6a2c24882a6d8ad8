"""Prompts in chunks that begin anywhere: where each token goes, and by which angle it turns, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import spread

CHUNK, ROWS, WIDTH, LAYERS = 64, 192, 96, 2
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
            rest = dict(layer_idx=1, num_layers=LAYERS, kv_actual_global=before, cluster_axis=axis)
            out = update(cache, new, 1, **rest) if before == 128 else update(cache, new, slot_idx=1, **rest)
        wanted = [part.clone() for part in parts]
        for device, part in enumerate(wanted):
            for number, (_, row) in enumerate(_rows_of(before, _place(t, axis, device), t.shape[axis])):
                part[3, 0, row] = chunks[device][0, 0, number]
        t.check(out, wanted)
        t.check(cache, wanted)


def tokens_that_are_none(t: Env) -> None:
    for valid in (330, 257):
        _clear_behind(t, valid)


def _clear_behind(t: Env, valid: int) -> None:
    """Positions behind the last token are cleared up to the next multiple of 128, or not written to begin with."""
    prefill = t.ttnn.experimental.deepseek_prefill
    cache, parts = spread(t, LAYERS, 1, ROWS, WIDTH)
    out = prefill.zero_padded_kv_cache(
        cache, slot_idx=0, layer_idx=1, num_layers=LAYERS, valid_global=valid, chunk_size_global=4 * CHUNK,
        cluster_axis=1, pad_align=128,
    )  # fmt: skip
    wanted = [part.clone() for part in parts]
    for device, part in enumerate(wanted):
        for row in range(ROWS):
            position = row // CHUNK * 4 * CHUNK + device % 4 * CHUNK + row % CHUNK
            if valid <= position < 384:
                part[1, 0, row] = 0
    t.check(out, wanted)
    out = prefill.zero_padded_kv_cache(
        cache, slot_idx=0, layer_idx=1, num_layers=LAYERS, valid_global=256, chunk_size_global=4 * CHUNK,
        cluster_axis=1, pad_align=128,
    )  # fmt: skip
    t.check(out, wanted)  # the tokens end where nothing has to be filled up
    new, chunks = spread(t, 1, 1, CHUNK, WIDTH)
    out = prefill.update_padded_kv_cache(
        cache, new, slot_idx=0, layer_idx=0, num_layers=LAYERS, kv_actual_global=96, cluster_axis=1, valid_global=193
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


def angles_of_some_columns(t: Env) -> None:
    """Only the columns in the middle turn: those before and behind stay, and others come before all of them."""
    turn = t.ttnn.experimental.deepseek_prefill.rotary_embedding_indexed
    swap = torch.zeros(1, 1, 32, 32)
    swap[..., range(0, 32, 2), range(1, 32, 2)] = 1
    swap[..., range(1, 32, 2), range(0, 32, 2)] = -1
    (cos, cosines), (sin, sines) = (spread(t, 1, 1, ROWS, 32) for _ in range(2))
    x, parts = spread(t, 1, 2, CHUNK, 128)
    prefix, before = spread(t, 1, 2, CHUNK, 64)
    how = {"kv_actual_global": 0, "cluster_axis": 1, "rotary_dim": 32, "rotary_offset": 32}
    out = turn(x, cos, sin, t.put(swap), **how)
    joined = turn(x, cos, sin, t.put(swap), concat_prefix=prefix, **how)
    wanted = [part.clone() for part in parts]
    for device, part in enumerate(wanted):
        for row in range(CHUNK):
            angle = (cosines[device][0, 0, row], sines[device][0, 0, row])
            for head in range(2):
                part[0, head, row, 32:64] = _turned(parts[device][0, head, row, 32:64], *angle)
    t.check(out, wanted, ulps=2)
    t.check(joined, [torch.cat(pair, -1) for pair in zip(before, wanted, strict=True)], ulps=2)


def _attended(q: Tensor, kv: Tensor, seen: list[int], width: int) -> Tensor:
    keys = kv[seen]
    return torch.softmax(q @ keys.T * 0.1, -1) @ keys[:, :width]


def attention_to_a_latent(t: Env) -> None:
    """Over the four devices of a row: a whole prompt, and a chunk behind 96 tokens that lie in a cache."""
    rows, heads, width = 64, 2, 64
    for before, entries in ((None, 1), (96, 2), (96, 4)):
        size = rows if before is None else ROWS
        q, queries = spread(t, 1, heads, rows, 128)
        kv, keys = spread(t, entries, 1, size, 128)
        end = 4 * rows - 40 if before is None else before + 4 * rows - 32
        how: dict[str, Any] = {} if before is None else dict(kv_cache_batch_idx=1, kv_actual_isl=before)
        if entries == 4:  # the second layer of the second user instead
            how = dict(
                slot_id=_number(t, 1), kv_cache_num_layers=2, kv_cache_layer_idx=1, kv_actual_isl_tensor=_number(t, 96)
            )
        buffer = t.put(torch.zeros(1, 1, 4 * size, 128))
        out, _ = t.ttnn.transformer.ring_mla(
            q, kv, persistent_output_buffer_kv=buffer, head_dim_v=width, logical_n=end, scale=0.1, dim=2,
            multi_device_global_semaphore=t.semaphores(2), num_links=1, cluster_axis=1, mesh_device=t.device,
            topology=t.linear, is_balanced=False, ccl_core_grid_offset=t.ttnn.CoreCoord(0, 6),
            program_config=t.ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=t.ttnn.CoreCoord(8, 6), q_chunk_size=32, k_chunk_size=32,
                exp_approx_mode=False,
            ), **how,
        )  # fmt: skip
        wanted = []
        for device in range(t.n):
            first = device // 4 * 4
            slabs = {}
            for other in range(4):
                for row in range(size):
                    position = row // rows * 4 * rows + other * rows + row % rows
                    slabs[position] = keys[first + other][entries - 1, 0, row]
            whole = torch.stack([slabs[position] for position in sorted(slabs)])
            part = torch.zeros(1, heads, rows, width)
            for number, (position, _) in enumerate(_rows_of(before or 0, device % 4, 4)):
                seen = [other for other in sorted(slabs) if other <= position and other < end]
                for head in range(heads):
                    part[0, head, number] = _attended(queries[device][0, head, number], whole, seen, width)
            wanted.append(part)
        t.check(out, wanted, ulps=8)
        assert all(value.isnan().all() for value in t.shadow.values(buffer))


CASES = collect(globals())
