"""``python -m tests.soak --runs 2000``: the same jobs over and over on the same ranks; memory and files stay flat.

Two jobs in turn: ring attention, and a transformer. After a warm-up, in which allocators find their size, the memory
of every rank that is no file's, that of this process, and everybody's open files are noted twenty times. Flat is a
slope, by least squares, of less than 1 kB a run and of no file; a leak of 10 kB a run, 1 MB in a hundred, is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from refsim.base.options import RunOptions
from refsim.runtime import host_memory
from refsim.runtime.launch import execute
from refsim.runtime.ranks import pool as pools
from tests.chaos.workload import Files

RANKS, NOTES = 4, 20
KB_A_RUN = 1.0
"""Slope that still counts as flat: 2 MB over 2,000 runs; allocators move some 0.4 kB a run about by themselves."""


def held(pid: int) -> int:
    """Memory of a process that is no file's; an error where nobody tells, since zeros would be flat."""
    found = host_memory.private_bytes(pid)
    if found is None:
        raise RuntimeError(f"/proc says nothing of process {pid}, so nothing can be measured")
    return found


def note(pids: list[int]) -> dict[str, list[float]]:
    """Memory in kB and open files of every rank and, last, of this process."""
    everybody = [*pids, os.getpid()]
    return {
        "kB": [held(pid) / 1e3 for pid in everybody],
        "files": [float(len(os.listdir(f"/proc/{pid}/fd"))) for pid in everybody],
    }


def slopes(at: list[int], notes: list[dict[str, list[float]]], what: str) -> list[float]:
    """Growth of ``what`` a run, of every rank and of this process."""
    series = zip(*(one[what] for one in notes), strict=True)
    return [statistics.linear_regression(at, values).slope for values in series]


def soak(runs: int, warm_up: int) -> dict:
    """Run; the slopes per process, and whether they are flat."""
    at, notes = [], []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        jobs = Files(Path(folder)).workloads[RANKS]
        for i in range(warm_up + runs + 1):
            job = jobs[i % len(jobs)]
            options = RunOptions.of(mesh=job.mesh, parallel=job.parallel, timeout_s=120.0, **job.options)
            result = execute(job.program, options, job.arguments)
            assert result is not None and not result.hazards
            done = i - warm_up
            if done >= 0 and done % max(1, runs // NOTES) == 0:
                at.append(done)
                notes.append(note(pools.pool(RANKS)._pids))
                print(f"[{done}/{runs}] {notes[-1]}", file=sys.stderr, flush=True)
    kb, files = slopes(at, notes, "kB"), slopes(at, notes, "files")
    return {"runs": runs, "kb_a_run": kb, "files_a_run": files, "flat": is_flat(kb, files)}


def is_flat(kb_a_run: list[float], files_a_run: list[float]) -> bool:
    """Whether no process grows."""
    return max(kb_a_run) < KB_A_RUN and max(files_a_run) <= 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--json", type=Path, default=Path("out/soak.json"))
    options = parser.parse_args()
    started = time.monotonic()
    found = soak(options.runs, options.warm_up)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    grown = ", ".join(f"{slope:+.2f}" for slope in found["kb_a_run"])
    verdict = "flat" if found["flat"] else "GROWS"
    print(f"{verdict}: {grown} kB a run (ranks 0 to {RANKS - 1}, launcher), {time.monotonic() - started:.0f} s")
    return 0 if found["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
