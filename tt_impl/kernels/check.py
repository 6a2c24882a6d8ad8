"""Run the kernels' cases and judge them; ``python -m tt_impl.kernels.check [--real] [--out FOLDER] [--json]``.

``--real`` takes the drafter's own shapes and, with ``--out``, writes kernels.json and kernels.md. Exit code 1 if a case
fails or a kernel is refused.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from tt_impl.kernels.cases import LIMITS, KernelCase, cases, operands
from tt_impl.kernels.simulator import KernelError, run


def judge(case: KernelCase) -> dict[str, Any]:
    """Return a record: 1 - PCC, relative RMSE, L1, buffers, seconds, ``passed``; ``error`` where it was refused."""
    given, golden, options = operands(case)
    record: dict[str, Any] = {"id": case.id, "kernel": case.kernel, "shape": list(case.shape), "dtype": case.dtype}
    record |= {"grid": list(case.grid), "limit": LIMITS[case.dtype], "error": ""}
    try:
        got = run(case.kernel, given, tuple(golden.shape), grid=case.grid, **options | case.options)
    except KernelError as e:
        return record | {"passed": False, "error": str(e)}
    out = got.out.double()
    error = out - golden
    record["one_minus_pcc"] = one_minus_pcc(out, golden)
    record["rel_rmse"] = float(error.square().mean().sqrt() / golden.square().mean().sqrt())
    record |= {"l1_bytes": got.l1_bytes, "buffers": got.buffers, "seconds": round(got.seconds, 3)}
    exact = case.kernel != "argmax" or bool((error == 0).all())  # an index is right or wrong
    record["passed"] = bool(torch.isfinite(out).all()) and record["one_minus_pcc"] <= record["limit"] and exact
    return record


def one_minus_pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return 1 - Pearson correlation, without the rounding of 1 - r."""
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float((a / a.norm() - b / b.norm()).square().sum() / 2)


def markdown(records: list[dict[str, Any]]) -> str:
    """Write the records as a table."""
    head = (
        "# TT-Lang kernels at the drafter's shapes\n\n"
        "**Measured** by `python -m tt_impl.kernels.check --real` on the functional simulator, against torch in "
        "float64.\nSeconds are of the simulation on this machine and say nothing about a device.\n\n"
        "| kernel | shape | dtype | grid | 1 - PCC | relative RMSE | L1 bytes of a node | buffers | simulated s |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for r in records:
        shape, grid = ("x".join(map(str, r[name])) for name in ("shape", "grid"))
        told = f"| refused: {r['error']} | | | | |"
        if not r["error"]:
            told = f"| {r['one_minus_pcc']:.1e} | {r['rel_rmse']:.1e} | {r['l1_bytes']:,} | {r['buffers']} "
            told += f"| {r['seconds']:.1f} |"
        lines.append(f"| {r['kernel']} | {shape} | {r['dtype']} | {grid} {told}")
    return head + "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tt_impl.kernels.check", description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="the drafter's own shapes")
    parser.add_argument("--out", type=Path, help="folder for kernels.json and kernels.md")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else on stdout")
    options = parser.parse_args(argv)
    records = []
    for case in cases(real=options.real):
        records.append(judge(case))
        r = records[-1]
        said = r["error"] or f"1 - PCC {r['one_minus_pcc']:.1e}, {r['seconds']:.1f} s"
        print(f"{'passed' if r['passed'] else 'FAILED'}  {r['id']}  {said}", file=sys.stderr, flush=True)
    wrong = sum(not r["passed"] for r in records)
    result = {"machine": platform.machine(), "cases": len(records), "failed": wrong, "records": records}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "kernels.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "kernels.md").write_text(markdown(records))
    print(json.dumps(result) if options.json else f"{len(records) - wrong} passed, {wrong} failed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
