"""Attention at the lengths of videos, with values: CPU seconds and memory of the operation that tt_dit's Wan calls.

``ring_joint_scaled_dot_product_attention`` is called as ``WanAttention`` does, on Wan 14B's 32,760 (480p) and 75,600
(720p) tokens. Of the 40 heads as many are computed as tensor parallelism has devices, one a device: heads know nothing
of each other, so seconds and the bytes of tensors grow with them in proportion. Each is measured in a process of its
own, on one thread, and rows of the answer are compared with float64.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.upstream.jobs import ROOT, own_version
from benchmarks.upstream.seed import read
from refsim.files.tables import as_markdown
from tt_impl.harness.reports.long_attention import Length

HEADS = 40
LINES = "attention.jsonl"


LENGTHS = tuple(
    Length(video, mesh, sp_axis, tokens)
    for video, tokens in (("480p", 32760), ("720p", 75600))
    for mesh, sp_axis in (("t3k", 0), ("galaxy", 1))
)


def run(out: Path, only: str) -> None:
    """Measure what ``out`` has no line of yet and whose ``mesh-video`` holds ``only``; append a line each."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / LINES
    done = {(row["mesh"], row["video"]) for row in read(path)}
    for length in LENGTHS:
        if (length.mesh, length.video) in done or only not in f"{length.mesh}-{length.video}":
            continue
        words = [sys.executable, "-m", "tt_impl.harness.reports.long_attention", json.dumps(asdict(length))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(process.stdout.splitlines()[-1]) | {"by": own_version()}
        with open(path, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        print(f"{length.mesh} {length.video}: {row['cpu_s']:.0f} s of CPU, {row['peak_gib']:.2f} GiB", flush=True)


def section(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines of the report: what was measured of some heads, and all heads in proportion."""
    table = []
    for row in rows:
        times = HEADS / row["heads"]
        seconds = times * row["cpu_s"]
        gib = row["before_gib"] + times * (row["peak_gib"] - row["before_gib"])
        measured = (row["heads"], f"{row['cpu_s']:.0f}", f"{row['peak_gib']:.2f}", f"{row['error']:.1e}")
        table.append((row["video"], row["tokens"], row["mesh"], *measured, f"{seconds:.0f}", f"{gib:.1f}"))
    header = (
        "video",
        "tokens",
        "mesh",
        "heads",
        "CPU s",
        "peak GiB",
        "error",
        f"s, {HEADS} heads",
        f"GiB, {HEADS} heads",
    )
    return [
        "`ttnn.transformer.ring_joint_scaled_dot_product_attention` as tt_dit's WanAttention calls it, random q, k "
        "and v in bfloat16, values on. Measured with one head a device, on one thread; the last two columns are "
        "predicted from that in proportion. The error is relative to float64, of eight rows of every head.",
        "",
        as_markdown(table, header),
    ]
