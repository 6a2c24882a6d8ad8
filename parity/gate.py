"""Run a suite case by case and judge every case; one that fails, however it fails, never costs the others' results."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from parity.cases import Case, suite_cases
from parity.selection import compile_expression
from parity.thresholds import judge, thresholds_for
from refsim.errors import RankFailure, RefsimError, UserError
from refsim.runtime import launch

BACKENDS = ("cpu", "ttnn-mock", "ttnn-sim", "ttnn-device")
Record = dict[str, Any]
Progress = Callable[[int, int, Case, "Record | None"], None]
"""Called with (index from 1, total, case, None) before a case and with its record after it."""


class Runner(Protocol):
    """What runs cases on a backend; a context manager that holds what cases share."""

    def __enter__(self) -> Runner: ...
    def __exit__(self, *error: object) -> None: ...
    def run(self, case: Case, seed: int) -> Any: ...
    def drop(self, case: Case, seed: int) -> None: ...


@dataclass
class SuiteRun:
    """The records of one run and what they were made with."""

    suite: str
    expr: str | None
    backend: str
    seed: int
    versions: dict[str, str]
    machine: dict[str, Any]
    started: str
    wall_s: float = 0.0
    records: list[Record] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Cases by verdict; always all three."""
        found = Counter(record["verdict"] for record in self.records)
        return {verdict: found[verdict] for verdict in ("passed", "failed", "skipped")}

    @property
    def exit_code(self) -> int:
        """0 if something passed and nothing failed, else 1: a run that skipped everything proves nothing."""
        return 0 if self.counts["passed"] and not self.counts["failed"] else 1

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "counts": self.counts, "exit_code": self.exit_code}


def select(suite: str, expr: str | None, backend: str = "cpu") -> list[Case]:
    """The cases of a suite on a backend whose id matches ``-k``.

    Raises:
        UserError: no such suite or backend, a malformed expression, or nothing matches.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}.")
    match = compile_expression(expr)
    cases = [case for case in suite_cases(suite, backend) if match(case.id)]
    if not cases:
        raise UserError(f"no case of suite '{suite}' matches -k '{expr}'; `refsim parity list` prints the ids.")
    return cases


def run_suite(
    suite: str = "smoke",
    expr: str | None = None,
    backend: str = "cpu",
    seed: int = 0,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    seeds: int = 1,
    cases: Sequence[Case] | None = None,
    runner: Runner | None = None,
) -> SuiteRun:
    """Run and judge the cases of a suite one after the other; writes results.json, junit.xml, parity.md.

    Args:
        expr: ``-k`` expression on case ids.
        seed: of weights and inputs; a case adds its own.
        out_dir: folder for the reports, made if need be; None writes nothing.
        seeds: how many, from ``seed`` on; with more than one, a record's id ends in its seed.
        cases, runner: instead of the registered ones, for tests of the gate itself.

    Raises:
        UserError: unknown suite or backend, ``-k`` that matches nothing, missing oracle, unusable ``out_dir``.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}.")
    chosen = list(cases) if cases is not None else select(suite, expr, backend)
    if runner is None:
        check_environment(chosen)
        runner = make_runner(backend)
    folder = _make_folder(out_dir)
    run = SuiteRun(
        suite, expr, backend, seed, versions(), _machine(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    )
    begun = time.monotonic()
    jobs = [(case, seed + offset + case.seed) for offset in range(seeds) for case in chosen]
    last_use = {(case.kind, case.model, seed): index for index, (case, seed) in enumerate(jobs, 1)}
    with runner:
        if (plan := getattr(runner, "plan", None)) is not None:
            plan(jobs)
        for index, (case, case_seed) in enumerate(jobs, 1):
            if progress:
                progress(index, len(jobs), case, None)
            record = run_case(runner, case, backend, case_seed)
            if seeds > 1:
                record["id"] += f"-seed{case_seed}"
            run.records.append(record)
            if last_use[case.kind, case.model, case_seed] == index:
                runner.drop(case, case_seed)
            if progress:
                progress(index, len(jobs), case, record)
    run.wall_s = time.monotonic() - begun
    if folder is not None:
        from parity.report import write_all

        write_all(run, folder)
    return run


def run_case(runner: Runner, case: Case, backend: str, seed: int) -> Record:
    """The record of one case: its configuration, what was measured, and the verdict with its reason."""
    thresholds = thresholds_for(case.kind, case.dtype)
    record: Record = {
        **case.describe(),
        "backend": backend,
        "seed": seed,
        "verdict": "failed",
        "reason": "",
        "error": "",
        "last_events": {},
        "metrics": {},
        "thresholds": {t.metric: t.limit for t in thresholds},
        "noise": {},
        "bytes_by_collective": {},
        "hazards": [],
        "sim_s": 0.0,
        "oracle_s": 0.0,
        "wall_s": 0.0,
    }
    started = time.monotonic()
    if missing_memory(case):
        launch.end_ranks()  # what lacks may be what those hold that are kept from the cases before
    missing = missing_memory(case)
    if missing:
        return record | {"verdict": "skipped", "reason": missing}
    try:
        measured = runner.run(case, seed)
    except Exception as e:
        said = str(e) if isinstance(e, RefsimError) else f"{type(e).__name__}: {e}"
        record["reason"] = said
        record["error"] = (isinstance(e, RankFailure) and e.traceback) or traceback.format_exc()
        record["last_events"] = e.last_events if isinstance(e, RankFailure) else {}
    else:
        failures = judge(measured.metrics, thresholds) + measured.hazards
        record |= {
            "verdict": "failed" if failures else "passed",
            "reason": "; ".join(failures),
            "metrics": measured.metrics,
            "noise": measured.noise,
            "bytes_by_collective": measured.bytes_by_collective,
            "hazards": measured.hazards,
            "sim_s": measured.sim_s,
            "oracle_s": measured.oracle_s,
            **measured.extra,
        }
    record["wall_s"] = time.monotonic() - started
    return record


def make_runner(backend: str) -> Runner:
    """The runner of a backend; ``UserError`` if this Python lacks what it needs."""
    if backend == "cpu":
        from parity.runners import CpuRunner

        return CpuRunner()
    import importlib.util

    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    from parity.wing_runner import WingRunner

    return WingRunner(backend)


def missing_memory(case: Case) -> str:
    """A sentence if the machine has less memory free than the case needs, where that can be told."""
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) / 2**20
    except (OSError, StopIteration, ValueError):
        return ""
    if free >= case.needs_gb:
        return ""
    return f"needs {case.needs_gb:g} GiB of free memory and the machine has {free:.1f}"


def check_environment(cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if these cases cannot run here."""
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("refsim parity starts its own ranks; run it without torchrun.")
    if any(case.kind != "attention" for case in cases):
        try:
            import diffusers  # noqa: F401
        except ImportError as e:
            raise UserError(
                "model cases are judged against diffusers, which is not installed; "
                "pip install 'refsim[oracle]' or choose -k attention."
            ) from e


def _make_folder(out_dir: str | Path | None) -> Path | None:
    if out_dir is None:
        return None
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out '{out_dir}' cannot be made a folder ({e.strerror}); choose another path.") from e
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out '{out_dir}' is not writable; choose another folder.")
    return folder


def versions() -> dict[str, str]:
    """Of what computed the answers and what judged them; ``-`` for what is not installed."""
    from importlib import metadata

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "-"

    names = ("refsim", "torch", "ttnn", "diffusers", "transformers", "safetensors")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def _machine() -> dict[str, Any]:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"system": platform.system(), "arch": platform.machine(), "cpus": cpus}
