"""One case again, by its id, with all taps and the trace on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.cases.selection import find_case
from parity.kinds.base import Measured
from parity.measure.records import SuiteRun
from parity.measure.traces import check
from parity.run.backends import check_environment, check_numerics, make_runner
from parity.run.cpu import CpuRunner
from parity.run.suite import Asked, run_cases
from refsim.base.errors import UserError
from refsim.base.options import Numerics
from refsim.files.output import check_target
from refsim.runtime.watch import measured_trace


class Traced(CpuRunner):
    """Runs cases on CPU ranks, keeps the ``trace`` of the last run and looks at it, too."""

    trace: Sequence[dict[str, Any]] = ()

    def run(self, case: Case, seed: int, **more: Any) -> Measured:
        self.trace = ()
        measured = super().run(case, seed, trace=True, **more)
        self.trace = measured.trace
        measured.metrics |= check(measured.trace, case.layout)
        return measured


def run_one(
    case_id: str, backend: str, seed: int, out: Path | None, trace: Path | None = None, numerics: Numerics = "off"
) -> SuiteRun:
    """Run and judge one case; on CPU ranks with its trace, which goes into the file ``trace`` if one is named.

    Raises:
        UserError: no such case, or a trace of a backend that keeps no times.
    """
    case = find_case(case_id, backend)
    if trace is not None and backend != "cpu":
        raise UserError(f"a case on {backend} keeps no times; leave out --trace, or take --backend cpu.")
    if trace is not None:
        check_target(trace, "--trace")
    check_numerics(backend, numerics)
    check_environment([case])
    runner: Any = Traced() if backend == "cpu" else make_runner(backend, numerics)
    done = run_cases([case], runner, Asked("full", case_id, backend, seed, numerics=numerics), out)
    if trace is not None and runner.trace:
        measured_trace.write(runner.trace, trace, f"{case_id}, seed {seed}")
    return done
