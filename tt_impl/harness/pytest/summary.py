"""The end of a run of somebody's tests: how many passed on which evidence, and what the others met, by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pytest

from tt_impl.harness.checks.strict import Strict
from tt_impl.harness.pytest import verdicts
from tt_impl.harness.pytest.verdicts import CATEGORIES, Verdict
from tt_impl.harness.watch import rounding

_SHOWN = 12
"""How many names or messages of one category are printed."""
_NAMED = {
    **dict.fromkeys((verdicts.RULE, verdicts.UNSEEN, verdicts.CRASH, verdicts.TIMEOUT), "op"),
    **dict.fromkeys((verdicts.OPTION, verdicts.SHADOW, verdicts.CAUGHT, verdicts.FINDING, verdicts.REFUSED), "message"),
    verdicts.MEMORY: "where",
    **dict.fromkeys((verdicts.VERSION, verdicts.ENVIRONMENT, verdicts.ERROR), "message"),
}
"""By which of a verdict's fields the tests of a category are counted."""


class Summary:
    """A pytest plugin object, in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.mesh: str = config.getoption("ttnn_mock")
        self.reports: str | None = config.getoption("ttnn_report")
        self._strict = Strict.of_pytest(config) is not None
        self._values: bool = config.getoption("ttnn_mock_values") == "on"
        self._only_collects: bool = config.getoption("collectonly", False)
        self.verdicts: list[Verdict] = []
        self._phases: dict[str, list[dict[str, Any]]] = {}
        self._collected: Counter[str] = Counter()
        path = config.getoption("ttnn_mock_json")
        try:
            self._file: IO[str] | None = open(path, "w", encoding="utf-8") if path else None
        except OSError as error:
            raise pytest.UsageError(f"--ttnn-mock-json {path}: {error.strerror}.") from error

    def pytest_report_header(self) -> str:
        values = "values are computed beside it" if self._values else "values are off: nothing about them is shown"
        return f"ttnn mock: {self.mesh}; ttnn builds every program, {values}, no kernel is run"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported as a failure of its own, one that is skipped as a whole once."""
        if report.failed:
            text = str(report.longrepr)
            category = verdicts.VERSION if _import_error(text) else verdicts.ERROR
            self._add(Verdict(report.nodeid, "failed", category, message=_last_line(text)))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._add(Verdict(report.nodeid, "skipped", verdicts.SKIPPED, message=verdicts.first_words(reason)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not self._only_collects:
            self._collected = Counter(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Every worker collects the same tests, and runs some of them."""
        self._collected = Counter(ids)

    def pytest_sessionfinish(self) -> None:
        """Count what was collected but not run: after ``-x``, an error in another file, Ctrl-C."""
        left = self._collected - Counter(verdict.id for verdict in self.verdicts)
        for test in left.elements():
            self._add(Verdict(test, "not run", verdicts.NOT_RUN))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        facts = getattr(report, "ttnn_mock", None)
        if facts is None and report.failed:  # by xdist, of a test whose worker is gone
            message = verdicts.first_words(str(report.longrepr))
            self._add(Verdict(report.nodeid, "failed", verdicts.CRASH, message=message))
        elif facts is not None:
            self._phases.setdefault(report.nodeid, []).append(facts)
            if report.when == "teardown":
                self._add(verdicts.combined(report.nodeid, self._phases.pop(report.nodeid)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_sep("=", f"ttnn mock {self.mesh}")
        for line in lines(self.verdicts, strict=self._strict):
            terminalreporter.write_line(line)
        written = [verdict.report for verdict in self.verdicts if verdict.report]
        if self.reports is not None and written:
            from tt_impl.harness.reports.index import index

            place = index(self.reports, written)
            terminalreporter.write_line(f"memory, collectives and predicted times: {place}")

    def pytest_unconfigure(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if self._file is not None:
            print(json.dumps(verdict.as_json()), file=self._file, flush=True)


def lines(outcomes: Iterable[Verdict], *, strict: bool = False) -> list[str]:
    """Write the summary: a line for each category that occurs, below it what its tests met, by frequency.

    ``strict`` says whether findings fail tests.
    """
    groups: dict[str, list[Verdict]] = {}
    everything = list(outcomes)
    for verdict in everything:
        groups.setdefault(verdict.category, []).append(verdict)
    text = []
    for category, sentence in CATEGORIES.items():
        group = groups.get(category, [])
        if not group:
            continue
        text.append(f"{len(group):6d}  {sentence}")
        names: Counter[str] = Counter()
        if category == verdicts.FALLBACK:
            names.update(name for verdict in group for name in verdict.fallbacks)
        elif category in _NAMED:
            names.update(getattr(verdict, _NAMED[category]) or verdict.message for verdict in group)
        text += [f"{count:12d}  {name[:160]}" for name, count in names.most_common(_SHOWN)]
        if len(names) > _SHOWN:
            text.append(f"              and {len(names) - _SHOWN} more")
    return text + _beside(everything, strict)


def _beside(outcomes: list[Verdict], strict: bool) -> list[str]:
    """Tell of tests whatever their category: what was only emulated, reports that are missing, findings."""
    text = []
    if rounded := rounding.sentence(verdict.numerics for verdict in outcomes):
        text.append(rounded)
    if any(not verdict.values for verdict in outcomes):
        text.append(f"{verdicts.NOTHING_SHOWN}.")
    if emulated := Counter(name for verdict in outcomes for name in verdict.emulated):
        names = ", ".join(f"{name} {count}" for name, count in emulated.most_common(_SHOWN))
        text.append(f"emulated, so that values only resemble the device's, in tests: {names}")
    if missing := Counter(verdict.unreported for verdict in outcomes if verdict.unreported):
        text.append(f"{missing.total()} tests have no report, although it was asked for:")
        text += [f"{count:12d}  {reason[:160]}" for reason, count in missing.most_common(_SHOWN)]
    rows = [(verdict.id, finding) for verdict in outcomes for finding in verdict.findings]
    if rows:
        fails = "" if strict else " (they fail no test: add --ttnn-mock-strict)"
        text.append(f"{len(rows)} findings of the checks{fails}:")
        text += [line for test, finding in rows[:_SHOWN] for line in (f"  {test}", f"    {finding}")]
    if len(rows) > _SHOWN:
        text.append(f"  and {len(rows) - _SHOWN} more; --ttnn-mock-json has all of them")
    return text


def read(path: Path) -> list[Verdict]:
    """Verdicts of a file that ``--ttnn-mock-json`` wrote."""
    return [Verdict(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _import_error(text: str) -> bool:
    return any(name in text for name in ("ImportError", "ModuleNotFoundError", "AttributeError"))


def _last_line(text: str) -> str:
    rows = [line for line in text.strip().splitlines() if line.strip()]
    return verdicts.first_words(next((row for row in rows if row.startswith("E ")), rows[-1] if rows else ""))
