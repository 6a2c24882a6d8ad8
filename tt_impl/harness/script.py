"""Runs anyone's script on a mock mesh: in a process of its own, watched, with one verdict at its end."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tt_impl
from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError
from refsim.files import output
from tt_impl.harness.checks.strict import Strict
from tt_impl.harness.pytest import machine, verdicts
from tt_impl.harness.pytest.selection import AUTO
from tt_impl.harness.pytest.verdicts import CATEGORIES, Verdict
from tt_impl.harness.reports import exhausted
from tt_impl.harness.watch import rounding
from tt_impl.mock.hardware import check_numerics, seed_of


@dataclass(frozen=True)
class Program:
    """What to run, as Python's own command line has it.

    Attributes:
        name: a script's path, a module's name, or ``-``.
        arguments: ``sys.argv`` after the name.
        module: ``name`` is a module's.
        code: the text of a program that came over stdin.
    """

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    code: str | None = None

    def check(self) -> None:
        """``UserError`` if there is no such script."""
        if not self.module and self.code is None:
            refuse_unreadable(self.name, "script")
        if not self.module and self.code is None and not Path(self.name).is_file():
            raise UserError(f"there is no script '{self.name}'; give a Python file, -m MODULE, or - for stdin.")

    def execute(self) -> None:
        """Run it here as ``__main__``."""
        sys.argv = [self.name, *self.arguments]
        if self.code is not None:
            sys.path.insert(0, os.getcwd())
            exec(compile(self.code, "<stdin>", "exec"), {"__name__": "__main__"})  # noqa: S102 - that is what is asked
        elif self.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(self.name).resolve().parent))
            runpy.run_path(self.name, run_name="__main__")


@dataclass(frozen=True)
class Options:
    """How to run it.

    Attributes:
        mesh: one of ``refsim meshes``.
        fallback: let golden functions answer operations without a rule.
        report: folder for a report, or None.
        quiet_stdout: what the program prints goes to stderr.
        strict: which findings fail the program; None for none.
        allowed: kinds of findings that do not.
        numerics: ``exact`` or ``fast`` rounds values as kernels do, ``off`` once.
        values: False computes none.
        weights: ``random`` or ``random:SEED`` gives models and checkpoints without their weights.
    """

    mesh: str
    fallback: bool
    report: Path | None
    quiet_stdout: bool
    strict: Strict | None
    allowed: tuple[str, ...]
    numerics: str
    values: bool
    weights: str


def run(program: Program, options: Options) -> Verdict:
    """Run ``program``; whatever happens to its process is the verdict.

    Raises:
        UserError: no such script or mesh, no place for the report, or ttnn is not installed.
    """
    program.check()
    if options.mesh == AUTO:
        raise UserError("a program asks for no mesh by itself; name one of `refsim meshes`.")
    if options.report is not None:
        output.check_folder(options.report, "--report")
    check_numerics(options.numerics)
    seed_of(options.weights)
    machine.prepare(options.mesh)

    from tt_impl.harness.pytest.isolation import Child, Ended  # which imports ttnn

    try:
        child = Child.fork((), lambda last: lambda *_: _inside(program, options, last.note), lambda: None)
        try:
            verdict = Verdict(**child.run(0, None, None))
        except Ended as end:
            sys.stderr.write(f"{end.stack}\n")
            return Verdict(program.name, "failed", verdicts.CRASH, mesh=options.mesh, op=end.op, message=str(end))
        child.close()
        return verdict
    finally:
        machine.clean_up()


def _inside(program: Program, options: Options, last: Callable[[str], None]) -> dict[str, Any]:
    """In the program's own process: run it, and say what it showed."""
    from tt_impl.harness.checks.find import find
    from tt_impl.harness.watch.session import watched

    machine.enter(options.mesh)
    if (seed := seed_of(options.weights)) is not None:
        from tt_impl.harness import weights

        weights.install(weights.RandomWeights(seed, options.values))
    if options.quiet_stdout:
        os.dup2(2, 1)
    verdict = Verdict(program.name, "passed", verdicts.NO_DEVICE, mesh=options.mesh)
    how = {"numerics": options.numerics, "values": options.values}
    with watched(options.fallback, options.report is not None, last, **how) as session:
        try:
            program.execute()
        except SystemExit as end:
            session.log.ended_by(end)
            _ended_itself(verdict, end.code)
        except BaseException as error:
            session.log.ended_by(error)
            _failed(verdict, error)
            if not options.values and verdicts.may_be_of_values(error):
                verdict.outcome = "skipped"
                verdict.category = verdicts.UNJUDGED
        if verdict.outcome == "passed" and session.unknown:
            verdict.outcome = "failed"
            verdict.category = verdicts.CAUGHT
            verdict.message = verdicts.first_words(session.unknown[0])
        elif verdict.outcome == "passed":
            verdict.category = verdicts.passed(session.ops, session.fallbacks, options.values)
        sys.stdout.flush()
    verdict.ops = dict(session.ops)
    verdict.fallbacks = dict(session.fallbacks)
    verdict.emulated = dict(session.shadow.emulated)
    verdict.numerics = session.numerics
    verdict.values = options.values
    if verdict.outcome == "failed":
        verdict.memory = exhausted.of_session(session)
    findings = find(session.log)
    verdict.findings = [str(finding) for finding in findings]
    failing = [] if options.strict is None else options.strict.failing(findings, options.allowed)
    if verdict.outcome == "passed" and failing:
        verdict.outcome = "failed"
        verdict.category = verdicts.FINDING
        verdict.message = f"{len(failing)} of the findings below fail it: --strict."
    if options.report is not None:
        from tt_impl.harness.reports.write import write

        write(options.report, "stdin" if program.code is not None else Path(program.name).stem, session, findings)
    return verdict.as_json()


