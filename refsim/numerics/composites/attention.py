"""Attention: SDPA, joint and ring joint, as the streaming and the legacy kernel run it.

    for each chunk of keys, per row of queries:
      q . k --> bf16 --> largest so far --> minus it --> exp --> P --+--> sums of 32 columns apart, added by the packer
                                                                     +--> P . v --> packed
      exp(largest before - largest now) x (sums, output before) --> added by the packer
    at the end: sum of the 32 (+ exp(sink - largest)) --> 1 / sum --> x output

    mask        a tensor that is added: by the packer to scores in L1 (streaming), on the matrix unit (legacy)
                rows and columns that are hidden: the packer stamps minus infinity; chunks that no row sees are left out

    streaming (16-bit destination)   exp is Schraudolph's whatever the config says; all of it in bf16
                                     ring: largest, sums and output are carried from step to step, divided once
    legacy (32-bit destination)      exp as the config says; scores, P and sums in fp32, the rest in bf16, too
                                     ring: each step is divided, then merged by log-sum-exp and a sigmoid

The exponential of the correction has its approximation flag inverted (tt-metal 56925): `approximate` gives the accurate
one, otherwise it is a polynomial of degree 2 (16 bits) or 4 (32 bits), its scale cut to bf16.

Source: tt-metal's `compute_streaming.hpp`, `compute_common.hpp`, `ckernel_sfpu_sdpa.h` in the wheel of ttnn 0.81.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from refsim.numerics import cheap
from refsim.numerics.composites.compute import Compute, zeros_to
from refsim.numerics.formats import passes, truncate
from refsim.numerics.matrix_unit import FIDELITIES
from refsim.numerics.packer import accumulate, pack
from refsim.numerics.sfpu_exponentials import exp, exp_approximate, schraudolph
from refsim.numerics.vector_unit import exponent_of, with_exponent

SDPA = Compute("HiFi2", fp32_dest_acc_en=False, approximate=False)
MANY_ROWS = 256
"""Rows from which on level ``fast`` has the errors of some of them, see :func:`refsim.numerics.cheap.sampled`."""
K_CHUNK = 128
"""Keys of a chunk."""
Mask: TypeAlias = Tensor | Callable[[Tensor, Tensor], Tensor]
"""What is added to scores, (B or 1, H or 1, M, S); or which columns (S,) each row (M, 1) may not see, as booleans."""
Masking: TypeAlias = Callable[[Tensor], Tensor] | None
LEAST = torch.finfo(torch.bfloat16).min
"""Stands for minus infinity, whose difference from itself is no number: the matrix unit has neither."""
_POLYNOMIALS = {
    False: (0.9998487929243953, 1.0150876009852106, 0.5062836705674557),
    True: (1.0000001510806179, 0.9999622811804765, 0.49998365704615426, 0.16792157982882225, 0.041959439860014343),
}
"""e^f for |f| <= ln 2 / 2, by whether the destination has 32 bits."""


@dataclass
class Running:
    """What is carried from chunk to chunk: float32 (M, 1), (M, 32) and (M, D)."""

    largest: Tensor
    sums: Tensor
    output: Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    k_chunk: int = K_CHUNK,
    compute: Compute = SDPA,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``scaled_dot_product_attention``; the destination's width chooses the kernel.

    Args:
        q: float32 (B, H, M, D).
        k, v: float32 (B, H, S, D).
        mask: added to the scores, or what is hidden; what a row that sees nothing becomes means nothing.
        scale: of scores and mask, by default 1 / sqrt(D).
        k_chunk: keys of a chunk (``SDPAProgramConfig.k_chunk_size``).
        compute: HiFi2 and 16 bits by default; ``approximate`` is ``exp_approx_mode``.
        out_dtype: of the result.
    """
    visits = Visits(q, scale=scale, k_chunk=k_chunk, compute=compute, out_dtype=out_dtype)
    visits.visit(k, v, mask)
    return visits.result()


