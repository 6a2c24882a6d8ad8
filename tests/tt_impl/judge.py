"""Cases of the mock's rules and programs of its findings, in a process of its own: verdicts as lines of JSON.

python -m tests.tt_impl.judge MESH CASES [FOLDER]   CASES is a file: a list of [kind, module, name]
python -m tests.tt_impl.judge MESH TREE             answers such lists, lines of stdin, on the tree as it is then

Kind ``rule`` is a case of ``tests/tt_impl/cases``, ``program`` one of ``tests/harness/programs``, ``log`` all of its
logs, ``signatures`` what rules take. The first that fails is the last. With an empty ``FOLDER`` all run, and each tells
which lines of the mock and the harness it executes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from types import CodeType
from typing import Any

from tests.tt_impl import lines
from tests.tt_impl.swapped import Sources, forget_cached, noted, swapped

ROOT = Path(__file__).resolve().parents[2]


def rule(mesh: Any, module: str, name: str) -> None:
    """Run a case against torch."""
    from tests.tt_impl.env import Env
    from tests.tt_impl.strict_rules import strict_rules
    from tests.tt_impl.worker import module_of
    from tt_impl.mock.calls.shadow import shadow_values
    from tt_impl.parallel.checks import guard
    from tt_impl.trace.intercept import intercepted
    from tt_impl.trace.record import Recorder

    with (
        guard(mesh.spec, mesh.grid),
        tempfile.TemporaryDirectory() as folder,
        intercepted(Recorder(Path(folder, "last_op"))),
        strict_rules(),
        shadow_values() as shadow,
    ):
        Env(mesh, shadow).run(module_of(module).CASES[name])


def program(mesh: Any, module: str, name: str) -> None:
    """Hold what is found in a wrong program against the approved words; a right one gives nothing."""
    from tests.harness import words
    from tests.tt_impl.env import Env
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched

    programs = importlib.import_module(f"tests.harness.programs.{module}")
    approved = words.approved_of(module)
    for version in ("wrong", "right"):
        with watched() as session:
            getattr(programs, name)(Env(mesh, session.shadow), version == "wrong")
        told = [words.told(asdict(finding)) for finding in find(session.log)]
        assert told == approved.get(f"{name} {version}", []), told


def log(mesh: Any, module: str, name: str) -> None:
    """Hold what the checks say of logs written by hand."""
    importlib.import_module(f"tests.harness.programs.{module}").check()


def signatures(mesh: Any, module: str, name: str) -> None:
    """Hold the defaults, keywords and places of all rules' arguments against ttnn's own."""
    from tests.tt_impl.mock.test_defaults import MISPLACED, UNKNOWN

    told = importlib.import_module(f"tests.tt_impl.{module}").compared()
    assert told["different"] == [], told["different"]
    assert told["unnamed"] == UNKNOWN, told["unnamed"]
    assert told["misplaced"] == MISPLACED, told["misplaced"]


KINDS = {"rule": rule, "program": program, "log": log, "signatures": signatures}


def run(mesh: Any, case: list[str]) -> tuple[str, float]:
    """Run a case; returns the error that it raised, if any, and its seconds."""
    kind, module, name = case
    started = time.monotonic()
    try:
        KINDS[kind](mesh, module, name)
        error = ""
    except Exception as raised:
        error = "".join(traceback.format_exception(raised, limit=-6))
    return error, time.monotonic() - started


def tell(case: list[str], error: str, seconds: float, executed: dict[str, list[int]] | None = None) -> None:
    told = {"case": "-".join(case), "error": error, "seconds": seconds, "lines": executed or {}}
    print("judge " + json.dumps(told), flush=True)


def import_all(sources: Sources) -> None:
    """Import all files that change, and what they import late."""
    for path in sources.files:
        with contextlib.suppress(ImportError):  # of a package that is not here
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    if importlib.util.find_spec("ttl"):
        importlib.import_module("tt_impl.mock.ttlang.simulator").load()


def judge_changes(mesh: Any, sources: Sources, done: Collection[CodeType]) -> None:
    """Answer every line of stdin, a list of cases, by their verdicts on the source as it is then, and ``judged``.

    ``anew`` instead says that it takes another process: something outside of functions has changed, or a function that
    is ``done``, or a case that failed fails without the change, too.
    """
    for line in sys.stdin:
        error = ""
        case: list[str] = []
        with swapped(sources.changed(), done) as can_be_judged:
            for case in json.loads(line) if can_be_judged else ():
                error, seconds = run(mesh, case)
                if error:
                    break
                tell(case, error, seconds)
        if not can_be_judged or (error and run(mesh, case)[0]):
            print("anew", flush=True)
            continue
        if error:
            tell(case, error, seconds)
        print("judged", flush=True)


@contextlib.contextmanager
def opened_mesh(name: str) -> Iterator[Any]:
    """Open a mesh of the mock."""
    from tt_impl.mock import prepare
    from tt_impl.run.cluster import derive_fabric, opened
    from tt_impl.run.mesh import Mesh

    spec = prepare(name)
    fabric = derive_fabric(spec)
    with opened(spec, fabric) as device:
        yield Mesh(device, spec, "mock", fabric)


def main(mesh_name: str, file: str, folder: str = "") -> None:
    """Run the cases that the file names; of a folder, a tree that changes, those that stdin names."""
    if Path(file).is_dir():
        sources = Sources(ROOT, Path(file), ["tt_impl/mock", "tt_impl/harness"])
        with contextlib.ExitStack() as stack:
            with noted() as called:
                mesh = stack.enter_context(opened_mesh(mesh_name))
                import_all(sources)
            judge_changes(mesh, sources, list(called.values()))
            os._exit(0)
    if folder:
        lines.start()
    with opened_mesh(mesh_name) as mesh:
        for number, case in enumerate(json.loads(Path(file).read_text(encoding="utf-8"))):
            recorded = Path(folder, f"{number}.txt")
            if folder:
                forget_cached()  # what a case before it has asked for is executed by this one, too
                lines.switch(recorded)
            error, seconds = run(mesh, case)
            tell(case, error, seconds, lines.read([recorded]) if folder else None)
            if error and not folder:
                break
        sys.stdout.flush()
        os._exit(0)  # ttnn cannot close a mesh that a case has cut into submeshes


if __name__ == "__main__":
    main(*sys.argv[1:])
