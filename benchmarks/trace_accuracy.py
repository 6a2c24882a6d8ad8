"""Error of the timing model on profiler files of anyone: ``refsim bench accuracy FILE.csv...``.

Every row that ran on a device is priced by its name, tensors and attributes; what has no price is counted and named.
*MAPE* is over distinct operations, *by time* weighs each by what it took in the file.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.accuracy import summary
from refsim.files.keys import Document
from refsim.timing.cost import device_ops
from refsim.timing.cost.device_ops import Unpriced
from refsim.timing.cost.ops import Params
from refsim.timing.fit import measured
from refsim.timing.read import profile

WORST = 10
HELD_OUT = "nothing was fitted on it"
FITTED = "parameters were fitted on it"


@dataclass(frozen=True)
class Comparison:
    """Measured beside predicted.

    Attributes:
        runs: a row of :func:`refsim.timing.read.profile.read` for every run, with ``kind``, ``predicted_ns`` (NaN where
            there is no price) and ``reason`` (why not).
        shapes: each distinct operation of a file once, with ``ns`` the mean of its ``count`` runs, ``error``
            (predicted / measured - 1) and ``share`` of the measured time of the file.
        left_out: how many rows and files, by reason: signposts and host operations, rows that no device can have
            written, files that name no chip.
    """

    runs: pd.DataFrame
    shapes: pd.DataFrame
    left_out: Counter[str]


def compare(paths: list[Path], arch: str | None = None, params: Params | None = None) -> Comparison:
    """Return the comparison of all files.

    Args:
        arch: for files that do not name their chip.
        params: of another calibration than the stored one.
    """
    runs = []
    shapes = []
    tables, left_out = profile.read_all(paths, arch)
    for rows in tables:
        operations = profile.distinct(rows)
        priced = [_priced(row, params) for row in operations.itertuples()]
        operations[["kind", "predicted_ns", "reason"]] = pd.DataFrame(priced, index=operations.index)
        columns = [*profile.KEY, "kind", "predicted_ns", "reason"]
        runs.append(rows.merge(operations[columns], on=profile.KEY, how="left", sort=False))
        shapes.append(operations)
    every = pd.concat(shapes, ignore_index=True)
    every["error"] = every["predicted_ns"] / every["ns"] - 1
    every["total_ns"] = every["ns"] * every["count"]
    every["share"] = every["total_ns"] / every["total_ns"].sum()
    return Comparison(pd.concat(runs, ignore_index=True), every, left_out)


def _priced(row: Any, params: Params | None) -> tuple[str, float, str]:
    try:
        price = device_ops.price(profile.device_op(row), params)
    except Unpriced as reason:
        return "unclassified", math.nan, str(reason)
    return price.kind, price.ns, ""


def classes(comparison: Comparison) -> pd.DataFrame:
    """Return the errors by class of operation, and of all: ``shapes``, ``bias`` (median), ``mape``, ``median``,
    ``worst``, ``by_time``, ``vendor_mape`` (of the profiler's PM IDEAL), ``share`` of the measured time.
    """
    priced = comparison.shapes.dropna(subset="predicted_ns")
    parts = [*priced.groupby("kind", sort=True), *([("all", priced)] if len(priced) else [])]
    rows = {kind: summary(part) | {"share": part["share"].sum()} for kind, part in parts}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("class").reset_index()


def by_class(comparison: Comparison) -> list[dict[str, Any]]:
    """Return by class of operation runs, measured and predicted us; None where one has no price."""
    rows = []
    for kind, part in comparison.runs.groupby("kind", sort=True):
        predicted = None if part["predicted_ns"].isna().any() else float(part["predicted_ns"].sum() / 1000)
        row = {"op": str(kind), "count": len(part), "measured_us": float(part["ns"].sum() / 1000)}
        rows.append(row | {"predicted_us": predicted})
    return rows


def devices(comparison: Comparison) -> pd.DataFrame:
    """Return what each device of each file measured and was predicted, in us of kernels that have a price; the
    ``critical`` device of a file is the one that measured most.
    """
    priced = comparison.runs.dropna(subset="predicted_ns")
    each = priced.groupby(["source", "device"], sort=True)[["ns", "predicted_ns"]].sum().div(1000).reset_index()
    each = each.rename(columns={"ns": "measured_us", "predicted_ns": "predicted_us"})
    each["error"] = each["predicted_us"] / each["measured_us"] - 1
    each["critical"] = each["measured_us"] == each.groupby("source")["measured_us"].transform("max")
    return each


def worst(comparison: Comparison) -> pd.DataFrame:
    """Return the ten operations whose error costs most: |predicted - measured| times runs."""
    rows = comparison.shapes.dropna(subset="predicted_ns").copy()
    rows["off_us"] = (rows["predicted_ns"] - rows["ns"]) * rows["count"] / 1000
    rows["operands"] = [" x ".join(str(list(t.shape)) for t in inputs[:2]) for inputs in rows["inputs"]]
    rows = rows.sort_values("off_us", key=abs, ascending=False).head(WORST)
    rows["measured_us"] = rows["ns"] / 1000
    rows["predicted_us"] = rows["predicted_ns"] / 1000
    return rows[["source", "op", "operands", "count", "measured_us", "predicted_us", "error"]]


def unclassified(comparison: Comparison) -> pd.DataFrame:
    """Return what has no price: name, why, runs, us, share of the measured time."""
    rows = comparison.shapes[comparison.shapes["predicted_ns"].isna()]
    each = rows.groupby(["op", "reason"], sort=True)[["count", "total_ns", "share"]].sum().reset_index()
    each["us"] = each["total_ns"] / 1000
    return each.rename(columns={"count": "runs"})[["op", "reason", "runs", "us", "share"]]


@dataclass
class Profiled(Document):
    """Errors on profiler files."""

    files: dict[str, str]
    units: dict[str, str]
    signposts_and_host_rows: int
    impossible: dict[str, int]
    classes: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    unclassified: list[dict[str, Any]]


def document(comparison: Comparison) -> Profiled:
    """Return everything as a result."""
    units = {"errors": "predicted / measured - 1", "share": "of measured time"}
    tables = (_records(table(comparison)) for table in (classes, devices, worst, unclassified))
    impossible = Counter(comparison.left_out)
    of_host = impossible.pop(profile.HOST_ROWS, 0)
    return Profiled(_files(comparison), units, of_host, dict(impossible), *tables)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON has them; what is not a number is null."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _files(comparison: Comparison) -> dict[str, str]:
    return {name: FITTED if name in measured.CALIBRATION else HELD_OUT for name in comparison.runs["source"].unique()}


def text(comparison: Comparison) -> str:
    """Return the tables as text."""
    percent = "{:.1%}".format
    lines = [f"{name}: {note}" for name, note in _files(comparison).items()]
    lines += ["", _table(classes(comparison), dict.fromkeys(("bias", *_ERRORS), percent))]
    lines += ["", "by device, kernels with a price", _table(devices(comparison), {"error": "{:+.1%}".format})]
    lines += ["", "what costs most", _table(worst(comparison), {"error": "{:+.1%}".format})]
    loose = unclassified(comparison)
    if len(loose):
        lines += ["", f"unclassified, {loose['share'].sum():.1%} of the time", _table(loose, {"share": percent})]
    else:
        lines += ["", "unclassified: nothing"]
    return "\n".join([*lines, f"left out: {profile.counted(comparison.left_out) or 'nothing'}"])


_ERRORS = ("mape", "median", "worst", "by_time", "vendor_mape", "share")


def _table(table: pd.DataFrame, formats: dict[str, Any]) -> str:
    formats = {name: form for name, form in formats.items() if name in table}
    return table.to_string(index=False, formatters=formats, float_format="{:.1f}".format, na_rep="-")
