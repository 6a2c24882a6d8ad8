"""Which chunk sizes of ring attention fit a core's L1 on a mesh, and which ttnn refuses; needs shapes, not values.

    q chunk x k chunk --capture without dispatch--> circular buffers of the fullest core, whether they fit or not
                      --the same call in earnest--> ttnn takes it, or refuses it in its own words

Counterpart of nothing in ``refsim``: only a device has circular buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import torch
import ttnn

from refsim.base.options import RunOptions
from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV, ring_attention
from tt_impl.parallel.sdpa import program_config
from tt_impl.pipelines.transformer import submeshes
from tt_impl.trace.graph import capturing
from tt_impl.trace.usage import usage

Q_CHUNKS = (32, 64, 128, 256, 512)
K_CHUNKS = (128, 256, 512, 1024)


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, q: list[int], rear: list[int] | None
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Every pair of chunk sizes for one device's queries ``q`` (B, heads, local N, E) and prompt ``rear``, or None.

    The report has ``total``, the bytes of a core's L1, ``used``, the pair that the models take, and ``rows``, one per
    pair: ``q`` and ``k``, ``bytes`` of the fullest core, ``refused``, ttnn's sentence or empty.
    """
    submesh = submeshes(device, options)[0]
    streams = [None if shape is None else _streams(submesh, shape) for shape in (q, rear)]
    used = program_config(Context(submesh, options), q[2], reserve_row=True)
    rows = []
    for chunks in product(Q_CHUNKS, K_CHUNKS):
        attend = partial(_attend, submesh, options, streams, chunks)
        rows.append({"q": chunks[0], "k": chunks[1], "bytes": _bytes(submesh, attend), "refused": _refusal(attend)})
    total = ttnn.get_memory_view(submesh, ttnn.BufferType.L1).total_bytes_per_bank
    return {"total": total, "used": [used.q_chunk_size, used.k_chunk_size], "rows": rows}, {}


def _streams(device: ttnn.MeshDevice, shape: list[int]) -> QKV:
    q, k, v = (ttnn.empty(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT, device) for _ in "qkv")
    return q, k, v


def _attend(device: ttnn.MeshDevice, options: RunOptions, streams: list[QKV | None], chunks: tuple[int, int]) -> None:
    """One call with semaphores and buffers of its own, as one that is refused leaves them lent."""
    ctx = Context(device, options)
    ctx.chunks = chunks
    qkv, rear = streams
    assert qkv is not None
    ring_attention(ctx, qkv, rear, logical_n=qkv[0].shape[2] * ctx.ring)


def _bytes(device: ttnn.MeshDevice, attend: Callable[[], None]) -> int:
    """L1 of the fullest core, whether it fits or not; 0 where ttnn builds no program."""
    with suppress(RuntimeError), capturing(dispatch=False, calls=True) as nodes:  # asked again in earnest
        attend()
    return usage(nodes, device).l1_peak.size


def _refusal(attend: Callable[[], None]) -> str:
    """Return what ttnn says against the call, empty if nothing."""
    try:
        attend()
    except RuntimeError as error:
        lines = str(error).partition("backtrace:")[0].splitlines()[1:]
        return " ".join(line.strip() for line in lines if line.strip() not in ("", "info:"))[:300]
    return ""
