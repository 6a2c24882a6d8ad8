"""Cases of the mock's rules and programs of its findings, in a process of its own: verdicts as lines of JSON.

python -m tests.tt_impl.judge MESH CASES [FOLDER]   CASES is a file: a list of [kind, module, name]

Kind ``rule`` is a case of ``tests/tt_impl/cases``, ``program`` one of ``tests/harness/programs``. The first that
fails is the last. With an empty ``FOLDER`` all run, and each tells which lines of the mock and the harness it executes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.tt_impl import lines


def rule(mesh: Any, module: str, name: str) -> None:
    """Run a case against torch."""
    from tests.tt_impl.env import Env
    from tests.tt_impl.worker import module_of
    from tt_impl.mock.calls.shadow import shadow_values
    from tt_impl.parallel.checks import guard
    from tt_impl.trace.intercept import intercepted
    from tt_impl.trace.record import Recorder

    with (
        guard(mesh.spec, mesh.grid),
        tempfile.TemporaryDirectory() as folder,
        intercepted(Recorder(Path(folder, "last_op"))),
        shadow_values() as shadow,
    ):
        module_of(module).CASES[name](Env(mesh, shadow))


def program(mesh: Any, module: str, name: str) -> None:
    """A wrong program is named by its kind, and by its operation where that is known; a right one gives nothing."""
    from tests.tt_impl.env import Env
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched

    programs = importlib.import_module(f"tests.harness.programs.{module}")
    expected = programs.EXPECTED[name]
    for wrong in (True, False):
        with watched() as session:
            getattr(programs, name)(Env(mesh, session.shadow), wrong)
        findings = find(session.log)
        if isinstance(expected, str):
            kinds = {finding.kind for finding in findings}
            assert kinds == ({expected} if wrong else set()), kinds
        else:
            places = [(finding.kind, finding.op) for finding in findings]
            assert places == ([expected] if wrong else []), places


KINDS = {"rule": rule, "program": program}


def main(mesh_name: str, file: str, folder: str = "") -> None:
    """Run the cases that the file names."""
    from tt_impl.mock import prepare
    from tt_impl.run.cluster import derive_fabric, opened
    from tt_impl.run.mesh import Mesh

    if folder:
        lines.start()
    spec = prepare(mesh_name)
    fabric = derive_fabric(spec)
    with opened(spec, fabric) as device:
        mesh = Mesh(device, spec, "mock", fabric)
        for number, (kind, module, name) in enumerate(json.loads(Path(file).read_text(encoding="utf-8"))):
            recorded = Path(folder, f"{number}.txt")
            if folder:
                lines.switch(recorded)
            error = ""
            started = time.monotonic()
            try:
                KINDS[kind](mesh, module, name)
            except Exception as raised:
                error = "".join(traceback.format_exception(raised, limit=-6))
            told = {"case": f"{kind}-{module}-{name}", "error": error, "seconds": time.monotonic() - started}
            told["lines"] = lines.read([recorded]) if folder else {}
            print("judge " + json.dumps(told), flush=True)
            if error and not folder:
                break
        sys.stdout.flush()
        os._exit(0)  # ttnn cannot close a mesh that a case has cut into submeshes


if __name__ == "__main__":
    main(*sys.argv[1:])