def joint_attention(
    q: Tensor,
    segments: list[tuple[Tensor, Tensor]],
    *,
    scale: float | None = None,
    k_chunk: int = K_CHUNK,
    compute: Compute = SDPA,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``joint_scaled_dot_product_attention`` of all queries; every segment of keys has chunks of its own.

    Args:
        q: float32 (B, H, M, D), spatial and joint queries, which don't see each other.
        segments: (k, v) of the spatial tokens, then of the joint ones (``joint_strategy="rear"``).
        scale, k_chunk, compute, out_dtype: as of :func:`attention`.
    """
    visits = Visits(q, scale=scale, k_chunk=k_chunk, compute=compute, out_dtype=out_dtype)
    for keys, values in segments:
        visits.visit(keys, values)
    return visits.result()


def ring_joint_attention(
    queries: list[Tensor],
    shards: list[tuple[Tensor, Tensor]],
    joint: tuple[Tensor, Tensor] | None = None,
    *,
    scale: float | None = None,
    k_chunk: int = K_CHUNK,
    compute: Compute = SDPA,
    out_dtype: str = "bfloat16",
) -> list[Tensor]:
    """Return ``ring_joint_scaled_dot_product_attention`` on every device of a ring.

    Args:
        queries: float32 (B, H, M, D) of each device.
        shards: (k, v) of each device, (B, H, S / devices, D).
        joint: (k, v) of the joint tokens, visited with the last device's shard.
        scale, k_chunk, compute, out_dtype: as of :func:`attention`.
    """
    devices = len(shards)
    results = []
    for device, q in enumerate(queries):
        visits = Visits(q, scale=scale, k_chunk=k_chunk, compute=compute, out_dtype=out_dtype)
        for step in range(devices):
            owner = (device - step) % devices
            visits.visit(*shards[owner])
            if joint is not None and owner == devices - 1:
                visits.visit(*joint)
            visits.end_step()
        results.append(visits.result())
    return results


class Visits:
    """Keys and values that pass by the queries of one device, a segment at a time.

    The streaming kernel carries what is running from step to step of a ring, the legacy one ends each step.

    Args:
        q: float32 (B, H, M, D).
        scale, k_chunk, compute, out_dtype: as of :func:`attention`.
    """

    def __init__(
        self,
        q: Tensor,
        *,
        scale: float | None = None,
        k_chunk: int = K_CHUNK,
        compute: Compute = SDPA,
        out_dtype: str = "bfloat16",
    ) -> None:
        self._q = q
        self._k_chunk = k_chunk
        self._compute = compute
        self._out_dtype = out_dtype
        self._scale = q.shape[-1] ** -0.5 if scale is None else scale
        self._heads = list(itertools.product(*map(range, q.shape[:2])))
        self._scratch: dict[int, Tensor] = {}
        if _is_sampled(q.shape[2], compute):
            self._seen = cheap.seen(q, _phases(compute))
        else:
            self._seen = q
        self._running: dict[tuple[int, int], Running] = {}
        self._merged: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def visit(self, keys: Tensor, values: Tensor, mask: Mask | None = None) -> None:
        """Attend to float32 (B, H, S, D), in chunks of their own."""
        chunks = list(self._chunks(keys.shape[2], mask))
        for head in self._heads:
            running = self._running.get(head)
            for chunk, hidden in chunks:
                masked = self._masking(head, chunk, mask, hidden)
                running = self._after_chunk(running, self._seen[head], keys[head][chunk], values[head][chunk], masked)
            if running is not None:
                self._running[head] = running

    def _chunks(self, size: int, mask: Mask | None) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield chunks of columns, and which of them rows may not see; None where all see all."""
        rows = torch.arange(self._q.shape[2])[:, None]
        for start in range(0, size, self._k_chunk):
            columns = torch.arange(start, min(start + self._k_chunk, size))
            hidden = None if mask is None or isinstance(mask, Tensor) else mask(rows, columns)
            if hidden is not None and hidden.all():
                continue
            yield slice(start, start + self._k_chunk), hidden if hidden is not None and hidden.any() else None

    def _masking(self, head: tuple[int, int], chunk: slice, mask: Mask | None, hidden: Tensor | None) -> Masking:
        """Return what masks the scores of a chunk, in place where it can."""
        if isinstance(mask, Tensor):
            added = mask[tuple(min(index, size - 1) for index, size in zip(head, mask.shape, strict=False))][..., chunk]
            return partial(_with_mask, mask=added.clamp(min=LEAST), compute=self._compute)
        return None if hidden is None else partial(_with_hidden, hidden=hidden)

    def _after_chunk(
        self, running: Running | None, q: Tensor, keys: Tensor, values: Tensor, masked: Masking
    ) -> Running:
        if not _is_sampled(q.shape[0], self._compute):
            return _chunk(running, q, keys, values, masked, self._scale, self._compute)
        columns = keys.shape[0]
        if columns not in self._scratch:
            self._scratch[columns] = torch.empty(q.shape[0], columns)
        return _sampled_chunk(running, q, keys, values, masked, self._scale, self._compute, self._scratch[columns])

    def end_step(self) -> None:
        """End a step of a ring: the legacy kernel divides, and merges with the steps before."""
        if self._compute.fp32_dest_acc_en:
            for head, running in self._running.items():
                before = self._merged.get(head)
                self._merged[head] = _merged(before, running, self._scale, self._compute, self._out_dtype)
            self._running = {}

    def result(self, sink: Tensor | None = None) -> Tensor:
        """Return float32 (B, H, M, columns of V), zeros where no keys were visited.

        Args:
            sink: a score of every head, (H,), scaled like the others, that takes its share and gives nothing.
        """
        answers = [self._answer(head, None if sink is None else sink[head[1]]) for head in self._heads]
        return torch.stack(answers).unflatten(0, self._q.shape[:2])

    def _answer(self, head: tuple[int, int], sink: Tensor | None) -> Tensor:
        if head in self._merged:
            return self._merged[head][0]
        if head not in self._running:
            return torch.zeros_like(self._q[head])
        running = self._running[head]
        extra = None if sink is None else _sink_power(sink, running.largest, self._scale, self._compute)
        return self._compute.store(_divided(running, self._compute, extra), self._out_dtype)

    def log_sum_exp(self) -> Tensor:
        """Return float32 (B, H, M), natural logarithm; the streaming kernel holds its parts but gives none."""
        rows = [self._merged[head][1] if head in self._merged else self._logarithm(head) for head in self._heads]
        return torch.stack(rows).reshape(self._q.shape[:-1])

    def _logarithm(self, head: tuple[int, int]) -> Tensor:
        if head not in self._running:
            return torch.full_like(self._q[head][..., :1], -torch.inf)
        running = self._running[head]
        return running.sums.sum(-1, keepdim=True).log() + running.largest * self._scale


def _phases(compute: Compute) -> int:
    return FIDELITIES.index(compute.fidelity) + 1


def _is_sampled(rows: int, compute: Compute) -> bool:
    """Whether products of many rows have the errors of some of them: of level ``fast``, a 16-bit destination."""
    return compute.level == "fast" and not compute.fp32_dest_acc_en and rows >= MANY_ROWS and passes() is not None


def _with_mask(scores: Tensor, mask: Tensor, compute: Compute) -> Tensor:
    """Add a mask to packed scores: by the packer in a 16-bit destination, on the matrix unit in one of 32."""
    if compute.fp32_dest_acc_en:
        return compute.store(compute.add(scores, mask)).clamp_(min=LEAST)
    return _added(scores, mask, "bfloat16", compute).clamp_(min=LEAST)


def _with_hidden(scores: Tensor, hidden: Tensor) -> Tensor:
    """Stamp minus infinity on packed scores, in place."""
    return scores.masked_fill_(hidden, LEAST)


def _chunk(
    before: Running | None, q: Tensor, keys: Tensor, values: Tensor, masked: Masking, scale: float, compute: Compute
) -> Running:
    """Return the running values after one chunk, whose scores are ``masked`` once they are packed."""
    scores = compute.store(compute.matmul(q, keys.mT))
    if masked is not None:
        scores = masked(scores)
    largest = _packed(truncate(scores, 10).amax(dim=-1, keepdim=True))
    if before is not None:
        largest = torch.maximum(before.largest, largest)
    powers = compute.store(_powers(compute.sub(scores, largest), scale, compute))
    now = Running(largest, _column_sums(powers, compute), _packed(compute.matmul(powers, values)))
    return now if before is None else _with_before(now, before, scale, compute)


def _sampled_chunk(
    before: Running | None, q: Tensor, keys: Tensor, values: Tensor, masked: Masking, scale: float, compute: Compute,
    scratch: Tensor,
) -> Running:  # fmt: skip
    """Do as :func:`_chunk`, each pass in place: products have the errors of some of their rows, at random.

    Args:
        q: what the phases see of it.
        scratch: float32 (M, N) for scores and powers.
    """
    phases = _phases(compute)
    scores, errors = cheap.sampled(q, keys.mT, phases, scratch)
    nothing = torch.full((q.shape[0], 1), -torch.inf)
    largest = nothing.clone() if before is None else before.largest.clone()
    unmasked = largest if masked is None else nothing.clone()
    passes().noisy(scores.numpy(), *errors, scores.numpy(), unmasked[:, 0].numpy())
    if masked is not None:
        scores = masked(scores)
        largest = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
    sums = torch.empty(scores.shape[0], 32)
    factor, limit = (np.float32(x) for x in schraudolph(scale))
    mask = np.int32(-0x20000 if phases < 3 else -0x10000)
    passes().powers(scores.numpy(), largest[:, 0].numpy(), factor, limit, mask, scores.numpy(), sums.numpy())
    output, errors = cheap.sampled(scores, values, phases)
    passes().noisy(output.numpy(), *errors, output.numpy(), nothing[:, 0].numpy())
    now = Running(largest, sums, output)
    return now if before is None else _with_before(now, before, scale, compute)


def _with_before(now: Running, before: Running, scale: float, compute: Compute) -> Running:
    """Add what was running before a chunk, corrected to the chunk's maximum."""
    factor = _packed(correction(compute.sub(before.largest, now.largest), scale, compute))
    # what rows that saw nothing before have gathered of hidden columns goes
    factor = torch.where((before.largest == LEAST) & (now.largest != LEAST), 0.0, factor)
    now.output = _added(now.output, compute.mul(before.output, factor), "bfloat16", compute)
    corrected = compute.mul(before.sums, factor)
    if compute.fp32_dest_acc_en:
        now.sums = compute.store(compute.add(now.sums, compute.store(corrected)))
    else:
        now.sums = _added(now.sums, corrected, compute.l1_dtype, compute)
    return now


def _powers(differences: Tensor, scale: float, compute: Compute) -> Tensor:
    """Return exp(scale x) in the destination; negative results of the approximate one are cut by the packer."""
    if compute.fp32_dest_acc_en and not compute.approximate:
        unit = compute.vector()
        return compute.sfpu("exp", unit.stored(unit.mul(differences, scale)))
    return exp_approximate(compute.vector(), differences, scale)


def correction(differences: Tensor, scale: float, compute: Compute) -> Tensor:
    """Return exp(scale x) of the difference of two maxima, by the flag's opposite."""
    unit = compute.vector()
    scaled = unit.mul(differences, truncate(torch.tensor(scale), 7).item())
    if compute.approximate:
        return exp(unit, scaled)
    turns = unit.mul(scaled, 1.4426950408889634)
    whole = (turns.sign() * torch.floor(turns.abs() + 0.5)).clamp(-127.0, 127.0)
    rest = unit.mad(whole, -0.6931471805599453, scaled)
    value = unit.polynomial(rest, _POLYNOMIALS[compute.fp32_dest_acc_en])
    exponent = exponent_of(value) + whole.to(torch.int32)
    return unit.stored(torch.where(exponent < 1, 0.0, with_exponent(value, exponent.clamp(1, 254))))


def _column_sums(powers: Tensor, compute: Compute) -> Tensor:
    """Return (M, 32): tiles of a row, added by the packer one after the other."""
    tiles = zeros_to(powers, -1, 32).unflatten(-1, (-1, 32))
    total = tiles[:, 0]
    for index in range(1, tiles.shape[1]):
        total = _added(total, tiles[:, index], compute.l1_dtype, compute)
    return total


def _added(stored: Tensor, x: Tensor, dtype: str, compute: Compute) -> Tensor:
    return accumulate(stored, x, dtype=dtype, fp32_dest_acc_en=compute.fp32_dest_acc_en)


def _packed(x: Tensor) -> Tensor:
    """Pack a maximum, a factor or an output: bf16 whatever the destination is."""
    return pack(x, "bfloat16")


def _sink_power(sink: Tensor, largest: Tensor, scale: float, compute: Compute) -> Tensor:
    """Return exp(scale (sink - largest)) in the destination; its exponential has the flag's opposite, too."""
    return correction(compute.sub(torch.full_like(largest, sink.item()), largest), scale, compute)


def _divided(running: Running, compute: Compute, extra: Tensor | None = None) -> Tensor:
    """Return the output over the sum of the 32 columns and what a sink adds, in the destination."""
    whole = _whole(running, compute)
    if extra is not None:
        unit = compute.vector()
        whole = unit.stored(unit.add(whole, extra))
    inverse = compute.store(compute.sfpu("reciprocal", whole))
    return compute.mul(running.output, inverse)


def _whole(running: Running, compute: Compute) -> Tensor:
    """Return the sum of the 32 columns in the destination: a matmul with ones."""
    total = compute.matmul(running.sums, torch.ones(32, 1))
    return compute.store(total) if compute.fp32_dest_acc_en else total


def _merged(
    before: tuple[Tensor, Tensor] | None,
    running: Running,
    scale: float,
    compute: Compute,
    out_dtype: str,
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp after a ring step of the legacy kernel."""
    logarithm = _packed(compute.sfpu("log", _whole(running, compute)))
    scaled = _packed(compute.mul(running.largest, torch.full_like(running.largest, scale).bfloat16().float()))
    sums = _packed(compute.add(scaled, logarithm))
    output = _packed(_divided(running, compute))
    if before is None:
        return compute.store(output, out_dtype), sums
    old_output, old_sums = before
    share = _packed(compute.sfpu("sigmoid", compute.sub(sums, old_sums)))
    moved = _packed(compute.mul(_packed(compute.sub(old_output, output)), share))
    rest = _packed(compute.sfpu("sigmoid", compute.sub(old_sums, sums)))
    remaining = _packed(compute.sfpu("log", rest))
    return compute.store(compute.sub(old_output, moved), out_dtype), _packed(compute.sub(old_sums, remaining))
