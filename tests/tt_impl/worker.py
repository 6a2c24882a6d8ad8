"""Cases in worker processes: ttnn can end its process, and that must be one failed case, not a lost run.

``python -m tests.tt_impl.worker MESH MODULE CASE...`` opens the mesh on mock devices and runs the cases one after
the other, each inside the shadow; it writes one line of JSON before and one after each case to standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
MARK = "case> "
ERROR_CHARS = 3000


@dataclass
class Outcome:
    """``error`` is None for a case that passed; ``calls`` are the operations it made."""

    error: str | None
    calls: list[str] = field(default_factory=list)


def launch(*arguments: str, folder: str | Path, timeout: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run ``python -m arguments`` with ``folder`` for its temporary files; a timeout counts as return code -9."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as expired:
        out, err = (
            text.decode() if isinstance(text, bytes) else text or "" for text in (expired.stdout, expired.stderr)
        )
        return subprocess.CompletedProcess(command, -9, out, f"{err}\nno answer in {timeout} s")


def run_cases(module: ModuleType, mesh: str) -> dict[str, Outcome]:
    """Outcome of every case of ``module``; after a crash the remaining cases go to a new worker."""
    pending = list(module.CASES)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="tests-tt-impl-") as folder:
        while pending:
            done = launch("tests.tt_impl.worker", mesh, module.__name__, *pending, folder=folder)
            records = [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
            started = None
            for record in records:
                if "error" in record:
                    outcomes[record["case"]] = Outcome(record["error"], record["calls"])
                started = record["case"]
            culprit = pending[0] if started is None else started
            if culprit not in outcomes:
                outcomes[culprit] = Outcome(f"the worker ended with {done.returncode}\n{done.stderr[-ERROR_CHARS:]}")
            elif set(pending) - set(outcomes):
                lost = next(case for case in pending if case not in outcomes)
                outcomes[lost] = Outcome(
                    f"the worker ended with {done.returncode} before {lost}\n{done.stderr[-ERROR_CHARS:]}"
                )
            pending = [case for case in pending if case not in outcomes]
    return outcomes


def main(mesh_name: str, module_name: str, *names: str) -> None:
    from tests.tt_impl.env import Env
    from tt_impl.mesh import open_mesh

    module = importlib.import_module(module_name)
    with open_mesh(mesh_name) as mesh:
        from tt_impl.mock.shadow import shadow_values

        for name in names:
            print(f"{MARK}{json.dumps({'case': name})}", flush=True)
            error = None
            with shadow_values() as shadow:
                try:
                    module.CASES[name](Env(mesh, shadow))
                except Exception:
                    error = traceback.format_exc(limit=-4)[:ERROR_CHARS]
            record = {"case": name, "error": error, "calls": sorted(shadow.calls)}
            print(f"{MARK}{json.dumps(record)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
