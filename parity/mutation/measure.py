"""The map from lines to the cases that execute them: made by running a suite once under the recorder, and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.cases.selection import select
from parity.kinds import load
from parity.measure.machine import versions
from parity.mutation import child, recorder
from parity.mutation.source import Statement, outside_functions
from parity.mutation.tree import PACKAGES, ROOT, Tree
from parity.run.backends import check_environment, make_runner
from parity.run.case import in_turn, run_case
from refsim.files import output
from refsim.runtime import launch

SUITE_LIMIT_S = 6 * 3600.0


@dataclass(frozen=True)
class Asked:
    """Whose lines by which cases: the files, and the suite, ``-k`` expression, backend and seed of the cases."""

    files: list[str]
    suite: str = "smoke"
    expr: str | None = None
    backend: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class Executed:
    """What one case did: its verdict, the reason of another verdict than ``passed``, seconds, and lines by file."""

    case: str
    verdict: str
    reason: str
    seconds: float
    lines: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class LineMap:
    """The cases in the order they ran, and the modules of large libraries that they needed."""

    cases: list[Executed]
    imported: list[str] = field(default_factory=list)

    def executing(self, file: str, where: Statement) -> list[Executed]:
        """Return the passing cases that execute a line of ``where``, the quickest first."""
        cases = [c for c in self.cases if c.verdict == "passed" and where.is_in(c.lines.get(file, ()))]
        return sorted(cases, key=lambda c: c.seconds)

    def lines(self, file: str) -> set[int]:
        """Return the lines of a file that one of the passing cases executes."""
        return {line for c in self.cases if c.verdict == "passed" for line in c.lines.get(file, ())}

    @property
    def troubled(self) -> list[Executed]:
        """The cases that failed or were skipped, which say nothing of any line."""
        return [c for c in self.cases if c.verdict != "passed"]


Progress = Callable[[Executed], None]


def measured(asked: Asked, tree: Tree, file: Path | None, progress: Progress) -> LineMap:
    """Return the map of the given cases, from ``file`` if that was made of the same sources and question.

    Raises:
        UserError: coverage.py or what the cases need is not installed, or no case matches.
    """
    recorder.needs_coverage()
    check_environment(select(asked.suite, asked.expr, asked.backend))
    key = digest(asked)
    if file is not None and file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored.get("key") == key:
            return LineMap([Executed(**case) for case in stored["cases"]], stored["imported"])
    cases: list[Executed] = []
    imported: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if "imported" in message:
            imported.extend(message["imported"])
        else:
            cases.append(Executed(**message))
            progress(cases[-1])

    run = f"{__name__}:run_cases"
    why = child.call(run, asdict(asked), tree.root, limit_s=SUITE_LIMIT_S, hear=hear, fresh=True).why
    if why:
        raise RuntimeError(f"the cases could not be recorded: {why}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        stored = {"key": key, "imported": imported, "cases": [asdict(case) for case in cases]}
        output.write(file, json.dumps(stored).encode())
    return LineMap(cases, imported)


def run_cases(tell: child.Hear, **question: Any) -> None:
    """Run every case under the recorder, in the child, and tell what it executed."""
    asked = Asked(**question)
    cases = select(asked.suite, asked.expr, asked.backend)
    with recorder.recorded_jobs(asked.files) as folder:
        launch.warm_up()  # forked while this process has one thread
        _run(tell, cases, folder, asked)
    tell({"imported": child.imported()})


def _run(tell: child.Hear, cases: list[Case], folder: Path, asked: Asked) -> None:
    with make_runner(asked.backend) as runner:
        runner.warm_up()  # before it has threads
        for case, seed in in_turn(runner, [(case, asked.seed + case.seed) for case in cases]):
            with recorder.case(folder) as seen:
                record = run_case(runner, case, asked.backend, seed)
            for file in tables(case, asked.files):
                seen.setdefault(file, set()).update(outside_functions((ROOT / file).read_text(encoding="utf-8")))
            lines = {file: sorted(numbers) for file, numbers in seen.items()}
            tell(asdict(Executed(case.id, record.verdict, record.reason, record.wall_s, lines)))


def tables(case: Case, files: list[str]) -> list[str]:
    """Return those of ``files`` whose tables a case judges, see :meth:`parity.kinds.base.Kind.tables`."""
    named = (f"{module.replace('.', '/')}.py" for module in load(case.kind).tables(case))
    return [file for file in named if file in files]


def digest(asked: Asked) -> str:
    """Return a name of everything that the map depends on: the question, the sources, the versions of the libraries."""
    hashed = hashlib.sha256(json.dumps([asdict(asked), versions()], sort_keys=True).encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            hashed.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()
