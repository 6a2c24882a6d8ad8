"""Attention: plain, with masks, windows and sinks, of chunks, joint and over a ring; and rotary embedding.

A destination of 32 bits takes the legacy kernel, otherwise the streaming one runs; chunks are those of the program
config, 32 rows without one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from refsim.numerics.composites import attention as composites
from refsim.numerics.composites import elementwise
from refsim.numerics.composites.decode import decode_attention
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, computing, dtype_of
from tt_impl.mock.rules.attention import Hidden, later

K_CHUNK = 32
"""Rows of K in a chunk without a program config."""
ROWS = 1024
"""Rows of Q for which hidden columns are looked for at a time."""


def _how(kernel: Kernel) -> dict[str, Any]:
    config = kernel.program_config
    approximate = getattr(config, "exp_approx_mode", None)
    compute = replace(kernel.compute(composites.SDPA), approximate=approximate is None or approximate)
    chunk = getattr(config, "k_chunk_size", None) or K_CHUNK
    return {"compute": compute, "k_chunk": chunk, "out_dtype": kernel.out_dtype}


def _for_heads(q: Tensor, x: Tensor) -> Tensor:
    """Return K or V with as many heads as Q: each is shared by a group of them."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def attend(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, sink: Tensor | None = None,
    **seen: Any,
) -> Tensor:  # fmt: skip
    """Attend as :func:`tt_impl.mock.rules.attention.attend_with_scaled_mask`; rows that see nothing are NaN.

    Rows are independent of each other: where columns are hidden some at a time leave out the chunks that none sees.
    """
    mask = _mask(**seen)
    k, v = (_for_heads(q, x) for x in (k, v))
    sink = None if sink is None else sink.flatten()
    parts = []
    for start in range(0, q.shape[2], ROWS if callable(mask) else q.shape[2]):
        rows = q[:, :, start : start + ROWS] if callable(mask) else q
        part = partial(_hidden_from, (start, 0), mask) if callable(mask) else mask
        visits = composites.Visits(rows, scale=scale, **_how(kernel))
        visits.visit(k, v, part)
        parts.append(_without_blind_rows(visits.result(sink), part, k.shape[2]))
    return torch.cat(parts, 2)


def attend_with_mask_as_given(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None,
    **seen: Any,
) -> Tensor:  # fmt: skip
    """Attend as :func:`tt_impl.mock.rules.attention.attend`: ttnn multiplies the mask by 1 / scale beforehand."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if mask is not None and not scale:
        raise Unmodelled("a mask beside a scale of zero")
    if mask is not None and scale != 1:
        compute = kernel.default(elementwise.BINARY)
        factor = torch.full_like(mask, 1 / scale).bfloat16().float()
        dtype = dtype_of(kernel.call.kwargs["attn_mask"])
        mask = kernel.pack(compute, elementwise.product(compute, mask, factor), dtype)
    return attend(kernel, q, k, v, scale=scale, mask=mask, **seen)


def _mask(mask: Tensor | None = None, causal: bool = False, hidden: Hidden | None = None) -> Tensor | Hidden | None:
    if mask is not None and (causal or hidden is not None):
        raise Unmodelled("a mask beside a window")
    if mask is not None:
        return mask
    return later if causal and hidden is None else hidden


def _hidden_from(first: tuple[int, int], hidden: Hidden, rows: Tensor, columns: Tensor) -> Tensor:
    """Return what rows and columns behind the ``first`` ones may not see of each other."""
    return hidden(rows + first[0], columns + first[1]).expand(len(rows), -1)


def _without_blind_rows(out: Tensor, mask: composites.Mask | None, columns: int) -> Tensor:
    """Make those rows NaN that see no column, which is what the exact rule says of them."""
    if mask is None:
        return out
    if isinstance(mask, Tensor):
        blind = (mask == -torch.inf).all(-1, keepdim=True)
    else:
        blind = mask(torch.arange(out.shape[2])[:, None], torch.arange(columns)).all(-1, keepdim=True)
    return out.masked_fill(blind, torch.nan)


def attend_to_cache(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attend from one token [1, H, 1, E] to its keys; rows of a tile are the heads that share a head of K and V."""
    how = _how(kernel)
    chunk = getattr(kernel.program_config, "k_chunk_size", None) or _chunk_of_cache(k.shape[2])
    group = q.shape[1] // k.shape[1]
    heads = []
    for head in range(k.shape[1]):
        rows = slice(head * group, (head + 1) * group)
        out = decode_attention(
            q[0, rows, 0], k[0, head], v[0, head], mask=None if mask is None else mask[0, rows, 0], scale=scale,
            sink=None if sink is None else sink[rows, None], k_chunk=chunk, compute=how["compute"],
        )  # fmt: skip
        heads.append(kernel.pack(how["compute"], out))
    return torch.cat(heads)[None, :, None]


def _chunk_of_cache(tokens: int) -> int:
    """Return the rows of K in a chunk that ttnn chooses for a cache [from memory of its sources]."""
    return 32 if tokens <= 128 else 256 if tokens <= 256 else 512


def attend_jointly(kernel: Kernel, q: Tensor, segments: list[tuple[Tensor, Tensor]], scale: float | None) -> Tensor:
    return composites.joint_attention(q, segments, scale=scale, **_how(kernel))


def attend_by_steps(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, rank: int, rows: list[int], scale: float | None,
    hidden: Hidden | None = None,
) -> Tensor:  # fmt: skip
    """Attend to shards of a ring in the order in which they come.

    Args:
        k, v: shards behind each other, then what all devices have.
        rank: this device's place.
        rows: where each shard begins, and where the last one ends.
        scale: of the scores.
        hidden: which columns, of all shards behind each other, a row may not see.
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
            seen = None if hidden is None else partial(_hidden_from, (0, part.start), hidden)
            visits.visit(k[:, :, part], v[:, :, part], seen)
        visits.end_step()
    return visits.result()


computing("transformer.scaled_dot_product_attention", attend=attend_with_mask_as_given)
computing(
    "transformer.chunked_scaled_dot_product_attention",
    "transformer.flash_mla_prefill",
    "transformer.chunked_flash_mla_prefill",
    "transformer.ring_mla",
    "transformer.ring_distributed_scaled_dot_product_attention",
    attend=attend,
)
computing(
    "transformer.scaled_dot_product_attention_decode",
    "transformer.paged_scaled_dot_product_attention_decode",
    "transformer.flash_multi_latent_attention_decode",
    "transformer.paged_flash_multi_latent_attention_decode",
    attend=attend_to_cache,
)
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
