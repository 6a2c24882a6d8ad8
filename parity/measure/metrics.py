"""How far an answer is from its reference, on float64, in ways that do not hide each other's blind spots.

Legend: G groups judged on their own (batch x heads, or batch), N tokens, F features.

What each metric misses, and which other one sees it:
    PCC          a factor or an offset on everything                        -> relative RMSE, CCC
    whole tensor one bad shard out of many                                  -> worst PCC over groups and shards
    per shard    a few wrong rows where shards meet (masks, rear, merge)    -> PCC of the seam rows
    averages     one wrong token, one wrong value                           -> worst token, largest error in ulps
    all of them  NaN, which compares as false with every bound              -> every value here becomes NaN, and
                                                                               ``thresholds.judge`` fails on NaN
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Range = tuple[int, int]

SEAM_WIDTH = 2
"""Rows on either side of a border that count as seam: one is the border, two also shows an error of one row's shift."""

LEAST_CONTRAST = 32.0
FLAT = 4.0
"""Of 256 levels. A picture of a contrast of 4 in place of another one is off by 5.7, and so by 0.18 of 32."""

_CONSTANT = 1e-6
"""A reference whose spread is below this part of its size is constant as far as fp32 can tell."""


def rel_rmse(out: Tensor, ref: Tensor) -> float:
    """Return the RMS of the error over the reference's standard deviation; over its RMS where it is constant.

    Args: two tensors of one shape. Returns NaN if either holds anything non-finite, inf for an error against zeros.
    """
    out, ref = _pair(out, ref)
    return _ratio(_rms(out - ref), _spread(ref)) if _is_finite(out, ref) else math.nan


def one_minus_pcc(out: Tensor, ref: Tensor) -> float:
    """Return 1 - Pearson correlation, without cancellation: half the squared distance of two normalised vectors.

    ``1 - corrcoef`` has no digit left below 1e-16 and few above; this has full relative accuracy. Where the reference
    is constant a correlation says nothing; there it is half the squared :func:`rel_rmse`, which is what 1 - PCC tends
    to for small unbiased errors, at most 1. A constant answer to a reference that is not constant counts as 1.
    """
    out, ref = _pair(out, ref)
    if not _is_finite(out, ref):
        return math.nan
    if _is_constant(ref):
        return min(1.0, 0.5 * _ratio(_rms(out - ref), _spread(ref)) ** 2)
    centred = [x - x.mean() for x in (out, ref)]
    norms = [float(x.norm()) for x in centred]
    if norms[0] == 0.0:
        return 1.0
    a, b = (x / n for x, n in zip(centred, norms, strict=True))
    return 0.5 * float((a - b).square().sum())


def one_minus_ccc(out: Tensor, ref: Tensor) -> float:
    """Return 1 - Lin's concordance: mean squared distance over (both variances + squared distance of the means).

    A correlation that a factor or an offset lowers too. NaN if either holds anything non-finite.
    """
    out, ref = _pair(out, ref)
    if not _is_finite(out, ref):
        return math.nan
    spread = float(out.var(correction=0) + ref.var(correction=0) + (out.mean() - ref.mean()).square())
    return _ratio(float((out - ref).square().mean()), spread)


def worst_token(out_GNF: Tensor, ref_GNF: Tensor) -> float:
    """Return the largest RMS error of a token (of a group) over the RMS of the whole reference."""
    out, ref = _pair(out_GNF, ref_GNF)
    if not _is_finite(out, ref):
        return math.nan
    return _ratio(math.sqrt(float((out - ref).square().mean(-1).max())), _rms(ref))


def max_ulp(out: Tensor, ref: Tensor, digits: int) -> float:
    """Return the largest error in units in the last of ``digits`` binary places (24: fp32, 8: bf16).

    A unit is that of the reference's value, or of its RMS where the value is smaller: near zero a value is what is
    left of larger ones, with their units.
    """
    out, ref = _pair(out, ref)
    if not _is_finite(out, ref):
        return math.nan
    size = ref.abs().clamp_min(max(_rms(ref), torch.finfo(torch.float64).tiny))
    return float(((out - ref).abs() / torch.exp2(size.log2().floor() - (digits - 1))).max())


def max_abs(out: Tensor, ref: Tensor) -> float:
    """Return the largest absolute difference; NaN if either holds anything non-finite."""
    out, ref = _pair(out, ref)
    return float((out - ref).abs().max()) if _is_finite(out, ref) else math.nan


def rel_max(out: Tensor, ref: Tensor) -> float:
    """Return the largest difference over the largest reference (at least 1), both absolute: a log-sum-exp's bound."""
    out, ref = _pair(out, ref)
    return max_abs(out, ref) / max(1.0, float(ref.abs().max()))


def non_finite(out: Tensor) -> int:
    """Count NaN and infinite values."""
    return int((~torch.isfinite(out)).sum())


def worst_shard(out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range]) -> float:
    """Return the largest 1 - PCC over every group and token range [start, stop); empty shards are left out."""
    out, ref = _pair(out_GNF, ref_GNF)
    parts = [(out[:, a:b].flatten(1), ref[:, a:b].flatten(1)) for a, b in shards if a < b]
    return worst(value for part in parts for value in _one_minus_pcc_of_rows(*part))


def _one_minus_pcc_of_rows(out_GM: Tensor, ref_GM: Tensor) -> list[float]:
    """Return :func:`one_minus_pcc` of every row; of all at a time where none is a special case."""
    centred = [x - x.mean(1, keepdim=True) for x in (out_GM, ref_GM)]
    norms = [x.norm(dim=1, keepdim=True) for x in centred]
    spread = norms[1].flatten()
    size = ref_GM.norm(dim=1)
    if bool((norms[0].flatten() > 0).all() and (spread > _CONSTANT * size).all() and _is_finite(*norms)):
        a, b = (x / n for x, n in zip(centred, norms, strict=True))
        return (0.5 * (a - b).square().sum(1)).tolist()
    return [one_minus_pcc(x, y) for x, y in zip(out_GM, ref_GM, strict=True)]


def gain(out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range]) -> float:
    """Return the largest |<out, ref> / <ref, ref> - 1| over every group and token range: a factor on one part.

    Rounding is unbiased and nearly cancels in the sum over a part, so a factor stands out that is smaller than the
    error of a single value. A part whose reference is 0 counts as 0 where the answer is 0, too, and as inf otherwise.
    """
    return worst(_gains(out_GNF, ref_GNF, shards).values())


def merged_gain(out_GNF: Tensor, ref_GNF: Tensor, lse_GN: Tensor, shards: Sequence[Range]) -> float:
    """Return :func:`gain` of attention, that of every part over its largest |log-sum-exp| (no less than 1).

    Parts are merged by exp of differences of log-sum-exps, each rounded in proportion to itself, which is a factor on
    whole rows that does not cancel where rows are alike. A part with one value a row, the same in all features, is left
    out: there are too few to cancel.
    """
    gains = _gains(out_GNF, ref_GNF, shards)
    return worst(
        x / max(1.0, float(lse_GN[g, a:b].abs().max()))
        for (g, a, b), x in gains.items()
        if not _are_alike(ref_GNF[g, a:b].double())
    )


def _are_alike(ref_NF: Tensor) -> bool:
    """Whether all features of every row are the same."""
    return float((ref_NF - ref_NF[:, :1]).abs().max()) <= _CONSTANT * _rms(ref_NF)


def _gains(out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range]) -> dict[tuple[int, int, int], float]:
    """Return the factor on every part, by (group, start, stop); NaN of all if anything is not finite."""
    out, ref = _pair(out_GNF, ref_GNF)
    places = [(g, a, b) for g in range(out.shape[0]) for a, b in shards if a < b]
    if not _is_finite(out, ref):
        return dict.fromkeys(places, math.nan)
    gains = {}
    for g, a, b in places:
        error = out[g, a:b] - ref[g, a:b]
        part = ref[g, a:b]
        size = float(part.square().sum())
        gains[g, a, b] = abs(float((error * part).sum())) / size if size else _ratio(_rms(error), 0.0)
    return gains


def cut(size: int, factor: int, scale: int = 1) -> list[Range]:
    """Cut ``size`` places into ``factor`` parts, the last ones shorter or empty; every place stands for ``scale``."""
    local = -(-size // factor)
    return [(min(i * local, size) * scale, min((i + 1) * local, size) * scale) for i in range(factor)]


def seam_rows(shards: Sequence[Range], width: int = SEAM_WIDTH) -> list[int]:
    """Return tokens within ``width`` of a border between two neighbouring non-empty shards, ascending."""
    real = [s for s in shards if s[0] < s[1]]
    rows: set[int] = set()
    for (_, border), (start, _) in itertools.pairwise(real):
        if border == start:
            rows.update(range(max(border - width, real[0][0]), min(border + width, real[-1][1])))
    return sorted(rows)


def seam(out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range], width: int = SEAM_WIDTH) -> float | None:
    """Return 1 - PCC over the seam rows of all groups; None where there is no border."""
    rows = seam_rows(shards, width)
    return one_minus_pcc(out_GNF[:, rows], ref_GNF[:, rows]) if rows else None


