"""Profiler files as tables: the CSV that ttnn's profiler writes, of any year, a row a device operation that ran.

Columns of the table that :func:`read` returns: ``source`` (file), ``device`` (id), ``arch``, ``op`` (its name),
``cores``, ``fidelity``, ``attributes`` (text), ``ns`` (of the kernel), ``gap_ns`` (since the operation before),
``traced`` (replayed from a trace),
``ideal_ns`` (the vendor's own model, 0 if there is none), ``inputs`` and ``outputs`` (tuples of
:class:`refsim.timing.read.tensors.OpTensor`).

Left out, and counted in ``attrs["left_out"]``: signposts and host operations, which have no time on a device.
"""

from __future__ import annotations

import re
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
_SIZE = re.compile(r"(\d+)(?:\[(\d+)\])?(?:\.0)?")
_TENSOR = re.compile(r"((?:INPUT|OUTPUT)_\d+)_W(?:_PAD\[LOGICAL\])?$")
KEY = ["arch", "op", "cores", "fidelity", "attributes", "inputs", "outputs", "ideal_ns"]
"""Columns that make two rows the same operation."""


def read(path: Path, arch: str | None = None) -> pd.DataFrame:
    """Return the device operations of a profiler's file, in its order.

    Args:
        arch: of the chip, for a file of a year in which profilers did not write it.

    Raises:
        UserError: the file is no CSV of a profiler, or the chip is not known.
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
    ns = pd.to_numeric(rows[time], errors="coerce").fillna(0.0)
    ran = rows[ns > 0]
    ops = pd.DataFrame(
        {
            "source": path.name,
            "device": _column(ran, "DEVICE ID", "0"),
            "arch": _arches(ran, path, arch),
            "op": ran["OP CODE"],
            "cores": _numbers(ran, "CORE COUNT").astype(int),
            "fidelity": _column(ran, "MATH FIDELITY"),
            "attributes": _column(ran, "ATTRIBUTES"),
            "ns": ns[ns > 0],
            "traced": pd.Series(_column(ran, "METAL TRACE ID"), index=ran.index) != "",
            "gap_ns": _numbers(ran, "OP TO OP LATENCY [ns]"),
            "ideal_ns": _numbers(ran, "PM IDEAL [ns]"),
            "inputs": _tensors(ran, "INPUT"),
            "outputs": _tensors(ran, "OUTPUT"),
        }
    ).reset_index(drop=True)
    ops.attrs["left_out"] = int((ns <= 0).sum())
    return ops


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
        raise UserError(f"{path} names {what}; say --arch wormhole_b0 or --arch blackhole.")
    return named.map(ARCHES)


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