def _ended_itself(verdict: Verdict, code: Any) -> None:
    """``sys.exit``: 0 and None are a success, anything else is not, and a text is for the user."""
    if code not in (None, 0):
        verdict.outcome = "failed"
        verdict.category = verdicts.ERROR
        verdict.message = f"the program ended itself with {code!r}."


def _failed(verdict: Verdict, error: BaseException) -> None:
    verdict.outcome = "failed"
    verdicts.shorten(error)
    verdict.category, verdict.op, verdict.message = verdicts.failed(error)
    verdict.missing = verdict.op if verdict.category == verdicts.RULE else ""
    _show(error)


def _show(error: BaseException) -> None:
    """Print a traceback without what the mock does between the program and ttnn."""
    shown = traceback.TracebackException.from_exception(error)
    hidden = (tt_impl.__path__[0], runpy.__file__, "<frozen")
    part: Any = shown
    while part is not None:
        part.stack = traceback.StackSummary.from_list([f for f in part.stack if not f.filename.startswith(hidden)])
        part = part.__cause__ or part.__context__
    sys.stderr.write("".join(shown.format()))


def text(verdict: Verdict) -> str:
    """Write the verdict in a few lines."""
    calls = sum(verdict.ops.values())
    kinds = len(verdict.ops)
    lines = [*(exhausted.lines(verdict.memory) if verdict.memory else [])]
    lines += [
        f"{verdict.id} on {verdict.mesh}: {CATEGORIES[verdict.category]} ({calls} operations, {kinds} different)."
    ]
    if verdict.outcome != "passed":
        lines.append(verdict.message)
    if not verdict.values:
        lines.append(f"{verdicts.NOTHING_SHOWN}.")
    if verdict.fallbacks:
        lines.append(f"golden functions answered {', '.join(sorted(verdict.fallbacks))}.")
    if verdict.emulated:
        lines.append(f"only resembling the device: {', '.join(sorted(verdict.emulated))}.")
    if rounded := rounding.sentence([verdict.numerics]):
        lines.append(f"{rounded}.")
    return "\n".join([*lines, *verdict.findings])
