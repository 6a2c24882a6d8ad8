"""The kernels' cases, run on the functional simulator and judged: ``refsim kernels``."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from refsim.files import output
from refsim.files.keys import Document, Sometimes
from refsim.files.tables import as_markdown
from tt_impl.kernels.cases import LIMITS, KernelCase, cases, operands
from tt_impl.kernels.simulator import KernelError, run


@dataclass
class Kernel:
    """``error`` says why a kernel was refused, which then has no numbers."""

    KEYS = (
        *("id", "kernel", "shape", "dtype", "grid", "limit", "error", "one_minus_pcc", "rel_rmse", "l1_bytes"),
        *("buffers", "seconds", "passed"),
    )

    id: str
    kernel: str
    shape: tuple[int, ...]
    dtype: str
    grid: tuple[int, ...]
    limit: float
    error: str = ""
    passed: bool = False
    one_minus_pcc: Sometimes[float] = None
    rel_rmse: Sometimes[float] = None
    l1_bytes: Sometimes[int] = None
    buffers: Sometimes[int] = None
    seconds: Sometimes[float] = None


@dataclass
class Kernels(Document):
    """All cases."""

    machine: str
    cases: int
    failed: int
    records: list[Kernel]


def judge(case: KernelCase) -> Kernel:
    """Return a record: 1 - PCC, relative RMSE, L1, buffers, seconds, ``passed``; ``error`` where it was refused."""
    tensors, expected, options = operands(case)
    record = Kernel(case.id, case.kernel, case.shape, case.dtype, case.grid, LIMITS[case.dtype])
    try:
        simulated = run(case.kernel, tensors, tuple(expected.shape), grid=case.grid, **options | case.options)
    except KernelError as e:
        return replace(record, error=str(e))
    out = simulated.out.double()
    error = out - expected
    record.one_minus_pcc = one_minus_pcc(out, expected)
    record.rel_rmse = float(error.square().mean().sqrt() / expected.square().mean().sqrt())
    record.l1_bytes = simulated.l1_bytes
    record.buffers = simulated.buffers
    record.seconds = round(simulated.seconds, 3)
    exact = case.kernel != "argmax" or bool((error == 0).all())  # an index is right or wrong
    record.passed = bool(torch.isfinite(out).all()) and record.one_minus_pcc <= record.limit and exact
    return record


def one_minus_pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return 1 - Pearson correlation, without the rounding of 1 - r."""
    a = a.flatten() - a.mean()
    b = b.flatten() - b.mean()
    return float((a / a.norm() - b / b.norm()).square().sum() / 2)


def markdown(records: list[Kernel]) -> str:
    """Write the records as a table."""
    head = (
        "# TT-Lang kernels at the drafter's shapes\n\n"
        "**Measured** by `refsim kernels --real` on the functional simulator, against torch in "
        "float64.\nSeconds are of the simulation on this machine and say nothing about a device.\n\n"
    )
    columns = ("1 - PCC", "relative RMSE", "L1 bytes of a node", "buffers", "simulated s")
    rows = []
    for r in records:
        shape, grid = ("x".join(map(str, sides)) for sides in (r.shape, r.grid))
        cells = [f"refused: {r.error}"]
        if not r.error:
            cells = [f"{r.one_minus_pcc:.1e}", f"{r.rel_rmse:.1e}", f"{r.l1_bytes:,}", r.buffers]
            cells.append(f"{r.seconds:.1f}")
        rows.append((r.kernel, shape, r.dtype, grid, *cells))
    return head + as_markdown(rows, ("kernel", "shape", "dtype", "grid", *columns)) + "\n"


def run_checks(*, real: bool = False, progress: Callable[[str], None] | None = None) -> Kernels:
    """Run every case and judge it.

    Args:
        real: take the drafter's own shapes.
        progress: is called with a line after every case.
    """
    records = []
    for case in cases(real=real):
        record = judge(case)
        records.append(record)
        if progress:
            how = record.error or f"1 - PCC {record.one_minus_pcc:.1e}, {record.seconds:.1f} s"
            progress(f"{'passed' if record.passed else 'FAILED'}  {record.id}  {how}")
    failed = sum(not record.passed for record in records)
    return Kernels(platform.machine(), len(records), failed, records)


def write(kernels: Kernels, out: Path) -> None:
    """Write what :func:`run_checks` returned to kernels.json and kernels.md in the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    output.write(out / "kernels.json", f"{output.document(kernels)}\n".encode())
    output.write(out / "kernels.md", markdown(kernels.records).encode())
