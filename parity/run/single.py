"""One case again, by its id, with all taps and the trace on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.cases.selection import find_case
from parity.explain.places import Evidence
from parity.measure.records import SuiteRun
from parity.measure.traces import check
from parity.run.runner import check_environment, make_runner
from parity.run.suite import Asked, run_cases
from refsim.base.errors import UserError
from refsim.files.output import check_target
from refsim.runtime.watch import perfetto


class Traced:
    """A runner of CPU cases that also keeps the ``trace`` of the last run and looks at it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.trace: list[dict[str, Any]] = []

    def __enter__(self) -> Traced:
        self._runner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.__exit__(*error)

    def run(self, case: Case, seed: int) -> Any:
        """As the runner's, with what only the trace shows among the metrics."""
        self.trace = []
        measured = self._runner.run(case, seed, trace=True)
        self.trace = measured.trace
        measured.metrics |= check(measured.trace, case.layout)
        return measured

    def drop(self, case: Case, seed: int) -> None:
        self._runner.drop(case, seed)

    def explain(self, case: Case, seed: int, limits: dict[str, float]) -> Evidence:
        """As the runner's."""
        return self._runner.explain(case, seed, limits)


def run_one(case_id: str, backend: str, seed: int, out: Path | None, trace: Path | None = None) -> SuiteRun:
    """Run and judge one case; on CPU ranks with its trace, which goes into the file ``trace`` if one is named.

    Raises:
        UserError: no such case, or a trace of a backend that keeps no times.
    """
    case = find_case(case_id, backend)
    if trace is not None and backend != "cpu":
        raise UserError(f"a case on {backend} keeps no times; leave out --trace, or take --backend cpu.")
    if trace is not None:
        check_target(trace, "--trace")
    check_environment([case])
    runner: Any = make_runner(backend)
    traced = Traced(runner) if backend == "cpu" else runner
    done = run_cases([case], traced, Asked("full", case_id, backend, seed), out)
    if trace is not None and traced.trace:
        perfetto.write(traced.trace, trace, f"{case_id}, seed {seed}")
    return done
