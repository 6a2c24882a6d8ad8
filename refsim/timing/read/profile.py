"""Profiler files as tables: the CSV that ttnn's profiler writes, of any year, a row a device operation that ran.

Columns of the table that :func:`read` returns: ``source`` (file), ``device`` (id), ``arch``, ``op`` (its name),
``cores``, ``fidelity``, ``attributes`` (text), ``ns`` (of the kernel), ``gap_ns`` (since the operation before),
``traced`` (replayed from a trace),
``ideal_ns`` (the vendor's own model, 0 if there is none), ``inputs`` and ``outputs`` (tuples of
:class:`refsim.timing.read.tensors.OpTensor`).

Left out, and counted by reason in ``attrs["left_out"]``: signposts and host operations, which have no time on a device,
and rows that no device can have written: without a kernel time, with one that is no number, not positive or longer than
a second, or with more cores than the device has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from refsim.base.errors import UserError
from refsim.timing.read.device_op import DeviceOp, Wires
from refsim.timing.read.op_names import op_name
from refsim.timing.read.tensors import DTYPES, OpTensor

TIMES = ("DEVICE KERNEL DURATION [ns]", "DEVICE FW DURATION [ns]")
ARCHES = {"wormhole": "wormhole_b0", "wormhole_b0": "wormhole_b0", "blackhole": "blackhole"}
WORKERS = {"wormhole_b0": 80, "blackhole": 140}
"""Worker cores of a chip, none harvested and none kept for dispatch."""
LONGEST_NS = 1e9
"""A kernel of a second is none: the clocks of a window without its beginning give such times."""
HOST_ROWS = "signposts and host rows"
_SIZE = re.compile(r"(\d+)(?:\[(\d+)\])?(?:\.0)?")
_TENSOR = re.compile(r"((?:INPUT|OUTPUT)_\d+)_W(?:_PAD\[LOGICAL\])?$")
KEY = ["arch", "op", "cores", "fidelity", "attributes", "inputs", "outputs", "ideal_ns"]
"""Columns that make two rows the same operation."""


def read(path: Path, arch: str | None = None) -> pd.DataFrame:
    """Return the device operations of a profiler's file, in its order.

    Args:
        arch: of the chip, for a file of a year in which profilers did not write it.

    Raises:
        UserError: the file is no CSV of a profiler, the chip is not known, or no row is of a device.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' errors of parsing are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read as CSV ({reason}); give a file of ttnn's profiler.") from error
    time = next((name for name in TIMES if name in rows), None)
    if time is None or "OP CODE" not in rows:
        missing = "OP CODE" if time else TIMES[0]
        raise UserError(f"{path} has no column '{missing}'; give a file of ttnn's profiler (ops_perf_results*.csv).")
    reasons = _reasons(rows, rows[time].str.strip())
    left_out = Counter(reasons[reasons != ""])
    ran = rows[reasons == ""]
    if not len(ran):
        raise UserError(f"{path} has no row of a device operation that can be used: {counted(left_out) or 'no rows'}.")
    ops = pd.DataFrame(
        {
            "source": path.name,
            "device": pd.Series(_column(ran, "DEVICE ID", "0"), index=ran.index).str.replace(r"\.0+$", "", regex=True),
            "arch": _arches(ran, path, arch),
            "op": ran["OP CODE"],
            "cores": _numbers(ran, "CORE COUNT").astype(int),
            "fidelity": _column(ran, "MATH FIDELITY"),
            "attributes": _column(ran, "ATTRIBUTES"),
            "ns": pd.to_numeric(ran[time]).astype(float),
            "traced": pd.Series(_column(ran, "METAL TRACE ID"), index=ran.index) != "",
            "gap_ns": _numbers(ran, "OP TO OP LATENCY [ns]"),
            "ideal_ns": _numbers(ran, "PM IDEAL [ns]"),
            "inputs": _tensors(ran, "INPUT"),
            "outputs": _tensors(ran, "OUTPUT"),
        }
    ).reset_index(drop=True)
    ops.attrs["left_out"] = left_out
    return ops


class NoChip(UserError):
    """A file does not say of which chip it is."""


def read_all(paths: list[Path], arch: str | None = None) -> tuple[list[pd.DataFrame], Counter[str]]:
    """Return the table of every file, and what was left out of all, by reason: files that name no chip among others.

    Raises:
        UserError: a file cannot be used, or no file names its chip.
    """
    tables = []
    left_out: Counter[str] = Counter()
    for path in paths:
        try:
            tables.append(read(path, arch))
        except NoChip:
            if path is paths[-1] and not tables:
                raise
            left_out[f"file {path.name}, which names no chip: say --arch"] = 1
        else:
            left_out += tables[-1].attrs["left_out"]
    return tables, left_out


def counted(left_out: Counter[str]) -> str:
    """Return how often what was left out, as text."""
    return "; ".join(f"{count} {reason}" for reason, count in left_out.items())


