"""Attention without masks, plain, joint and over a ring, and rotary embedding.

A destination of 32 bits takes the legacy kernel, otherwise the streaming one runs; chunks are those of the program
config, 32 rows without one. Masks, windows and sinks are not modelled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refsim.numerics.composites import attention as composites
from refsim.numerics.composites import elementwise
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, computing

K_CHUNK = 32
"""Rows of K in a chunk without a program config."""


def _how(kernel: Kernel) -> dict[str, Any]:
    config = kernel.program_config
    approximate = getattr(config, "exp_approx_mode", None)
    compute = replace(kernel.compute(composites.SDPA), approximate=approximate is None or approximate)
    chunk = getattr(config, "k_chunk_size", None) or K_CHUNK
    return {"compute": compute, "k_chunk": chunk, "out_dtype": kernel.out_dtype}


def _for_heads(q: Tensor, x: Tensor) -> Tensor:
    """Return K or V with as many heads as Q: each is shared by a group of them."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def attend(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **other: Any) -> Tensor:
    if unknown := [name for name, value in other.items() if value is not None and value is not False]:
        raise Unmodelled(" and ".join(unknown))
    return composites.attention(q, _for_heads(q, k), _for_heads(q, v), scale=scale, **_how(kernel))


def attend_jointly(kernel: Kernel, q: Tensor, segments: list[tuple[Tensor, Tensor]], scale: float | None) -> Tensor:
    return composites.joint_attention(q, segments, scale=scale, **_how(kernel))


def attend_by_steps(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, rank: int, rows: list[int], scale: float | None
) -> Tensor:
    """Attend to shards of a ring in the order in which they come.

    Args:
        k, v: shards behind each other, then what all devices have.
        rank: this device's place.
        rows: where each shard begins, and where the last one ends.
        scale: of the scores.
    """
    size = len(rows) - 1
    k, v = (_for_heads(q, x) for x in (k, v))
    visits = composites.Visits(q, scale=scale, **_how(kernel))
    for step in range(size):
        owner = (rank - step) % size
        parts = [slice(rows[owner], rows[owner + 1])]
        if owner == size - 1:
            parts.append(slice(rows[-1], None))
        for part in parts:
            visits.visit(k[:, :, part], v[:, :, part])
        visits.end_step()
    return visits.result()


computing("transformer.scaled_dot_product_attention", attend=attend)
computing("transformer.joint_scaled_dot_product_attention", attend_jointly=attend_jointly)
computing(
    "transformer.ring_joint_scaled_dot_product_attention",
    "transformer.exp_ring_joint_scaled_dot_product_attention",
    attend_by_steps=attend_by_steps,
)


def rotate(
    kernel: Kernel, x: Tensor, cos: Tensor, sin: Tensor, transformation: Tensor, *, dtype: str | None = None
) -> Tensor:
    """Turn neighbours, packed as ``dtype``, by default the output's; another transformation is not modelled."""
    if not torch.equal(transformation.reshape(transformation.shape[-2:]), elementwise.swapped()):
        raise Unmodelled("another transformation")
    rows = x.shape[-2]
    compute = kernel.compute(elementwise.BINARY)
    cos, sin = (table[..., :rows, :] for table in (cos, sin))
    return elementwise.rotary(x, cos, sin, dtype=dtype or kernel.out_dtype, compute=compute)


def rotate_by_halves(kernel: Kernel, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn halves, which are moved and not multiplied."""
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    compute = kernel.compute(elementwise.BINARY)
    return elementwise.turned_by(x, turned, cos, sin, dtype=kernel.out_dtype, compute=compute)


computing(
    "experimental.rotary_embedding_llama",
    "experimental.rotary_embedding_llama_fused_qk",
    "experimental.deepseek_prefill.rotary_embedding_indexed",
    rotate=rotate,
)
computing("experimental.rotary_embedding_hf", "experimental.rotary_embedding", rotate_by_halves=rotate_by_halves)
