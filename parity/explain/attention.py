"""Attention alone: which rank, heads and rows are wrong, and the keys of which ring step weigh wrong.

The right answer of a row is a sum over the shards of keys, c_s = exp(lse_s - lse) out_s. A wrong answer is fitted by
sum a_s c_s over the rows of one rank: a_s = 0 says that shard s was left out, 2 that it was attended twice, and which
ring step that is follows from the topology. What no a_s explains is left over: the error lies elsewhere.

Legend: B batch, H heads, R rows (real image rows, then the prompt's), E features of a head, S shards of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parity.cases import AttentionShape, Layout
from parity.cases.oracles.formulas import joint_rows
from parity.explain.places import (
    Evidence,
    Features,
    Place,
    bounded,
    error_map,
    largest,
    log_error,
    relative,
    span,
    where,
)
from refsim.base.mesh import Topology
from refsim.parallel.padding import padded_heads
from refsim.parallel.sequence import TokenShards
from refsim.runtime.group import parallel_groups

MOST_ROWS = 48
"""Rows of one rank and head that are fitted."""
EXPLAINED = 0.2
"""A fit explains an error if less than this part of its energy is left."""
TOLERANCE = 0.003
"""A weight further from 1, and from that of other shards, is called wrong."""


@dataclass(frozen=True)
class Attended:
    """An answer beside the right one, all (B, H, R, E) and (B, H, R) in float64.

    Attributes:
        limit, lse_limit: largest error of a row in units of the reference's RMS, and of a log-sum-exp in units of it.
    """

    out: Tensor
    lse: Tensor
    ref: Tensor
    ref_lse: Tensor
    limit: float
    lse_limit: float


@dataclass(frozen=True)
class _Part:
    """What one rank answers: its heads and its image rows."""

    rank: int
    heads: range
    rows: range

    def of_heads(self, x: Tensor) -> Tensor:
        """Return the heads of (B, H, R) that it answers."""
        return x[:, self.heads.start : self.heads.stop]

    def of(self, x: Tensor) -> Tensor:
        """Return what it answers of (B, H, R)."""
        return self.of_heads(x)[:, :, self.rows.start : self.rows.stop]


def find(attended: Attended, inputs: dict[str, Tensor], shape: AttentionShape, layout: Layout) -> Evidence:
    """Say where an answer is wrong; ``inputs`` as ``simulate_attention`` takes them."""
    error = relative((attended.out - attended.ref).square().mean(-1).sqrt(), attended.ref)  # (B, H, R)
    lse_error = (attended.lse - attended.ref_lse).abs() / attended.ref_lse.abs().clamp_min(1.0)
    lse_error = torch.where(lse_error.isfinite(), lse_error, torch.inf)
    limit = attended.limit
    both = torch.maximum(error, lse_error * limit / attended.lse_limit)
    wrong = both > limit
    parts = _parts(layout, shape)
    by_rank = [largest(part.of(both)) for part in parts]
    features = _features(attended, wrong, both, parts, shape)
    place = None
    if wrong.any():
        tensor = "out" if (error > limit).any() else "lse"
        bad = [part for part, worst in zip(parts, by_rank, strict=True) if worst > limit]
        if not bad:  # only rows of the prompt are wrong, which every rank may hold
            bad = [part for part in parts if part.of_heads(wrong).any()] or parts[:1]
        first = max(bad, key=lambda part: by_rank[part.rank])
        place, fitted = _place(attended, wrong, tensor, [part.rank for part in bad], first, (inputs, shape, layout))
        features |= fitted
    shards = [part.rows for part in _by_shard(layout, shape)]
    errors: list[list[float | None]] = [
        [float(both[:, head, rows.start : rows.stop].max()) for rows in shards] for head in range(both.shape[1])
    ]
    shown = error_map("error by head and shard", "heads", "shards of tokens", errors)
    return Evidence(place, by_rank, shown, features)


def _parts(layout: Layout, shape: AttentionShape) -> list[_Part]:
    options = layout.options()
    cut = TokenShards(shape.rows, options.parallel.sp, TokenShards.of(shape.n, options.parallel.sp).local_n)
    parts = []
    for rank in range(options.mesh.num_devices):
        groups = parallel_groups(options.mesh, options.parallel, rank)
        tp = groups["tp"]
        sp = groups["sp"]
        per_rank = padded_heads(shape.heads, tp.size) // tp.size
        heads = range(min(tp.index * per_rank, shape.heads), min((tp.index + 1) * per_rank, shape.heads))
        parts.append(_Part(rank, heads, range(*cut.tokens(sp.index))))
    return parts


def _by_shard(layout: Layout, shape: AttentionShape) -> list[_Part]:
    return list({part.rows.start: part for part in reversed(_parts(layout, shape)) if len(part.rows)}.values())[::-1]


def _place(
    attended: Attended, wrong: Tensor, tensor: str, ranks: list[int], part: _Part, asked: tuple
) -> tuple[Place, Features]:
    inputs, shape, layout = asked
    rows = part.of(wrong)
    if not rows.any():
        rows = part.of_heads(wrong)[:, :, shape.rows :]
        start = shape.rows
        note = "only rows of the prompt"
    else:
        start = part.rows.start
        note = ""
    heads = span(where(rows.any(2).any(0)), part.heads.start)
    range_ = span(where(rows.any(1).any(0)), start)
    step, features = _fit(attended, heads, range_, part, (inputs, shape, layout))
    mesh = layout.options().mesh
    collective = "ring_attention" if layout.config().ring > 1 else "all_to_all" if layout.config().ulysses > 1 else ""
    note = ", ".join([note] * bool(note) + [f"inside of {collective}"] * bool(collective))
    return Place(tensor, part.rank, tuple(ranks), mesh.coord(part.rank), heads, range_, step=step, note=note), features


def _fit(attended: Attended, heads: tuple, rows: tuple, part: _Part, asked: tuple) -> tuple[int | None, Features]:
    """Return the ring step whose keys weigh wrong on a rank, and the weights by role of the shard."""
    inputs, shape, layout = asked
    batch = 0
    head = max(
        range(*heads), key=lambda h: float((attended.out - attended.ref)[batch, h, rows[0] : rows[1]].abs().max())
    )
    at = slice(rows[0], min(rows[1], rows[0] + MOST_ROWS))
    pieces, names = _contributions(inputs, shape, layout, (batch, head, at))
    out = attended.out[batch, head, at]
    ref = attended.ref[batch, head, at]
    if not torch.isfinite(out).all() or not torch.isfinite(attended.lse[batch, head, at]).all():
        return None, {"coef:finite": 0.0}
    # as it is, and before the division by the sum of weights, which a shard left out changes for all others
    scale = (attended.lse - attended.ref_lse)[batch, head, at].clamp(-20, 20).exp().unsqueeze(-1)
    left, weights = _solve(pieces, out, ref)
    left_sum, sums = _solve(pieces, out * scale, ref)
    if left_sum < left:
        weights = sums
    steps = [_step(layout, part.rank, shard) if shard >= 0 else -1 for shard in names]
    last = max((s for s in steps if s is not None), default=0)
    roles: dict[str, list[float]] = {}
    for step, weight in zip(steps, weights.tolist(), strict=True):
        role = "prompt" if step == -1 else "own" if step == 0 else "last" if step == last else "middle"
        roles.setdefault(role, []).append(weight)
    features = {f"coef:{role}": bounded(sum(w) / len(w)) for role, w in roles.items()}
    features |= {"coef:left": bounded(left, 1.0), "coef:left_sum": bounded(left_sum, 1.0)}
    off = weights - 1
    wrong = [(abs(w), s) for w, s in zip(off.tolist(), steps, strict=True) if abs(w) > TOLERANCE]
    alike = float(off.max() - off.min()) < TOLERANCE  # a factor on everything, which no step makes
    step = max(wrong)[1] if wrong and not alike and min(left, left_sum) < EXPLAINED else None
    return step, features


def _solve(pieces: list[Tensor], out: Tensor, ref: Tensor) -> tuple[float, Tensor]:
    """Return the part of the error that a sum of weighted pieces leaves, and the weights."""
    basis = torch.stack([piece.flatten() for piece in pieces], 1)
    weights = torch.linalg.lstsq(basis, out.flatten().unsqueeze(1), driver="gelsd").solution.flatten()
    left = (basis @ weights - out.flatten()).square().sum() / (out - ref).square().sum().clamp_min(1e-30)
    return float(left), weights


def _contributions(inputs: dict[str, Tensor], shape: AttentionShape, layout: Layout, at: tuple) -> tuple[list, list]:
    """Return what the keys of each ring member, and of the prompt, add to some rows of a head, and whose they are."""
    batch, head, rows = at
    q, k, v = (joint_rows(inputs, name, shape.rows)[batch, head].double() for name in ("q", "k", "v"))
    weights = torch.softmax(q[rows] @ k.T * q.shape[-1] ** -0.5, -1)
    config = layout.config()
    cut = TokenShards(shape.rows, config.sp, TokenShards.of(shape.n, config.sp).local_n)
    pieces = []
    names = []
    for member in range(config.ring):
        shards = range(member * config.ulysses, (member + 1) * config.ulysses)
        start = cut.tokens(shards[0])[0]
        stop = cut.tokens(shards[-1])[1]
        if start < stop:
            pieces.append(weights[:, start:stop] @ v[start:stop])
            names.append(member)
    if shape.text:
        pieces.append(weights[:, shape.rows :] @ v[shape.rows :])
        names.append(-1)
    return pieces, names


def _step(layout: Layout, rank: int, member: int) -> int:
    """Return the ring step at which a rank attends to the keys of a member of its ring."""
    options = layout.options()
    ring = parallel_groups(options.mesh, options.parallel, rank)["ring"]
    if ring.topology is Topology.RING:
        return (ring.index - member) % ring.size
    return abs(ring.index - member)


def _features(attended: Attended, wrong: Tensor, both: Tensor, parts: list[_Part], shape: AttentionShape) -> Features:
    """Return what the wrong answer looks like, in numbers that do not depend on the mesh and its size."""
    image = wrong[:, :, : shape.rows]
    prompt = wrong[:, :, shape.rows :]
    wrong_parts = [float(part.of(wrong).float().mean()) for part in parts if part.rows]
    firsts = [p.rows.start for p in parts if len(p.rows)]
    finite = torch.where(attended.out.isfinite(), attended.out, 0.0)
    extra = (attended.lse.exp() - attended.ref_lse.exp())[wrong]
    spread = float(extra.std(correction=0)) / max(float(extra.abs().mean()), 1e-9) if extra.numel() else 0.0
    ratio = float((finite * attended.ref).sum() / attended.ref.square().sum()) - 1
    features = {
        "share:ranks": sum(x > 0 for x in wrong_parts) / max(len(wrong_parts), 1),
        "share:of_rank": max(wrong_parts, default=0.0),
        "share:heads": float(wrong.any(2).any(0).float().mean()),
        "share:image": float(image.float().mean()),
        "share:prompt": float(prompt.float().mean()) if prompt.numel() else 0.0,
        "share:first_rows": float(image[:, :, firsts].float().mean()),
        "log:out": log_error(
            float((finite - attended.ref).square().mean().sqrt() / attended.ref.square().mean().sqrt())
        ),
        "log:lse": log_error(float((attended.lse - attended.ref_lse).abs().nan_to_num(posinf=9, neginf=9).mean())),
        "log:gain": log_error(ratio),
        "coef:sign": float((ratio > 0) - (ratio < 0)) if abs(ratio) > 1e-4 else 0.0,
        "coef:lse_sign": float(torch.sign(extra).mean()) if extra.numel() else 0.0,
        "log:extra_keys": log_error(float(extra.abs().median()) if extra.numel() else 0.0),
        "coef:extra_even": bounded(spread),
        "share:out_in_bf16": float((finite.float().bfloat16().double() == finite).double().mean()),
        "share:lse_in_bf16": float((attended.lse.float().bfloat16().double() == attended.lse).double().mean()),
        "share:not_finite": float((~attended.out.isfinite()).double().gt(0).any()),
        "log:offset": log_error(float((finite - attended.ref).mean() / attended.ref.std())),
    }
    return features | _moved(finite, attended.ref, wrong)


def _moved(out: Tensor, ref: Tensor, wrong: Tensor) -> Features:
    """Return the parts of the wrong heads and rows whose answer is, almost to the bit, another head's or row's."""

    def other(a: Tensor, b: Tensor) -> float:
        """Return the part of the lines of ``a`` that equal another line of ``b`` and not their own."""
        distance = torch.cdist(a, b) / b.norm(dim=1).mean()
        nearest = distance.argmin(1)
        moved = (nearest != torch.arange(len(a))) & (distance.min(1).values < 0.01)
        return float(moved.double().mean())

    heads = other(out[0].flatten(1), ref[0].flatten(1))
    head = int(wrong[0].sum(1).argmax())
    rows = other(out[0, head], ref[0, head])
    return {"share:moved_heads": heads, "share:moved_rows": rows}
