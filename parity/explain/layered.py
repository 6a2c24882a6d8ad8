"""A transformer's first wrong tensor in program order, from what every rank's layers took and gave.

What a layer took, its term and what it gave are compared with the oracle's (see :mod:`parity.measure.layers`); the
order is the
order in which the ranks computed them. The tensor before the first wrong one is right, so the mistake lies between.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from parity.explain.places import Evidence, Features, Place, bounded, device_map, log_error
from parity.measure.layers import Finding
from refsim.base.mesh import MeshSpec

_BLOCK = re.compile(r"blocks\.(\d+)")


def find(findings: Sequence[Finding], limits: dict[str, float], mesh: MeshSpec) -> Evidence:
    """Say which tensor is wrong first.

    Args:
        findings: of all ranks, each rank's in program order.
        limits: largest allowed value by metric; what is not named has no bound.
    """
    wrong = [f for f in findings if not all(f.metrics[name] <= limit for name, limit in limits.items())]
    by_rank = [0.0] * mesh.num_devices
    if not wrong:
        return Evidence(None, by_rank)
    index = min(f.index for f in wrong)
    first = [f for f in wrong if f.index == index]
    worst = max(first, key=_size)
    for f in wrong:
        by_rank[f.rank] = max(by_rank[f.rank], _size(f)) if f.name == worst.name else by_rank[f.rank]
    ranks = tuple(sorted({f.rank for f in first}))
    before = [f.name for f in findings if f.rank == worst.rank and f.index == index - 1]
    after = before[0] if before else "the inputs"
    pieces = [f for f in first if f.rank == worst.rank]
    whole = [f for f in findings if f.rank == worst.rank and f.index == index]
    heads = None
    if whole[0].pieces > 1:
        heads = worst.first_piece + min(f.piece for f in pieces), worst.first_piece + max(f.piece for f in pieces) + 1
    rows = _join([f.rows for f in pieces]) or (0, 0)
    collective = "reduce_scatter over tp" if after == f"{worst.name}.term" and worst.name else ""
    last = max((f for f in findings if f.rank == worst.rank and f.index < index), key=lambda f: f.index, default=None)
    place = Place(
        worst.name,
        worst.rank,
        ranks,
        mesh.coord(worst.rank),
        heads,
        after=last.name if last else "the inputs",
        collective=collective,
        note=_note(worst, rows),
    )
    features = _features(findings, wrong, first, (worst, after, mesh))
    return Evidence(place, by_rank, device_map(mesh, by_rank), features)


def _note(worst: Finding, rows: tuple[int, int]) -> str:
    part = f"token rows {rows[0]}..{rows[1] - 1} of its part"
    if math.isinf(worst.metrics["layer_rel_rmse"]):
        return f"{part}, not zero where it has to be"
    return f"{part}, error {worst.metrics['layer_rel_rmse']:.1e} of it"


def generic(name: str) -> str:
    """Return a tensor's name without the number of its block and the features it stands for."""
    return _BLOCK.sub("blocks.N", name.partition("@")[0])


def _size(f: Finding) -> float:
    error = f.metrics["layer_rel_rmse"]
    return math.inf if math.isnan(error) else error


def _join(ranges: list[tuple[int, int]]) -> tuple[int, int] | None:
    real = [r for r in ranges if r[0] < r[1]]
    return (min(r[0] for r in real), max(r[1] for r in real)) if real else None


def _features(findings: Sequence[Finding], wrong: list[Finding], first: list[Finding], at: tuple) -> Features:
    worst, after, mesh = at
    features = {
        f"first:{generic(worst.name)}": 1.0,
        f"after:{generic(after)}": 1.0,
        "share:ranks": len({f.rank for f in first}) / mesh.num_devices,
        "share:pieces": len(first) / max(sum(f.index == worst.index for f in findings), 1),
        "log:first_error": log_error(_size(worst)),
        "log:first_gain": log_error(worst.metrics["layer_gain"]),
        "coef:first_signed": bounded(worst.signed, 2.0),
        "coef:block": _block(worst.name, findings),
    }
    names: dict[str, list[bool]] = defaultdict(list)
    bad = {(f.rank, f.index) for f in wrong}
    for f in findings:
        names[generic(f.name)].append((f.rank, f.index) in bad)
    return features | {f"wrong:{name}": sum(x) / len(x) for name, x in names.items() if any(x)}


def _block(name: str, findings: Sequence[Finding]) -> float:
    """Return 0 for what stands in the first block or before it, 1 for the last block, between for one between."""
    last = max((int(match[1]) for f in findings if (match := _BLOCK.search(f.name))), default=0)
    match = _BLOCK.search(name)
    return int(match[1]) / last if match and last else 0.0
