"""Error of the timing model per operation, on calibration and on validation data apart.

    refsim bench accuracy TRACES_DIR [--shapes]

Per arch and op class: distinct shapes, bias (median signed error), MAPE, median and worst error, the error weighted by
measured time, and the vendor's own ideal model (PM IDEAL) beside it where a trace has it. Validation data were looked
at to find which effects the model lacked; every constant of those comes from elsewhere, named where it stands.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from refsim.timing.cost.device_ops import price
from refsim.timing.cost.fitted import get_params
from refsim.timing.fit import measured
from refsim.timing.fit.measured import Measured

_TABLES = {"matmul": "MinimalMatmulOp", "collective": "Collective", "sdpa": "RingJointSDPA"}
"""What lines of published tables are called, by class."""


def errors(samples: list[Measured]) -> pd.DataFrame:
    """Return a row a sample; ``error`` is predicted / measured - 1, ``total_ns`` the time of all runs."""
    rows = (
        (
            s,
            s.op.arch,
            s.kind,
            s.use,
            s.ns,
            s.ns * s.count,
            s.ideal_ns,
            price(s.op, get_params(s.op.arch)).ns / s.ns - 1,
        )
        for s in samples
    )
    return pd.DataFrame(rows, columns=["sample", "arch", "kind", "use", "ns", "total_ns", "ideal_ns", "error"])


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Return the errors of rows with ``ns``, ``total_ns``, ``ideal_ns`` and ``error``, by the names above."""
    size = rows["error"].abs()
    vendor = rows[rows["ideal_ns"] > 0]
    return {
        "shapes": len(rows),
        "bias": rows["error"].median(),
        "mape": size.mean(),
        "median": size.median(),
        "worst": size.max(),
        "by_time": (size * rows["total_ns"]).sum() / rows["total_ns"].sum(),
        "vendor_mape": (vendor["ideal_ns"] / vendor["ns"] - 1).abs().mean(),
    }


def table(samples: list[Measured]) -> list[tuple[str, str, dict[str, float]]]:
    """Return the errors by arch and class, by what a published table measures (``- use``), and of an arch (``all``)."""
    rows = errors(samples)
    parts = []
    for arch in ("wormhole_b0", "blackhole"):
        of_arch = rows[rows["arch"] == arch]
        for kind in ("matmul", "conv", "norm", "elementwise", "layout", "collective", "sdpa"):
            of_kind = of_arch[of_arch["kind"] == kind]
            parts.append((arch, kind, of_kind))
            parts += [(arch, f"- {use}", part) for use, part in of_kind[of_kind["use"] != ""].groupby("use")]
        parts.append((arch, "all", of_arch))
    return [(arch, name, summary(part)) for arch, name, part in parts if len(part)]


def print_tables(folder: Path, *, shapes: bool = False) -> None:
    """Print the errors on the calibration and the validation files of a folder, ``shapes`` one by one too."""
    for name, samples in (("calibration", measured.calibration(folder)), ("validation", measured.validation(folder))):
        heads = " ".join(f"{h:>8}" for h in ("bias", "MAPE", "median", "worst", "by time", "vendor"))
        print(f"\n{name}\n{'arch':12} {'class':28} shapes {heads}")
        for arch, kind, row in table(samples):
            numbers = " ".join(f"{row[k]:8.1%}" for k in ("bias", "mape", "median", "worst", "by_time", "vendor_mape"))
            print(f"{arch:12} {kind:28} {row['shapes']:6} {numbers}")
        if shapes and name == "calibration":
            for row in errors(samples).itertuples():
                s = row.sample
                label = f"{_TABLES[s.kind]} {s.use}" if s.use else s.op.name
                operands = s.sizes or [t.shape for t in s.op.inputs[:2]]
                print(f"{row.error:+7.1%} {s.ns / 1000:9.1f} us x{s.count:<4} {label} {operands}")
