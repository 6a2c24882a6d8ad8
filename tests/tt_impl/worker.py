"""Cases in a process of their own: ttnn can end its process, and that must be one failed case, not a lost run.

A case is a function of an :class:`tests.tt_impl.env.Env`; a case module lists its own in ``CASES``.
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
from typing import TYPE_CHECKING, Any

from refsim.base.errors import RankFailure
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from tests import warm
from tt_impl.run.launch import Worker

if TYPE_CHECKING:
    import ttnn

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
ERROR_CHARS = 3000

CASES = Path(__file__).with_name("cases")
"""Rooms of modules: each name is there once, whatever the room."""
Case = tuple[str, str]
"""Name of a module in one of the rooms of ``tests.tt_impl.cases``, and of the case in it."""


@dataclass
class Outcome:
    """``error`` is None for a case that passed; ``calls`` are the operations it made, ``drawn`` those of properties."""

    error: str | None
    calls: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


@dataclass
class Ran:
    """Outcomes by case, and what the mesh said of itself (empty if no process came to its end)."""

    outcomes: dict[Case, Outcome]
    mesh: str = ""


def launch(
    *arguments: str, folder: str | Path, timeout: float = TIMEOUT_S, fork: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m arguments`` with ``folder`` for its temporary files, in a fork of the warm process or anew."""
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    if not fork:
        how = {"timeout": timeout, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, check=False, **how)
    return warm.run("-m", *arguments, cwd=ROOT, env=environment, timeout=timeout)


def modules_in(*rooms: str) -> list[str]:
    """Names of all modules of the named rooms."""
    return [path.stem for room in rooms for path in sorted((CASES / room).glob("*.py"))]


def module_of(name: str) -> ModuleType:
    """The module of cases of that name."""
    (path,) = CASES.glob(f"*/{name}.py")
    return importlib.import_module(f"tests.tt_impl.cases.{path.parent.name}.{name}")


def cases_of(*modules: str) -> list[Case]:
    """All cases of the named modules."""
    return [(name, case) for name in modules for case in module_of(name).CASES]


def run_cases(worker: Worker, cases: list[Case], mesh: str, timeout_s: float = TIMEOUT_S) -> Ran:
    """Outcome of every case, one after the other on one open mesh; after a crash the rest goes to a new process."""
    ran = Ran({})
    spec = get_mesh(mesh)
    parallel = "sp{}_tp{}".format(*spec.shape)  # which no case looks at
    options = RunOptions.of(mesh=spec, parallel=parallel, backend="ttnn-mock", timeout_s=timeout_s)
    pending = list(cases)
    with tempfile.TemporaryDirectory(prefix="tests-tt-impl-") as folder:
        progress = Path(folder) / "progress"
        while pending:
            progress.write_text("", encoding="utf-8")
            failure = "no process ended without an answer"
            try:
                ran.mesh = worker.execute(
                    f"{__name__}:program",
                    options,
                    {"cases": pending, "progress": str(progress)},
                    values=False,
                ).ran
            except RankFailure as error:
                failure = f"{error}\n{(error.traceback or '')[-ERROR_CHARS:]}"
            for line in progress.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                ran.outcomes[tuple(record["case"])] = Outcome(record["error"], record["calls"], record["drawn"])
            pending = [case for case in pending if case not in ran.outcomes]
            if pending:
                ran.outcomes[pending.pop(0)] = Outcome(failure)
    return ran


def program(device: ttnn.MeshDevice, options: RunOptions, *, cases: list[list[str]], progress: str) -> dict[str, Any]:
    """Runs in the worker: every case inside a shadow of its own; a line of JSON in ``progress`` for each."""
    from tests.tt_impl.env import Env
    from tests.tt_impl.strict_rules import strict_rules
    from tt_impl.mock.calls.shadow import shadow_values
    from tt_impl.run.cluster import derive_fabric
    from tt_impl.run.mesh import Mesh

    spec = options.mesh
    mesh = Mesh(device, spec, "mock", derive_fabric(spec))
    with open(progress, "a", encoding="utf-8") as file:
        for name, case in cases:
            error = None
            with strict_rules(), shadow_values() as shadow:
                env = Env(mesh, shadow)
                try:
                    env.run(module_of(name).CASES[case])
                except Exception:
                    error = traceback.format_exc(limit=-4)[:ERROR_CHARS]
            calls = {"calls": sorted(shadow.calls), "drawn": sorted(env.drawn)}
            print(json.dumps({"case": [name, case], "error": error, **calls}), file=file, flush=True)
    return {}
