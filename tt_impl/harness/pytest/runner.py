"""Runs each test of a suite on its mesh, watched, in a process of its own or in this one."""

from __future__ import annotations

import builtins
import sys
import time
import warnings
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from _pytest.runner import runtestprotocol

from refsim.base.errors import RefsimError
from refsim.base.mesh import get_mesh
from tt_impl.harness.checks import ERROR
from tt_impl.harness.checks.find import find
from tt_impl.harness.checks.strict import ALLOW, Strict, check_kinds
from tt_impl.harness.pytest import machine, verdicts
from tt_impl.harness.pytest.isolation import Child, Ended, Run
from tt_impl.harness.pytest.selection import AUTO, mesh_of, sample
from tt_impl.harness.reports import exhausted
from tt_impl.harness.watch.session import LastOperation, Session, watched

_GRACE_S = 30.0
"""How much longer than pytest-timeout, which works in the test's own process, its parent waits."""


class Runner:
    """A pytest plugin object, one for a run.

    Attributes:
        here: whether this process runs tests itself.
        session: what is watched, while a test runs here.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.mesh: str = config.getoption("ttnn_mock")
        self.fallback: bool = config.getoption("ttnn_mock_fallback")
        self.numerics: str = config.getoption("ttnn_mock_numerics") or config.getini("ttnn_mock_numerics")
        self.values: bool = config.getoption("ttnn_mock_values") == "on"
        self.isolate: str = config.getoption("ttnn_mock_isolate")
        if config.getoption("usepdb", False):
            self.isolate = "none"  # a debugger needs the terminal
        if self.isolate == "none" and self.mesh == AUTO:
            raise pytest.UsageError(
                "--ttnn-mock auto needs a process per mesh; name a mesh, or leave out the isolation."
            )
        self.strict = Strict.of_pytest(config)
        self.here = self.isolate == "none"
        self.session: Session | None = None
        self.last = LastOperation()
        self._memory = ""  # what is said of a test that ended out of memory
        self._reported = 0  # how many of the session's unknown values a failed phase has reported
        self._earlier: Session | None = None
        self._child: Child | None = None
        self._numbers: dict[int, int] = {}
        if self.here:
            machine.enter(self.mesh)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Take the sample that is asked for."""
        option = config.getoption
        count = option("ttnn_mock_sample")
        total = option("ttnn_mock_cases")
        seed = option("ttnn_mock_seed")
        sampled = sample(items, per_function=count, total=total, seed=seed)
        if len(sampled) < len(items):
            chosen = {id(item) for item in sampled}
            config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
            items[:] = sampled

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self.mesh == AUTO and session.items and not session.config.option.collectonly:
            machine.look_for_devices()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if not self.here and self.config.pluginmanager.hasplugin("timeout"):
            item.ihook.pytest_timeout_cancel_timer(item=item)  # it is set again where the test runs
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run = self._watch if self.here else self._delegate
        for report in run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        self.close()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Any:
        """Note on each report what the test's phase showed; see :func:`tt_impl.harness.pytest.verdicts.combined`."""
        if self.session is not None and call.excinfo is not None:
            self.session.log.ended_by(call.excinfo.value)
            if not self.config.getoption("fulltrace"):
                verdicts.shorten(call.excinfo.value)
        outcome = yield
        if self.session is not None:
            report = outcome.get_result()
            caught = self.session.unknown[self._reported :] if report.outcome != "failed" else []
            self._reported = len(self.session.unknown)
            if caught:
                _fail(report, "the mock knows no value, and the error that said so was caught", caught)
            facts = verdicts.phase(report, call, self.session, caught) | {"mesh": self.mesh_for(item)}
            report.ttnn_mock = facts
            if not self.values and call.excinfo is not None and verdicts.may_be_of_values(call.excinfo.value):
                _leave_unjudged(report)
            if facts.get("memory"):
                report.sections.append(("ttnn mock memory", "\n".join(exhausted.lines(facts["memory"]))))
                self._memory = facts["memory"]["sentence"]
            if report.when == "teardown":
                report.user_properties.append(("ttnn_mock_ops", sum(facts["ops"].values())))
                if self._memory:
                    report.user_properties.append(("ttnn_mock_memory", self._memory))

    def mesh_for(self, item: pytest.Item) -> str:
        """Name of the mesh that a test runs on."""
        return mesh_of(item) if self.mesh == AUTO else get_mesh(self.mesh).name

    def close(self) -> None:
        """End the child, if there is one."""
        child = self._child
        self._child = None
        if child is not None:
            child.close()

    def _watch(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test in this process."""
        self.last.note("")
        self._memory = ""
        self._reported = 0
        folder = self.config.getoption("ttnn_report")
        watch = watched(self.fallback, folder is not None, self.last.note, self._earlier, self.numerics, self.values)
        with watch as self.session:
            try:
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
                reports[-1].ttnn_mock |= self._checked(item, self.session, reports)
                return reports
            finally:
                self._earlier = self.session if nextitem is not None and _outlives(item) else None
                self.session = None

    def _checked(self, item: pytest.Item, session: Session, reports: list[pytest.TestReport]) -> dict[str, Any]:
        """Find what is wrong with a test's program, whatever its asserts say, and write its report, notes too.

        In strict mode a test that passed fails for it.
        """
        findings = find(session.log)
        facts: dict[str, Any] = {"findings": [str(finding) for finding in findings if finding.severity == ERROR]}
        if self.strict is not None:
            allowed = check_kinds(kind for marker in item.iter_markers(ALLOW) for kind in marker.args)
            failing = [str(finding) for finding in self.strict.failing(findings, allowed)]
            facts["findings"] = list(dict.fromkeys([*facts["findings"], *failing]))
            if failing and all(report.outcome == "passed" for report in reports):
                report = next(report for report in reports if report.when == "call")
                _fail(report, "strict mode allows no such finding", failing)
                report.ttnn_mock |= {"outcome": "failed", "category": verdicts.FINDING}
                report.ttnn_mock["message"] = verdicts.first_words(failing[0])
        folder = self.config.getoption("ttnn_report")
        if folder and session.log.events:
            from tt_impl.harness.reports.write import try_to_write

            facts |= try_to_write(folder, item.nodeid, session, findings)
        return facts

    def _group(self, item: pytest.Item | None) -> tuple | None:
        """Return the group of a test; tests of equal groups share a process."""
        if item is None:
            return None
        return self.mesh_for(item), item.nodeid if self.isolate == "test" else str(item.path)

    def _delegate(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Have a child run a test."""
        group = self._group(item)
        if self._child is None or self._child.group != group:
            self.close()
            self._child = Child.fork(group, lambda last: self._enter(item, last), self._put_away)
        following = self._number(nextitem) if nextitem is not None and self._group(nextitem) == group else None
        started = time.monotonic()
        try:
            answer = self._child.run(self._number(item), following, self._limit(item))
        except Ended as end:
            self._child = None
            return self._ended(item, end, time.monotonic() - started)
        for warning in answer["warnings"]:
            self._warned(warning)
        load = self.config.hook.pytest_report_from_serializable
        return [load(config=self.config, data=_with_tuples(data)) for data in answer["reports"]]

    def _number(self, item: pytest.Item) -> int:
        if not self._numbers:
            self._numbers = {id(other): i for i, other in enumerate(item.session.items)}
        return self._numbers[id(item)]

    def _limit(self, item: pytest.Item) -> float:
        """Seconds that a test may take: those of pytest-timeout, by its marker, option or ini, or of our own option."""
        limit = None
        if self.config.pluginmanager.hasplugin("timeout"):
            marker = item.get_closest_marker("timeout")
            limit = (marker.args[0] if marker.args else marker.kwargs.get("timeout")) if marker else None
            limit = limit or self.config.getoption("timeout", None) or float(self.config.getini("timeout") or 0)
        return float(limit) + _GRACE_S if limit else self.config.getoption("ttnn_mock_timeout")

    def _ended(self, item: pytest.Item, end: Ended, seconds: float) -> list[pytest.TestReport]:
        """Make the reports of a test whose process is gone: it failed."""
        text = f"{end}\n\n{end.stack}".rstrip()
        reports = []
        for when, outcome, longrepr in (("call", "failed", text), ("teardown", "passed", None)):
            report = pytest.TestReport(
                item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, when, duration=seconds
            )
            shown: dict[str, Any] = {"category": verdicts.TIMEOUT if end.timed_out else verdicts.CRASH, "op": end.op}
            shown |= {"message": str(end), "seconds": seconds, "mesh": self.mesh_for(item)}
            report.ttnn_mock = shown | {"when": when, "outcome": outcome}
            reports.append(report)
            seconds = 0.0
        return reports

    def _enter(self, item: pytest.Item, last: LastOperation) -> Run:
        """Become the child, in the forked process: nobody but the parent tells anyone of anything."""
        manager = self.config.pluginmanager
        items = item.session.items
        for plugin in manager.get_plugins():
            if type(plugin).__name__ in ("WorkerInteractor", "TerminalReporter", "LogXML", "Summary"):
                manager.unregister(plugin)
        self.last = last
        self._child = None
        machine.enter(self.mesh_for(item))
        manager.register(_Terminal(), "terminalreporter")
        child = _InChild(self)
        manager.register(child, "ttnn-mock-child")
        self._items = items
        return child.run

    def _put_away(self) -> None:
        """In the child, after its last test: what is still set up, if the run was cut short."""
        if self._items:
            self._items[0].session._setupstate.teardown_exact(None)

    def _warned(self, warning: dict[str, Any]) -> None:
        """Report a warning that a child recorded."""
        category = getattr(builtins, warning.pop("category"), UserWarning)
        message = warnings.WarningMessage(
            category(warning.pop("message")), category, warning.pop("filename"), warning.pop("lineno")
        )
        self.config.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **warning})


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Return a report as pytest serialised it: JSON made lists of tuples that pytest looks for."""
    data["location"] = tuple(data["location"])
    data["user_properties"] = [tuple(pair) for pair in data["user_properties"]]
    if isinstance(data["longrepr"], list):  # of a skip: file, line, reason
        data["longrepr"] = tuple(data["longrepr"])
    return data


def _outlives(item: pytest.Item) -> bool:
    """Whether a fixture of a wider scope made something, tensors perhaps, that later tests use."""
    fixtures = [definition for all in item._fixtureinfo.name2fixturedefs.values() for definition in all]
    results = [one.cached_result for one in fixtures if one.scope != "function" and one.cached_result]
    return any(not isinstance(result[0], str | bytes | int | float | None) for result in results)


def _leave_unjudged(report: pytest.TestReport) -> None:
    """Neither pass nor fail a test that ended in an assertion, where no values are computed."""
    report.outcome = "skipped"
    report.wasxfail = verdicts.CATEGORIES[verdicts.UNJUDGED]
    report.ttnn_mock |= {"outcome": "skipped", "category": verdicts.UNJUDGED}


def _fail(report: pytest.TestReport, reason: str, lines: list[str]) -> None:
    """Turn a pass, skip or expected failure into a failure."""
    vars(report).pop("wasxfail", None)
    report.outcome = "failed"
    report.longrepr = "\n".join([f"{reason}:", *lines])


class _Terminal:
    """A pytest plugin object in a child, in the place of the terminal: what pytest-timeout and fixtures write there."""

    def __init__(self) -> None:
        self._tw = TerminalWriter(sys.stderr)
        self.write = self._tw.write
        self.flush = self._tw.flush
        self.write_sep = self._tw.sep
        self.section = self._tw.sep
        self.write_line = self._tw.line

    def ensure_newline(self) -> None:
        """Do nothing: whole lines are written."""


class _InChild:
    """A pytest plugin object in a child: runs tests by number and collects what is to be told to the parent."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.reports: list[pytest.TestReport] = []
        self.warnings: list[dict[str, Any]] = []

    def run(self, index: int, following: int | None) -> dict[str, Any]:
        config = self.runner.config
        items = self.runner._items
        self.reports = []
        self.warnings = []
        nextitem = None if following is None else items[following]
        config.hook.pytest_runtest_protocol(item=items[index], nextitem=nextitem)
        dump = config.hook.pytest_report_to_serializable
        reports = [dump(config=config, report=report) for report in self.reports]
        return {"reports": reports, "warnings": self.warnings}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        try:
            reports = self.runner._watch(item, nextitem)
        except RefsimError as error:
            pytest.exit(error.with_flags)
        for report in reports:  # asked for its status, pytest fails a test that has failed subtests
            item.config.hook.pytest_report_teststatus(report=report, config=item.config)
        self.reports[:0] = reports[:1]
        self.reports += reports[1:]
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what is told while a test runs: each of its subtests."""
        self.reports.append(report)

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        self.warnings.append(
            {
                "message": str(warning_message.message),
                "category": warning_message.category.__name__,
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )
