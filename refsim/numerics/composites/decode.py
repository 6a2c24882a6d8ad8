"""Attention of single tokens to caches, `sdpa_flash_decode`: chunks of keys as in the legacy kernel of any destination.

    scores --> packed | + mask on the matrix unit | largest so far | minus it --> exp --> P | row sum --> packed
    P . v --> packed | before x exp(largest before - now) --> packed | + on the matrix unit
    a sink: sums and output corrected to the larger of both maxima, then exp(sink - largest) added to the sums
    at the end: output x 1 / sum

A device gives every core some of the chunks and merges what they have pairwise; here one has them all, in their order,
and merges by the same steps. Source: tt-metal's `sdpa_flash_decode.cpp` in the wheel of ttnn 0.81.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.composites.attention import LEAST, SDPA, correction
from refsim.numerics.composites.compute import Compute
from refsim.numerics.formats import truncate
from refsim.numerics.packer import pack
from refsim.numerics.sfpu_exponentials import exp_approximate

State = tuple[Tensor, Tensor, Tensor]
"""What is carried from chunk to chunk: the largest score and the sum (M, 1), the output (M, D)."""


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
    scale: float | None = None,
    k_chunk: int,
    compute: Compute = SDPA,
) -> Tensor:
    """Return attention of one token's heads that share a head of K and V, before it is packed.

    Args:
        q: float32 (M, D), a row each head.
        k, v: float32 (S, D), the keys that the token may see.
        mask: added to the scores, broadcasts to (M, S).
        sink: a score of every head, (M, 1).
        scale: by default 1 / sqrt(D).
        k_chunk: keys of a chunk.
        compute: HiFi2 and 16 bits by default; ``approximate`` is ``exp_approx_mode``.

    Returns:
        float32 (M, D), what the destination holds.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    state: State | None = None
    for start in range(0, k.shape[0], k_chunk):
        chunk = slice(start, start + k_chunk)
        scores = compute.store(compute.matmul(q, k[chunk].mT))
        if mask is not None:
            added = mask.expand(q.shape[0], -1)[:, chunk].clamp(min=LEAST)
            scores = compute.store(compute.add(scores, added)).clamp(min=LEAST)
        state = _after_chunk(state, scores, v[chunk], scale, compute)
    if state is None:
        return torch.zeros(q.shape[0], v.shape[-1])
    _, total, output = state if sink is None else _with_sink(state, sink, scale, compute)
    inverse = compute.store(compute.sfpu("reciprocal", total))
    return compute.mul(output, inverse)


def _after_chunk(before: State | None, scores: Tensor, values: Tensor, scale: float, compute: Compute) -> State:
    largest = pack(truncate(scores, 10).amax(dim=-1, keepdim=True), "bfloat16")
    if before is not None:
        largest = torch.maximum(before[0], largest)
    powers = compute.store(_powers(compute.sub(scores, largest), scale, compute))
    total = compute.store(compute.reduce("sum", powers))
    output = compute.store(compute.matmul(powers, values))
    if before is None:
        return largest, total, output
    _, total_before, output_before = _corrected(before, largest, scale, compute)
    total = compute.store(compute.add(total, total_before))
    return largest, total, compute.store(compute.add(output_before, output))


def _powers(differences: Tensor, scale: float, compute: Compute) -> Tensor:
    """Return exp(scale x) in the destination; the accurate one scales first."""
    unit = compute.vector()
    if compute.approximate:
        return exp_approximate(unit, differences, scale)
    return compute.sfpu("exp", unit.stored(unit.mul(differences, scale)))


def _corrected(before: State, largest: Tensor, scale: float, compute: Compute) -> State:
    """Return sums and output with another maximum; what came of nothing but hidden keys goes."""
    factor = pack(correction(compute.sub(before[0], largest), scale, compute), "bfloat16")
    factor = torch.where((before[0] == LEAST) & (largest != LEAST), 0.0, factor)
    return largest, *(compute.store(compute.mul(values, factor)) for values in before[1:])


def _with_sink(state: State, sink: Tensor, scale: float, compute: Compute) -> State:
    largest = torch.maximum(state[0], sink)
    _, total, output = _corrected(state, largest, scale, compute)
    share = pack(correction(compute.sub(sink, largest), scale, compute), "bfloat16")
    return largest, compute.store(compute.add(total, share)), output
