"""Cases of the mock's rules and programs of its findings, in a process of its own: verdicts as lines of JSON.

python -m tests.tt_impl.judge MESH CASES [--lines]   CASES is a file: a list of [kind, module, name]

Kind ``rule`` is a case of ``tests/tt_impl/cases``, ``program`` one of ``tests/harness/programs``. The first that
fails is the last. With ``--lines`` all run, and each tells which lines of the mock and the harness it executes.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDERS = ("/tt_impl/mock/", "/tt_impl/harness/")
TOOL = 4
"""An id of ``sys.monitoring`` that no library here takes."""


@contextmanager
def recorded(lines: dict[str, set[int]]) -> Iterator[None]:
    """Note every line of the mock and the harness that is executed in the block, once."""

    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]  # of Python 3.12

    def line(code: Any, number: int) -> Any:
        for folder in FOLDERS:
            _, found, name = code.co_filename.partition(folder)
            if found:
                lines.setdefault(folder.strip("/") + "/" + name, set()).add(number)
        return monitoring.DISABLE

    monitoring.use_tool_id(TOOL, "judge")
    monitoring.register_callback(TOOL, monitoring.events.LINE, line)
    monitoring.set_events(TOOL, monitoring.events.LINE)
    monitoring.restart_events()
    try:
        yield
    finally:
        monitoring.set_events(TOOL, 0)
        monitoring.free_tool_id(TOOL)


def rule(mesh: Any, module: str, name: str) -> None:
    from tests.tt_impl.env import Env
    from tests.tt_impl.worker import module_of
    from tt_impl.mock.calls.shadow import shadow_values

    with shadow_values() as shadow:
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


def main(mesh_name: str, file: str, *options: str) -> None:
    from tt_impl.mock import prepare
    from tt_impl.run.cluster import derive_fabric, opened
    from tt_impl.run.mesh import Mesh

    spec = prepare(mesh_name)
    fabric = derive_fabric(spec)
    with opened(spec, fabric) as device:
        mesh = Mesh(device, spec, "mock", fabric)
        for kind, module, name in json.loads(Path(file).read_text(encoding="utf-8")):
            lines: dict[str, set[int]] = {}
            error = ""
            started = time.monotonic()
            try:
                if options:
                    with recorded(lines):
                        KINDS[kind](mesh, module, name)
                else:
                    KINDS[kind](mesh, module, name)
            except Exception as raised:
                error = "".join(traceback.format_exception(raised, limit=-6))
            told = {"case": [kind, module, name], "error": error, "seconds": time.monotonic() - started}
            told["lines"] = {path: sorted(numbers) for path, numbers in lines.items()}
            print("judge " + json.dumps(told), flush=True)
            if error and not options:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
