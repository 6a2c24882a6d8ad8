"""Files of results as commands write them, small, for tests of the page of ``refsim report html``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.faults import ref_cases
from parity.faults import summary as fault_report
from parity.faults.records import Exceeded
from parity.faults.records import Record as FaultRecord
from parity.kinds import thresholds_for
from parity.measure.records import Record, SuiteRun
from parity.report import history
from parity.report.results import results_json

HOSTILE = 'rank 1 raised </script><script>window.broken = true</script> <b>&amp; "quoted"</b>'
"""A message that would break out of the page if it were put there as it is."""
EXPLANATION = {
    "place": {"text": "first wrong tensor: out, rank 2 at mesh (0, 2), rows 71..71"},
    "maps": [
        {"title": "error by device of n300", "lines": "axis 0", "columns": "axis 1", "errors": [[1e-7, "nan"], [0, 1]]}
    ],
    "causes": [
        {"fault": "one-row", "sentence": "One row is zero.", "likelihood": 0.9},
        {"fault": "one-head", "sentence": "One head is zero.", "likelihood": 0.001},
    ],
    "again": "refsim parity why attention-x",
    "problem": "",
}

NAN = {"rel_rmse": float("nan")}


def record(case: Case, verdict: str = "passed", scale: float = 0.1, **more: Any) -> Record:
    """A judged case whose metrics all take the share ``scale`` of their bounds."""
    made = Record.of(case, "cpu", 0, thresholds_for(case.kind, case.dtype))
    metrics = {name: scale * limit for name, limit in made.thresholds.items()} | dict(more.pop("metrics", {}))
    return replace(made, verdict=verdict, wall_s=1.5, metrics=metrics, **more)


def parity_run() -> SuiteRun:
    """Three cases on three meshes, one of each verdict."""
    failed = record(ref_cases.RING, "failed", 30.0, reason=HOSTILE, extra={"explanation": EXPLANATION}, metrics=NAN)
    cases = [record(ref_cases.LINE), failed, record(ref_cases.TP2, "skipped", 0.5, reason="needs 9 GB")]
    return SuiteRun(
        "smoke", None, "cpu", 0, {"torch": "2"}, {"cpus": 2, "arch": "x86_64"}, "2026-01-02T03:04:05", 3, cases
    )


def fault_records() -> list[FaultRecord]:
    """A fault that is caught, one that survives, and a clean case."""
    common = {"backend": "cpu", "case": ref_cases.RING.id, "thresholds": {"gain": 0.1}, "seconds": 0.5}
    caught = {"caught_by": [Exceeded("gain", 0.4, 0.1)], "metrics": {"gain": 0.4}}
    clean = {"metrics": {"gain": 0.01}}
    words = {"sentence": "Two heads are swapped.", "mistake": "an index"}
    none = dict.fromkeys(words, "")
    return [
        FaultRecord(ref_cases.RING.id, "clean", family="", verdict="passed", **none, **clean, **common),
        FaultRecord("two-heads", "fault", family="heads", verdict="caught", **words, **caught, **common),
        FaultRecord("late", "fault", family="buffers", verdict="survived", **words, **clean, **common),
    ]


def write(folder: Path) -> Path:
    """Write results of every kind the page reads into a folder, each in the form of the command that makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    group = {
        "weights": 2**29,
        "persistent": 2**29 + 2**26,
        "peak": 2**30,
        "total": 2**31,
        "l1": {"peak": 1024, "total": 4096},
    }
    less = {**group, "peak": 2**29 + 2**27}
    stages = [
        {"stage": "t5", "ran": "mock", "groups": [less, group, less], "fits": True},
        {"stage": "vae", "missing": "no counterpart"},
    ]
    ranges = {"low": 9.0, "high": 14.0}
    held = {"weights": 8.0, "activations": 1.0, "buffers": 0.5, "capacity": 12.0}
    plan = {
        "model": "sd35-large",
        "size": "1024",
        "mesh": "n300",
        "parallel": "tp2@1",
        "topology": "Linear",
        "bound": "dram",
    }
    plan |= {"total_seconds": 10.0, "total_seconds_range": ranges, "memory_gb": held}
    speed = {"scheme": "ring", "ranks": 4, "rows": 512, "heads": 8, "head_dim": 64, "dtype": "bf16", "math": "storage"}
    speed |= {"seconds": {"one_process": 0.5, "mesh": 1.0}, "ratio": 2.0, "ratio_range": [1.9, 2.2], "right": True}
    speed |= {"rel_rmse": {"mesh": 1e-3}, "hazards": 0}
    files = {
        "results.json": results_json(parity_run()),
        "faults.json": fault_report.as_json(fault_records()),
        "plan.json": json.dumps({"plans": [plan]}),
        "memory.json": json.dumps([{"system": ["sd35-large", "1024", "t3k", "sp2"], "ran": "mock", "stages": stages}]),
        "sim.json": json.dumps({"machine": {"cores": 2}, "records": [speed]}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_history(folder: Path) -> Path:
    """Write a history of four commits: the limit of a case is loosened at the third, at the fourth it fails; a second
    case stays as it is, and predictions of the third and the fourth commit are there.
    """
    path, steady = folder / "h.sqlite", record(ref_cases.LINE)
    limit = steady.thresholds["rel_rmse"]
    plan = {"model": "m", "size": "1024", "mesh": "n300", "parallel": "tp2", "bound": "dram", "total_seconds": 9.0}
    plan |= {"memory_gb": {"weights": 8.0, "activations": 1.0, "buffers": 0.5, "capacity": 12.0}}
    for number, (share, factor) in enumerate([(0.1, 1), (0.1, 1), (0.1, 4), (6.0, 4)]):
        errors, limits = {"rel_rmse": share * limit}, {"rel_rmse": factor * limit}
        judged = record(ref_cases.RING, "failed" if share > factor else "passed", metrics=errors)
        run = replace(parity_run(), records=[replace(judged, thresholds=judged.thresholds | limits), steady])
        run.commit, run.committed = f"{number:x}" * 40, f"2026-01-{number + 10}T00:00:00Z"
        (folder / "results.json").write_text(results_json(run), encoding="utf-8")
        if number == 2:
            (folder / "plan.json").write_text(json.dumps({"plans": [plan]}), encoding="utf-8")
        history.add(folder, path)
    return path