def _reasons(rows: pd.DataFrame, times: pd.Series) -> pd.Series:
    """Return why each row is left out; empty text for those that stay."""
    ns = pd.to_numeric(times, errors="coerce")
    cores = pd.to_numeric(_column(rows, "CORE COUNT"), errors="coerce") if "CORE COUNT" in rows else ns * 0 + 1
    kinds = rows["OP TYPE"].str.strip() if "OP TYPE" in rows else pd.Series("", index=rows.index)
    on_device = kinds.str.contains("device") | ((kinds == "") & (cores > 0))
    workers = _numbers(rows, "AVAILABLE WORKER CORE COUNT")
    reasons = pd.Series("", index=rows.index)
    for reason, rows_of_it in (
        ("with more cores than the device has", (cores > workers) & (workers > 0)),
        ("with a core count that is not positive", cores <= 0),
        ("with a kernel time of more than a second", ns > LONGEST_NS),
        ("with a kernel time of 0", ns == 0),
        ("with a negative kernel time", ns < 0),
        ("with a kernel time that is no number", ns.isna() & (times != "")),
        ("without a kernel time", times == ""),
        (HOST_ROWS, ~on_device & ((times == "") | (ns == 0))),
    ):
        reasons = reasons.mask(rows_of_it, reason)
    return reasons


def distinct(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each operation once: ``KEY``, mean ``ns``, median ``gap_ns`` (the later one of two), ``count`` of runs."""
    groups = rows.groupby(KEY, sort=False, dropna=False)
    ops = groups.agg(source=("source", "first"), ns=("ns", "mean"), gap_ns=("gap_ns", _middle), count=("ns", "size"))
    return ops.reset_index()


def device_op(row: Any) -> DeviceOp:
    """Return the operation of a row of :func:`read`'s table.

    A collective whose file does not say its ring is as large as what it gathers is larger than what it is given, or of
    size 0; links that are not named are one.
    """
    text = row.attributes
    known = op_name(row.op)
    numbers = {name: re.search(rf"'{name}': '(\d+)'", text) for name in ("ring_size", "num_links")}
    size, links = (int(m[1]) if m else 0 for m in numbers.values())
    if not size and known and known.code == "all_gather" and row.inputs and row.outputs:
        size = row.outputs[0].numel // max(row.inputs[0].numel, 1)
    wires = Wires(size, links or 1, "Topology::Ring" in text)
    return DeviceOp(row.op, row.arch, row.cores, row.fidelity, row.inputs, row.outputs, text, wires)


def _middle(values: pd.Series) -> float:
    return float(sorted(values)[len(values) // 2])


def _column(rows: pd.DataFrame, name: str, otherwise: str = "") -> Any:
    return rows[name] if name in rows else otherwise


def _numbers(rows: pd.DataFrame, name: str) -> pd.Series:
    if name not in rows:
        return pd.Series(0.0, index=rows.index)
    return pd.to_numeric(rows[name], errors="coerce").fillna(0.0)


def _arches(rows: pd.DataFrame, path: Path, arch: str | None) -> pd.Series:
    named = pd.Series(_column(rows, "DEVICE ARCH"), index=rows.index).str.strip()
    named = named.where(named != "", arch or "")
    if unknown := sorted(set(named) - set(ARCHES)):
        what = f"the chip '{unknown[0]}', which the model does not have" if unknown[0] else "no chip"
        kind = UserError if unknown[0] else NoChip
        raise kind(f"{path} names {what}; say --arch wormhole_b0 or --arch blackhole.")
    arches = named.map(ARCHES)
    workers = _numbers(rows, "AVAILABLE WORKER CORE COUNT")
    if (too_many := workers > arches.map(WORKERS)).any():
        count = f"{workers[too_many].iloc[0]:.0f}"
        raise UserError(f"{path} has devices of {count} worker cores, more than a {arches[too_many].iloc[0]} has.")
    return arches


def _tensors(rows: pd.DataFrame, which: str) -> list[tuple[OpTensor, ...]]:
    names = [m[1] for column in rows.columns if (m := _TENSOR.match(column)) and m[1].startswith(which)]
    return [tuple(t for name in names if (t := tensor_of(row, name))) for row in rows.to_dict("records")]


def tensor_of(row: dict[Hashable, str], name: str) -> OpTensor | None:
    """Return the tensor ``name`` (``INPUT_0``) of a row of a profiler's file, None if there is none."""
    sizes = [row.get(f"{name}_{axis}_PAD[LOGICAL]", row.get(f"{name}_{axis}", "")) for axis in "WZYX"]
    matches = [_SIZE.fullmatch(size.strip()) for size in sizes]
    if not all(matches):
        return None
    shape = tuple(int(m[1]) for m in matches)
    dtype = row.get(f"{name}_DATATYPE", "")
    layout = row.get(f"{name}_LAYOUT", "")
    return OpTensor(
        shape, DTYPES.get(dtype, dtype), row.get(f"{name}_MEMORY", ""), "TILE" if layout.startswith("TILE") else layout,
        int(matches[2][2] or matches[2][1]),
    )  # fmt: skip