def seam_ratio(out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range], width: int = SEAM_WIDTH) -> float | None:
    """Return the RMS of the error over the seam rows of all groups, over that of the worst strip of other rows; None
    without a border or other rows.

    A strip is as high as a seam, or what is left between two. Neighbouring pixels come of the same sums and share their
    rounding, so that it differs from strip to strip by half: a seam is no worse than the worst of the others, unless it
    is wrong.

    0 where the seam is exact, inf where only the seam is not; NaN if anything is non-finite.
    """
    out, ref = _pair(out_GNF, ref_GNF)
    rows = seam_rows(shards, width)
    others = _strips(sorted(set(range(out.shape[1])) - set(rows)), 2 * width)
    if not rows or not others:
        return None
    squares = (out - ref).square().mean((0, 2))
    largest = max(float(squares[a:b].mean()) for a, b in others)
    return _ratio(float(squares[rows].mean()), largest) ** 0.5 if _is_finite(out, ref) else math.nan


def _strips(rows: Sequence[int], height: int) -> list[Range]:
    """Return every run of ``height`` neighbouring rows; runs that are shorter as they are."""
    strips = []
    for _, run in itertools.groupby(enumerate(rows), lambda at: at[1] - at[0]):
        here = [row for _, row in run]
        strips += [(row, min(row + height, here[-1] + 1)) for row in here[: max(1, len(here) - height + 1)]]
    return strips


def picture_error(out: Tensor, ref: Tensor) -> float:
    """Return the RMS of the difference of 8-bit values over the contrast of the reference: its spread, taken for
    ``LEAST_CONTRAST`` where it is less, since two right pictures differ by half a level however grey they are.
    """
    a, b = _pair(out, ref)
    return _rms(a - b) / max(float(b.std(correction=0)), LEAST_CONTRAST)


def is_flat(ref: Tensor) -> bool:
    """Whether a picture of 8-bit values has so little contrast that another one, or none, would hardly differ."""
    return float(ref.double().std(correction=0)) <= FLAT


def compare(
    out_GNF: Tensor, ref_GNF: Tensor, shards: Sequence[Range], *, digits: int | None = None
) -> dict[str, float | int | None]:
    """Measure one answer in all metrics, by the names of thresholds and records; ``digits`` as in :func:`max_ulp`."""
    return {
        "rel_rmse": rel_rmse(out_GNF, ref_GNF),
        "one_minus_pcc": one_minus_pcc(out_GNF, ref_GNF),
        "one_minus_pcc_shard": worst_shard(out_GNF, ref_GNF, shards),
        "one_minus_pcc_seam": seam(out_GNF, ref_GNF, shards),
        "one_minus_ccc": one_minus_ccc(out_GNF, ref_GNF),
        "gain": gain(out_GNF, ref_GNF, shards),
        "worst_token": worst_token(out_GNF, ref_GNF),
        "max_ulp": max_ulp(out_GNF, ref_GNF, digits) if digits else None,
        "max_abs": max_abs(out_GNF, ref_GNF),
        "non_finite": non_finite(out_GNF),
    }


def worst_of(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return of every metric the worst over all parts, None where no part has it; non-finite values are added up."""
    several = list(parts)
    measured = {name: [part[name] for part in several if part[name] is not None] for name in several[0]}
    metrics = {name: worst(values) if values else None for name, values in measured.items()}
    return metrics | {"non_finite": sum(part["non_finite"] for part in several)}


def worst(values: Iterable[float]) -> float:
    """Return the largest, NaN if any is NaN (``max`` would depend on the order); NaN of nothing, which then fails."""
    known = list(values)
    return math.nan if not known or any(math.isnan(v) for v in known) else max(known)


def wrong_seconds(parts: Iterable[float], whole: float) -> int:
    """Count the parts of a time that are below 0, and 1 more if they are longer together than the whole."""
    seconds = list(parts)
    return sum(not part >= 0 for part in seconds) + (sum(seconds) > whole)


def _pair(out: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    if out.shape != ref.shape:
        raise ValueError(f"the answer has shape {tuple(out.shape)} and its reference {tuple(ref.shape)}")
    if out.numel() == 0:
        raise ValueError("there is nothing to compare in tensors without elements")
    return out.double(), ref.double()


def _is_finite(*tensors: Tensor) -> bool:
    return all(math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all()) for x in tensors)  # a sum may overflow


def _rms(x: Tensor) -> float:
    return math.sqrt(float(x.square().mean()))


def _is_constant(ref: Tensor) -> bool:
    return float(ref.std(correction=0)) <= _CONSTANT * _rms(ref)


def _spread(ref: Tensor) -> float:
    return _rms(ref) if _is_constant(ref) else float(ref.std(correction=0))


def _ratio(error: float, size: float) -> float:
    if error == 0.0:
        return 0.0
    return error / size if size > 0.0 else math.inf
