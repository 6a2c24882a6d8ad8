"""Prompts that come in chunks, over the devices of an axis: caches cut in slabs, and the angles of their rows.

A slab is ``chunk`` rows of each of the P devices in order, one slab behind the other: row r of device p holds position
(r // chunk) * P * chunk + p * chunk + r % chunk. A chunk that begins in the middle of a slab, behind ``before`` tokens,
goes on on the device where the last one ended; the devices before that one begin with the next slab. As
models/demos/deepseek_v3_d_p/tests of tt-metal and the documentation of ttnn 0.81.1 have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.attention import attend
from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.registry import TILE, Call, across, nobodys
from tt_impl.mock.rules.ring_attention import stretches
from tt_impl.mock.rules.rotary import rotate
from tt_impl.mock.storage.values import Shards

_PREFILL = "experimental.deepseek_prefill"


def _first_row(before: int, place: int, devices: int, chunk: int) -> int:
    """Return where the rows of a chunk begin on the device in that place."""
    boundary = before // chunk % devices
    slab = before // (chunk * devices)
    if place < boundary:
        return (slab + 1) * chunk
    return slab * chunk + (before % chunk if place == boundary else 0)


def _positions(rows: int, place: int, devices: int, chunk: int) -> Tensor:
    """Return the positions of the first rows of the device in that place."""
    row = torch.arange(rows)
    return row // chunk * devices * chunk + place * chunk + row % chunk


def _number(value: Any) -> int:
    """Return a number, given as such or as a tensor of one that all devices hold."""
    return int(value[0].flatten()[0]) if isinstance(value, Shards) else int(value)


def _places(x: Shards, cluster_axis: int | None) -> tuple[list[int], int]:
    """Return every device's place along an axis, and how many there are."""
    return x.places(cluster_axis), x.ring_size(cluster_axis)


def _named(call: Call, args: tuple, named: dict[str, Any], words: str, of_tensors: str) -> dict[str, Any]:
    """Name arguments that came by position: ``words`` in order, or ``of_tensors`` where the second is a tensor."""
    names = (of_tensors if len(args) > 1 and isinstance(args[1], Shards) else words).split()
    named = dict(zip(names, args, strict=False)) | named
    call.check_named(named, (*words.split(), "valid_global"))
    return named


