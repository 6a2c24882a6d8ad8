"""How far measurements lie from predictions, for the ranges of ``ranges.py``.

    python -m refsim.timing.fit.spread TRACES_DIR

Of every distinct measured operation the ratio measured / predicted is taken, by chip and class. Those that parameters
were fitted on are left out where enough others are left: of the chip, or else of both chips (``all`` classes at once:
of both). *Pipelines* are the figures that others published, beside what is predicted for them, *loops* the denoising
of more models on Blackhole; minutes are spent on those.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from refsim.base.config import parse_parallel
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.models import registry
from refsim.models.figures import Execution
from refsim.models.registry import figures
from refsim.timing.cost import device_ops, power
from refsim.timing.fit import measured, published
from refsim.timing.fit.measured import Measured
from refsim.timing.predict import estimate, loops, ranges
from refsim.timing.predict.ranges import LEAST, percentiles
from refsim.timing.read.op_names import KINDS
from refsim.timing.read.reading import read_published

UNSEEN = "bh_8xp150_deepseek_v3_d_p.csv"
"""A trace that no parameter was fitted on. What was seen in it: that a causal ring keeps step on its diagonal, that
operands stay in L1 and outputs there are not free, that a kernel was rewritten, that small packets gather slower."""
ARCHES = ("wormhole_b0", "blackhole")
Ratio = tuple[str, str, bool, float]
"""Chip, class, whether parameters were fitted on the operation, measured / predicted."""


def ratios(measured: Iterable[Measured], *, fitted: bool = False) -> list[Ratio]:
    """Return those of measured operations, without those that have no price.

    Args:
        fitted: parameters were fitted on them.
    """
    rows = []
    for m in measured:
        with suppress(device_ops.Unpriced):
            rows.append((m.op.arch, m.kind, fitted, m.ns / device_ops.price(m.op).ns))
    return rows


def of(every: list[Ratio]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the spread of each class by chip, as ``spread.json`` keeps it."""
    spreads: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for arch in ARCHES:
        for kind in (*KINDS, "all"):
            rows = [r for r in every if kind in (r[1], "all")]
            choices = (
                [r for r in rows if r[0] == arch and not r[2] and kind != "all"],
                [r for r in rows if not r[2]],
                [r for r in rows if r[0] == arch],
            )
            chosen = next((choice for choice in choices if len(choice) >= LEAST), rows)
            if chosen:
                low, high = percentiles([r[3] for r in chosen])
                fitted = any(r[2] for r in chosen)
                spreads[arch][kind] = {
                    "low": round(low, 3), "high": round(high, 3), "shapes": len(chosen), "fitted": fitted,
                }  # fmt: skip
    return dict(spreads)


def pipelines() -> list[dict[str, Any]]:
    """Return published / predicted of every published pipeline."""
    rows = []
    for (model, size, mesh, parallel), known in figures().items():
        e = estimate.as_published(known)
        row = {"model": model, "size": size, "mesh": mesh, "parallel": parallel, "arch": e.mesh.arch}
        rows.append(row | {"published": known.seconds, "ratio": round(known.seconds / e.seconds_of(known), 3)})
        print(f"{model} {size} {mesh} {parallel}: published / predicted {rows[-1]['ratio']}", flush=True)
    return rows


def measured_loops() -> list[dict[str, Any]]:
    """Return the loops of ``published.UNSEEN_LOOPS``: ``beyond`` is measured / predicted kernels, ``ratio`` measured /
    predicted, where the other models' loops alone say what loops take beyond kernels.
    """
    priced = []
    for loop in published.UNSEEN_LOOPS:
        on = get_mesh(loop.mesh)
        known = registry.published()[loop.model]
        parallel = parse_parallel(loop.parallel, on)
        reading = read_published(known, loop.latent, RunOptions(on, parallel, dtype="bf16"), batch=parallel.cfg)
        execution = Execution(topology=loop.topology, chunks=loop.chunks, fsdp=loop.fsdp)
        e = estimate.estimate(loop.model, on, parallel, reading=reading, execution=execution)
        kernels = e.seconds / e.steps / e.timeline.slow
        least = power.least_ns(e.flops, on, execution.fidelity) * e.forwards_per_step / 1e9
        row = {"model": loop.model, "latent": loop.latent, "mesh": loop.mesh, "parallel": loop.parallel}
        row |= {"arch": on.arch, "published": round(loop.seconds, 4), "beyond": round(loop.seconds / kernels, 3)}
        priced.append((row, kernels, least))
        print(f"{loop.model} {loop.latent} {loop.mesh} {loop.parallel}: measured / kernels {row['beyond']}", flush=True)
    rows = [row for row, _, _ in priced]
    for row, kernels, least in priced:
        others = loops.factor(row["arch"], [other for other in rows if other["model"] != row["model"]])
        row["ratio"] = round(row["published"] / max(kernels * others, least), 3)
    return rows


def main(folder: Path) -> None:
    every = [
        *ratios(measured.calibration(folder), fitted=True),
        *ratios(measured.validation(folder)),
        *ratios(measured.trace(folder / UNSEEN)),
        *ratios(measured.gates()),
    ]
    classes = of(every)
    spreads = {
        "classes": classes,
        "pipelines": [],
        "loops": measured_loops(),
        "fitted": measured.CALIBRATION[:-1],
        "not fitted": [*measured.VALIDATION, UNSEEN, "published.SDPA_GATES"],
    }
    ranges.store(spreads)  # predictions of pipelines take from the loops what is beyond kernels
    ranges.store(spreads | {"pipelines": pipelines()})
    for arch, rows in classes.items():
        for kind, row in rows.items():
            note = " (partly fitted)" if row["fitted"] else ""
            print(f"{arch:12} {kind:12} {row['low']:6.2f} to {row['high']:6.2f} ({row['shapes']} shapes){note}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