@across(f"{_PREFILL}.update_padded_kv_cache")
def update_padded_kv_cache(call: Call, cache: Shards, input: Shards, *args: Any, **named: Any) -> list[Tensor]:
    """Write a chunk, [1, H, chunk, E] a device, into the slabs of [users * layers, H, S, E].

    Of a chunk of which ``valid_global`` says where its tokens end, whole tiles that have none are not written.
    """
    words = "slot_idx layer_idx num_layers kv_actual_global cluster_axis"
    named = _named(call, args, named, words, "slot_idx kv_actual_global layer_idx num_layers cluster_axis")
    before = _number(named["kv_actual_global"])
    entry = _number(named["slot_idx"]) * named["num_layers"] + named["layer_idx"]
    places, devices = _places(cache, named["cluster_axis"])
    chunk = input.shape[-2]
    valid = _number(named["valid_global"]) if named.get("valid_global") is not None else None

    def written(cache: Tensor, new: Tensor, place: int) -> Tensor:
        first = _first_row(before, place, devices, chunk)
        result = cache.clone()
        rows = slice(first, first + chunk)
        target = _positions(first + chunk, place, devices, chunk)[rows]
        used = target < (target.max() + 1 if valid is None else (valid + TILE - 1) // TILE * TILE)
        result[entry, :, rows][:, used] = new[0][:, used]
        return result

    return [written(cache[device], input[device], place) for device, place in enumerate(places)]


@across(f"{_PREFILL}.zero_padded_kv_cache")
def zero_padded_kv_cache(call: Call, cache: Shards, *args: Any, pad_align: int = 128, **named: Any) -> list[Tensor]:
    """Clear the positions from ``valid_global`` up to the next multiple of ``pad_align`` in one entry of a cache."""
    words = "slot_idx layer_idx num_layers valid_global chunk_size_global cluster_axis pad_align"
    of_tensors = "slot_idx valid_global layer_idx num_layers chunk_size_global cluster_axis pad_align"
    named = {"pad_align": pad_align} | _named(call, args, named, words, of_tensors)
    valid = _number(named["valid_global"])
    entry = _number(named["slot_idx"]) * named["num_layers"] + named["layer_idx"]
    places, devices = _places(cache, named["cluster_axis"])
    chunk = named["chunk_size_global"] // devices
    end = (valid + named["pad_align"] - 1) // named["pad_align"] * named["pad_align"]

    def cleared(cache: Tensor, place: int) -> Tensor:
        target = _positions(cache.shape[-2], place, devices, chunk)
        result = cache.clone()
        result[entry, :, (target >= valid) & (target < end)] = 0
        return result

    return [cleared(cache[device], place) for device, place in enumerate(places)]


@across(f"{_PREFILL}.rotary_embedding_indexed")
def rotary_embedding_indexed(
    call: Call,
    input: Shards,
    cos: Shards,
    sin: Shards,
    trans_mat: Shards,
    kv_actual_global: Any,
    cluster_axis: int,
    *,
    seq_subshard_axis: int | None = None,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    concat_prefix: Shards | None = None,
    rotate: Callable[..., Tensor] = rotate,
) -> list[Tensor]:
    """Turn a chunk [1, H, N, E] by the angles of its rows, which lie in slabs of a cache [1, 1, S, R].

    ``seq_subshard_axis`` cuts the rows of a device once more. Of the columns ``rotary_dim`` from ``rotary_offset`` on
    are turned, all by default; those of ``concat_prefix`` come before them.
    """
    places, devices = _places(input, cluster_axis)
    parts, count = ([0] * len(places), 1) if seq_subshard_axis is None else _places(input, seq_subshard_axis)
    rows = input.shape[-2]
    before = _number(kv_actual_global)
    width = rotary_dim or input.shape[-1]

    def turned(x: Tensor, device: int) -> Tensor:
        first = _first_row(before, places[device], devices, rows * count) + parts[device] * rows
        angles = (table[device][..., first : first + rows, :] for table in (cos, sin))
        left, middle, right = x.split([rotary_offset, width, x.shape[-1] - rotary_offset - width], -1)
        prefix = [] if concat_prefix is None else [concat_prefix[device]]
        return torch.cat([*prefix, left, rotate(middle, *angles, trans_mat[device]), right], -1)

    return [turned(input[device], device) for device in range(len(input))]


@across("transformer.ring_mla")
def ring_mla(
    call: Call,
    input_tensor_q: Shards,
    input_tensor_kv: Shards,
    *,
    persistent_output_buffer_kv: Any = None,
    head_dim_v: int,
    logical_n: int,
    scale: float | None = None,
    dim: int,
    cluster_axis: int | None = None,
    is_balanced: bool = False,
    kv_cache_batch_idx: int | None = None,
    kv_actual_isl: int | None = None,
    slot_id: Shards | None = None,
    kv_actual_isl_tensor: Shards | None = None,
    kv_cache_num_layers: int | None = None,
    kv_cache_layer_idx: int | None = None,
    attend: Callable[..., Tensor] = attend,
) -> tuple[list[Tensor], list[Tensor]]:
    """Attend causally from [B, H, N, E] to one head [B, 1, S, E], whose first ``head_dim_v`` columns are V, too.

    N and S are cut over a ring; of a cache one entry is read, in slabs of N. A chunk begins behind ``kv_actual_isl``
    tokens. ``logical_n`` and later are padding. The second result is what devices keep for themselves.
    """
    rows = input_tensor_q.shape[2]
    before = kv_actual_isl if kv_actual_isl_tensor is None else _number(kv_actual_isl_tensor)
    if cluster_axis is None or dim != 2 or (before is None and rows != input_tensor_kv.shape[2]):
        raise call.unsupported("a ring of all axes, and a chunk that does not say what is before it")
    if is_balanced and before is not None:
        raise call.unsupported("balanced work on chunks")
    entry = kv_cache_batch_idx
    if slot_id is not None:
        entry = _number(slot_id) * (kv_cache_num_layers or 1) + (kv_cache_layer_idx or 0)
    places, devices = _places(input_tensor_q, cluster_axis)
    if persistent_output_buffer_kv is not None:
        call.leave_to_nobody(call.kwargs["persistent_output_buffer_kv"], len(places))
    size = input_tensor_kv.shape[2]

    def positions(length: int, place: int) -> Tensor:
        return stretches(place, devices, rows, True) if is_balanced else _positions(length, place, devices, rows)

    columns = torch.cat([positions(size, place) for place in range(devices)])

    def attention(q: Tensor, kv: Tensor, place: int) -> Tensor:
        first = _first_row(before, place, devices, rows) if before is not None else 0
        mine = positions(first + rows, place)[-rows:]
        kv = kv if entry is None else kv[entry : entry + 1]

        def hidden(rows: Tensor, seen: Tensor) -> Tensor:
            return (columns[seen] > mine[rows]) | (columns[seen] >= logical_n)

        return attend(q, kv, kv[..., :head_dim_v], scale=scale, hidden=hidden)

    whole = gathered(input_tensor_kv, 2, cluster_axis)
    return call.each(attention, input_tensor_q, whole, places), [nobodys(call.outputs[1].shape)] * len(places)
