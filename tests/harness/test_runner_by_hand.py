"""What runs somebody's tests, piece by piece: options, limits, groups, reports of a process that is gone, questions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ttnn")


from refsim.base.errors import UserError
from tt_impl.harness import plugin
from tt_impl.harness.pytest import isolation, machine, verdicts
from tt_impl.harness.pytest.runner import Runner, _fail, _InChild, _outlives, _with_tuples
from tt_impl.harness.pytest.summary import Summary

OPTIONS = {
    "ttnn_mock": "t3k", "ttnn_mock_fallback": False, "ttnn_mock_numerics": None, "ttnn_mock_values": "on",
    "ttnn_mock_isolate": "file", "ttnn_mock_timeout": 900.0, "ttnn_report": None, "ttnn_mock_json": None,
}  # fmt: skip
INI = {"ttnn_mock_numerics": "off", "ttnn_mock_strict": "", "timeout": "0"}


def config(ini: dict[str, str] | None = None, plugins: tuple[str, ...] = (), **options: Any) -> Any:
    options = OPTIONS | options
    manager = SimpleNamespace(hasplugin=lambda name: name in plugins)
    return SimpleNamespace(
        getoption=lambda name, default=None: options.get(name, default),
        getini=(INI | (ini or {})).__getitem__,
        pluginmanager=manager,
    )


def item(name: str, *markers: Any, path: str = "/a/test_x.py", fixtures: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        nodeid=name, path=path, location=(path, 3, name), keywords=["b", "a"], fixturenames=fixtures,
        get_closest_marker=lambda wanted: next((m for m in markers if m.name == wanted), None),
    )  # fmt: skip


def marker(*arguments: Any, **options: Any) -> Any:
    return SimpleNamespace(name="timeout", args=arguments, kwargs=options)


def test_options_of_the_plugin() -> None:
    """By default, and given; a file behind ``--ttnn-mock-strict`` is none of its kinds."""
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    defaults = {name: value for name, value in vars(parser.parse_known_args([])).items() if name.startswith("ttnn")}
    assert defaults == OPTIONS | {
        "ttnn_mock": None, "ttnn_mock_sample": 0, "ttnn_mock_cases": 0, "ttnn_mock_seed": "0", "ttnn_mock_strict": None,
        "ttnn_mock_weights": "",
    }  # fmt: skip
    settings = {name: how[1:] for name, how in parser._inidict.items()}
    assert settings == {"ttnn_mock_strict": ("string", ""), "ttnn_mock_numerics": ("string", "off")}
    words = ["--ttnn-mock=n150", "--ttnn-mock-fallback", "--ttnn-mock-sample=2", "--ttnn-mock-timeout=5"]
    given = parser.parse_known_args([*words, "--ttnn-mock-strict", "--ttnn-mock-isolate=none"])
    found = given.ttnn_mock, given.ttnn_mock_fallback, given.ttnn_mock_sample, given.ttnn_mock_timeout
    assert found == ("n150", True, 2, 5.0) and (given.ttnn_mock_strict, given.ttnn_mock_isolate) == ("all", "none")
    arguments = ["--ttnn-mock-strict", "test_x.py"]
    early = SimpleNamespace(known_args_namespace=None)
    plugin.pytest_load_initial_conftests(early, parser, arguments)
    assert arguments == ["--ttnn-mock-strict=all", "test_x.py"] and early.known_args_namespace.ttnn_mock_strict == "all"


def test_a_mock_that_is_found_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_machine", machine._Machine())
    lines: list[Any] = []
    late = config()
    late.addinivalue_line = lambda *line: lines.append(line)
    with pytest.raises(pytest.UsageError, match=r"set PYTEST_PLUGINS=tt_impl\.harness\.plugin instead of using -p"):
        plugin.pytest_configure(late)
    late.getoption = lambda name: None
    plugin.pytest_configure(late)
    assert [line[1].partition("(")[0] for line in lines] == ["ttnn_mock_allow"] * 2


@pytest.mark.parametrize(("asked", "seed", "values"), [("random", 0, "on"), ("random:3", 3, "off"), ("", None, "on")])
def test_weights_that_are_asked_for(asked: str, seed: int | None, values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []
    monkeypatch.setattr("tt_impl.harness.weights.install", installed.append)
    plugin._install_weights(SimpleNamespace(ttnn_mock_weights=asked, ttnn_mock_values=values))
    assert [(one.seed, one.values) for one in installed] == [(seed, values == "on")] * (seed is not None)


@pytest.mark.parametrize(
    ("options", "plugins", "markers", "limit"),
    [
        ({}, (), (), 900.0),
        ({"ttnn_mock_timeout": 7.0}, ("timeout",), (), 7.0),
        ({"timeout": 5}, (), (), 900.0),
        ({"timeout": 5}, ("timeout",), (), 35.0),
        ({"ini": "6"}, ("timeout",), (), 36.0),
        ({"ini": "6", "timeout": 5}, ("timeout",), (), 35.0),
        ({"timeout": 5}, ("timeout",), (marker(8),), 38.0),
        ({"timeout": 5}, ("timeout",), (marker(timeout=9),), 39.0),
        ({"timeout": 5}, ("timeout",), (marker(),), 35.0),
        ({"timeout": 5}, ("timeout",), (marker(0),), 35.0),
    ],
)
def test_how_long_a_test_may_take(options: dict[str, Any], plugins: Any, markers: Any, limit: float) -> None:
    options = dict(options)
    ini = {"timeout": options.pop("ini", "0")}
    assert Runner(config(ini, plugins, **options))._limit(item("t", *markers)) == limit


def test_what_is_asked_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    monkeypatch.setattr(machine, "enter", entered.append)
    runner = Runner(config())
    assert (runner.fallback, runner.numerics, runner.values, runner.here, runner.strict) == (
        False,
        "off",
        True,
        False,
        None,
    )
    runner = Runner(config({"ttnn_mock_strict": "all"}, ttnn_mock_numerics="fast", ttnn_mock_values="off"))
    assert (runner.numerics, runner.values) == ("fast", False) and runner.strict is not None and entered == []
    for options in ({"ttnn_mock_isolate": "none"}, {"usepdb": True}):
        assert Runner(config(**options)).here and entered == ["t3k"]
        entered.clear()
        with pytest.raises(pytest.UsageError, match="--ttnn-mock auto needs a process per mesh"):
            Runner(config(ttnn_mock="auto", **options))


def test_tests_that_share_a_process() -> None:
    """Those of a file on one mesh; of a mesh that each asks for, those that ask for the same."""
    a, b = (item(name, fixtures=(fixture,)) for name, fixture in (("a", "device"), ("b", "mesh_device")))
    for isolate, mesh, groups in (
        ("file", "t3k", [("t3k", "/a/test_x.py")] * 2),
        ("test", "t3k", [("t3k", "a"), ("t3k", "b")]),
        ("file", "auto", [("n150", "/a/test_x.py"), ("t3k", "/a/test_x.py")]),
    ):
        runner = Runner(config(ttnn_mock=mesh, ttnn_mock_isolate=isolate))
        assert [runner._group(one) for one in (a, b)] == groups and runner._group(None) is None
    a.session = SimpleNamespace(items=[b, a])
    assert (runner._number(a), runner._number(b)) == (1, 0)


@pytest.mark.parametrize(("timed_out", "category"), [(True, "timeout"), (False, "crash")])
def test_reports_of_a_process_that_is_gone(timed_out: bool, category: str) -> None:
    end = isolation.Ended("was killed by SIGSEGV", "in ttnn.add on [[32, 32]]", "  File x", timed_out)
    failed, put_away = Runner(config())._ended(item("t"), end, 2.5)
    message = "the process was killed by SIGSEGV in ttnn.add on [[32, 32]]."
    shown = {"category": category, "op": "ttnn.add", "message": message, "mesh": "t3k"}
    assert (failed.when, failed.outcome, failed.longrepr, failed.duration) == (
        "call", "failed", f"{message}\n\n  File x", 2.5,
    )  # fmt: skip
    assert failed.ttnn_mock == shown | {"seconds": 2.5, "when": "call", "outcome": "failed"}
    assert (put_away.when, put_away.outcome, put_away.longrepr, put_away.duration) == ("teardown", "passed", None, 0.0)
    assert put_away.ttnn_mock == shown | {"seconds": 0.0, "when": "teardown", "outcome": "passed"}
    for report in (failed, put_away):
        assert (report.nodeid, report.location) == ("t", ("/a/test_x.py", 3, "t"))
        assert list(report.keywords.items()) == [("b", 1), ("a", 1)]
    nowhere = isolation.Ended("exited with code 3", "", "", False)
    assert str(nowhere) == "the process exited with code 3 before any operation of ttnn." and nowhere.op == ""
    assert Runner(config())._ended(item("t"), nowhere, 0.0)[0].longrepr == str(nowhere)


def calls_of(*names: str) -> tuple[Any, list[Any]]:
    """Hooks that note how they are called."""
    told: list[Any] = []
    hooks = {name: lambda name=name, **options: told.append((name, options)) for name in names}
    return SimpleNamespace(**hooks), told


@pytest.mark.parametrize(
    ("isolate", "plugins", "first"),
    [("file", ("timeout",), True), ("file", (), False), ("none", ("timeout",), False)],
)
def test_a_test_is_run_and_told(isolate: str, plugins: Any, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here or by a child; the timer of pytest-timeout is set where it runs."""
    monkeypatch.setattr(machine, "enter", lambda mesh: None)
    runner = Runner(config(None, plugins, ttnn_mock_isolate=isolate))
    for name in ("_watch", "_delegate"):
        monkeypatch.setattr(runner, name, lambda *what, name=name: [(name, *what), "report"])
    names = ("logstart", "logreport", "logfinish")
    one = item("t")
    one.ihook, told = calls_of("pytest_timeout_cancel_timer", *(f"pytest_runtest_{name}" for name in names))
    assert runner.pytest_runtest_protocol(one, None) is True
    place = {"nodeid": "t", "location": one.location}
    ran = ("_watch" if isolate == "none" else "_delegate", one, None)
    assert told == [
        *[("pytest_timeout_cancel_timer", {"item": one})] * first,
        ("pytest_runtest_logstart", place),
        *(("pytest_runtest_logreport", {"report": report}) for report in (ran, "report")),
        ("pytest_runtest_logfinish", place),
    ]


def test_a_sample_of_the_tests() -> None:
    """Those that are left out are told to pytest."""
    items = [item(f"test_a[{number}]") for number in range(4)]
    options = {"ttnn_mock_sample": 3, "ttnn_mock_cases": 0, "ttnn_mock_seed": "0"}
    asked = config(**options)
    asked.hook, told = calls_of("pytest_deselected")
    left = [*items]
    Runner(asked).pytest_collection_modifyitems(asked, left)
    ((_, deselected),) = told
    assert len(left) == 3 and [one for one in items if one not in left] == deselected["items"]
    asked = config(**options | {"ttnn_mock_sample": 4})
    Runner(asked).pytest_collection_modifyitems(asked, items)
    assert len(items) == 4


@pytest.mark.parametrize(
    ("mesh", "items", "only_collects", "looks"),
    [("auto", [1], False, True), ("t3k", [1], False, False), ("auto", [], False, False), ("auto", [1], True, False)],
)
def test_devices_are_looked_for_where_tests_have_meshes_of_their_own(
    mesh: str, items: list[int], only_collects: bool, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []
    monkeypatch.setattr(machine, "look_for_devices", lambda: looked.append(True))
    option = SimpleNamespace(collectonly=only_collects)
    session: Any = SimpleNamespace(items=items, config=SimpleNamespace(option=option))
    Runner(config(ttnn_mock=mesh)).pytest_collection_finish(session)
    assert looked == [True] * looks


def test_the_end_of_a_run_ends_the_child() -> None:
    closed: list[bool] = []
    runner = Runner(config())
    runner.pytest_sessionfinish()
    runner._child = SimpleNamespace(close=lambda: closed.append(True))
    for _ in range(2):
        runner.pytest_sessionfinish()
    assert closed == [True]


def phases_of(runner: Runner, *calls: tuple[str, str, Any, list[str]]) -> list[Any]:
    """Make reports of phases: when, outcome, an error, and what the mock did not know during it."""
    made = []
    for when, outcome, error, unknown in calls:
        assert runner.session is not None
        runner.session.unknown += unknown
        report = SimpleNamespace(when=when, outcome=outcome, longrepr=None, sections=[], user_properties=[])
        excinfo = None if error is None else SimpleNamespace(value=error)
        making = runner.pytest_runtest_makereport(item("t"), SimpleNamespace(excinfo=excinfo))
        next(making)
        with pytest.raises(StopIteration):
            making.send(SimpleNamespace(get_result=lambda report=report: report))
        made.append(report)
    return made


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runner]:
    """A runner in the midst of a test; the category of a phase is what was caught in it."""

    def made(**options: Any) -> Runner:
        runner = Runner(config(**options))
        ended: list[Any] = []
        runner.session = SimpleNamespace(unknown=[], log=SimpleNamespace(ended_by=ended.append, ended=ended))
        return runner

    def phase(report: Any, call: Any, session: Any, caught: list[str]) -> dict[str, Any]:
        memory = {"sentence": "no more."} if isinstance(getattr(call.excinfo, "value", None), MemoryError) else {}
        return {"category": [*caught], "memory": memory, "ops": {"ttnn.add": 2, "ttnn.exp": 1}}

    monkeypatch.setattr(verdicts, "phase", phase)
    monkeypatch.setattr(verdicts, "may_be_of_values", lambda error: isinstance(error, AssertionError))
    monkeypatch.setattr("tt_impl.harness.reports.exhausted.lines", lambda memory: [memory["sentence"], "free it."])
    return made


def test_what_is_noted_on_reports(watching: Any) -> None:
    """What the mock did not know counts in the phase it was caught in, once; memory is told at the test's end, too."""
    runner = watching()
    phases = [("setup", "passed", None, []), ("call", "passed", None, ["a", "b"]), ("teardown", "passed", None, ["c"])]
    made = phases_of(runner, *phases)
    assert [(report.outcome, report.ttnn_mock["category"]) for report in made] == [
        ("passed", []), ("failed", ["a", "b"]), ("failed", ["c"]),
    ]  # fmt: skip
    assert {report.ttnn_mock["mesh"] for report in made} == {"t3k"}
    assert made[1].longrepr == "the mock knows no value, and the error that said so was caught:\na\nb"
    assert [report.user_properties for report in made] == [[], [], [("ttnn_mock_ops", 3)]]
    runner = watching()
    error = MemoryError()
    made = phases_of(runner, ("call", "failed", error, ["a"]), ("teardown", "passed", None, []))
    assert [(report.outcome, report.ttnn_mock["category"]) for report in made] == [("failed", []), ("passed", [])]
    assert made[0].sections == [("ttnn mock memory", "no more.\nfree it.")] and made[1].sections == []
    assert made[1].user_properties == [("ttnn_mock_ops", 3), ("ttnn_mock_memory", "no more.")]
    assert runner.session.log.ended == [error]


@pytest.mark.parametrize(
    ("values", "error", "outcome"),
    [("on", AssertionError(), "failed"), ("off", AssertionError(), "skipped"), ("off", ValueError(), "failed")],
)
def test_an_assertion_without_values(values: str, error: Exception, outcome: str, watching: Any) -> None:
    (report,) = phases_of(watching(ttnn_mock_values=values), ("call", "failed", error, []))
    assert report.outcome == outcome
    if outcome == "skipped":
        assert (report.ttnn_mock["outcome"], report.ttnn_mock["category"]) == ("skipped", "unjudged")
        assert report.wasxfail == verdicts.CATEGORIES["unjudged"]


@pytest.mark.parametrize(("full", "args"), [(False, ("no",)), (True, ("no\nbacktrace:\n x",))])
def test_ttnn_s_stack_is_cut_off_an_error(full: bool, args: tuple[str], watching: Any) -> None:
    error = RuntimeError("no\nbacktrace:\n x")
    phases_of(watching(fulltrace=full), ("call", "failed", error, []))
    assert error.args == args


@pytest.mark.parametrize(
    ("following", "outlives", "kept"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_test_that_is_watched(following: bool, outlives: bool, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each anew; the session before it is handed on only if its tensors may still be used."""
    asked: list[Any] = []

    def protocol(one: Any, log: bool, nextitem: Any) -> list[Any]:
        asked.append((one, log, nextitem, runner.session, runner.last.read()))
        runner.last.note("in ttnn.add")
        return [SimpleNamespace(ttnn_mock={}), SimpleNamespace(ttnn_mock={"a": 1})]

    monkeypatch.setattr(
        "tt_impl.harness.pytest.runner.watched", lambda *how: asked.append(how) or nullcontext("session")
    )
    monkeypatch.setattr("tt_impl.harness.pytest.runner.runtestprotocol", protocol)
    monkeypatch.setattr("tt_impl.harness.pytest.runner._outlives", lambda one: outlives)
    runner = Runner(config(ttnn_mock_fallback=True, ttnn_mock_numerics="fast", ttnn_report="x"))
    runner._earlier = cast("Any", "earlier")
    runner._memory, runner._reported = "no more.", 3
    monkeypatch.setattr(runner, "_checked", lambda *what: asked.append(what) or {"b": 2})
    runner.last.note("in an earlier test")
    nextitem = item("next") if following else None
    one = item("t")
    reports = runner._watch(one, nextitem)
    how, ran, checked = asked
    assert how == (True, True, runner.last.note, "earlier", "fast", True)
    assert ran == (one, False, nextitem, "session", "") and checked == (one, "session", reports)
    assert reports[1].ttnn_mock == {"a": 1, "b": 2} and reports[0].ttnn_mock == {}
    assert (runner.session, runner._memory, runner._reported) == (None, "", 0)
    assert cast("Any", runner._earlier) == ("session" if kept else None)


@pytest.mark.parametrize(
    ("strict", "outcomes", "allowed", "told", "failed"),
    [
        ("", "ppp", (), ["a: error", "b: error"], None),
        ("all", "ppp", (), ["a: error", "b: error"], "a: error"),
        ("all", "ppp", ("freed",), ["a: error", "b: error"], "b: error"),
        ("all", "pfp", (), ["a: error", "b: error"], None),
        ("unused-result", "ppp", (), ["a: error", "b: error", "c: note"], "c: note"),
        ("not-finite", "ppp", (), ["a: error", "b: error"], None),
    ],
)
def test_findings_of_a_test(
    strict: str, outcomes: str, allowed: Any, told: list[str], failed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found(SimpleNamespace):
        def __str__(self) -> str:
            return f"{self.name}: {self.severity}"

    kinds = (("a", "freed", "error"), ("b", "refused", "error"), ("c", "unused-result", "note"))
    findings = [Found(name=name, kind=kind, severity=severity) for name, kind, severity in kinds]
    monkeypatch.setattr("tt_impl.harness.pytest.runner.find", lambda log: findings)
    written: list[Any] = []
    monkeypatch.setattr(
        "tt_impl.harness.reports.write.try_to_write", lambda *what: written.append(what) or {"report": "r"}
    )
    names = {"p": "passed", "f": "failed"}
    reports: list[Any] = [
        SimpleNamespace(when=when, outcome=names[outcome], longrepr=None, ttnn_mock={})
        for when, outcome in zip(("setup", "call", "teardown"), outcomes, strict=True)
    ]
    one = item("t")
    one.iter_markers = lambda name: [SimpleNamespace(args=allowed)] if name == "ttnn_mock_allow" else []
    session: Any = SimpleNamespace(log=SimpleNamespace(events=[1]))
    runner = Runner(config({"ttnn_mock_strict": strict}, ttnn_report="folder"))
    assert runner._checked(one, session, reports) == {"findings": told, "report": "r"}
    assert written == [("folder", "t", session, findings)]
    call = reports[1]
    assert reports[0].outcome == reports[2].outcome == "passed"
    if failed is None:
        assert call.outcome == names[outcomes[1]] and call.ttnn_mock == {}
    else:
        assert call.outcome == "failed" and call.longrepr.startswith(f"strict mode allows no such finding:\n{failed}")
        assert call.ttnn_mock == {"outcome": "failed", "category": "finding", "message": failed}
    session.log.events.clear()
    assert Runner(config(ttnn_report="folder"))._checked(one, session, reports).keys() == {"findings"}
    session.log.events.append(1)
    assert Runner(config())._checked(one, session, reports).keys() == {"findings"} and len(written) == 1


def test_warnings_of_a_child() -> None:
    """Are told as if they had come here; of a category that is not Python's they are a user's."""
    recorded: list[Any] = []
    hook = SimpleNamespace(call_historic=lambda kwargs: recorded.append(kwargs))
    asked = config()
    asked.hook = SimpleNamespace(pytest_warning_recorded=hook)
    child = _InChild(Runner(asked))
    for category in (DeprecationWarning, type("OfTheirs", (UserWarning,), {})):
        message = warnings.WarningMessage(category("old"), category, "a.py", 7)
        child.pytest_warning_recorded(message, "runtest", "t", ("a.py", 7, "f"))
    for warning in child.warnings:
        child.runner._warned(dict(warning))
    for told, category in zip(recorded, (DeprecationWarning, UserWarning), strict=True):
        message = told.pop("warning_message")
        assert (message.category, str(message.message), type(message.message)) == (category, "old", category)
        assert (message.filename, message.lineno) == ("a.py", 7)
        assert told == {"when": "runtest", "nodeid": "t", "location": ("a.py", 7, "f")}


def test_a_child_runs_tests_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told while one runs, of its subtests, stands behind the report of its beginning."""
    asked = config()
    runner = Runner(asked)
    child = _InChild(runner)
    items = [item(name) for name in "abc"]
    runner._items = items
    status: list[Any] = []
    for one in items:
        one.config = asked

    def protocol(item: Any, nextitem: Any) -> None:
        assert child.pytest_runtest_protocol(item, nextitem) is True

    def watch(one: Any, nextitem: Any) -> list[Any]:
        child.pytest_runtest_logreport("subtest")
        return [f"{one.nodeid} {when} {nextitem and nextitem.nodeid}" for when in ("setup", "call", "teardown")]

    monkeypatch.setattr(runner, "_watch", watch)
    asked.hook = SimpleNamespace(
        pytest_runtest_protocol=protocol,
        pytest_report_to_serializable=lambda config, report: {"report": report},
        pytest_report_teststatus=lambda report, config: status.append(report),
    )
    for index, following, name in ((1, 2, "b {} c"), (2, None, "c {} None")):
        status.clear()
        phases = [name.format(when) for when in ("setup", "call", "teardown")]
        answer = child.run(index, following)
        assert [one["report"] for one in answer["reports"]] == [phases[0], "subtest", *phases[1:]]
        assert status == phases and answer["warnings"] == []

    def refused(one: Any, nextitem: Any) -> list[Any]:
        raise UserError("ring is no kind of finding.")

    monkeypatch.setattr(runner, "_watch", refused)
    with pytest.raises(pytest.exit.Exception, match="ring is no kind"):
        child.run(0, None)


def test_reports_that_came_as_json() -> None:
    data = {"location": ["a.py", 1, "t"], "user_properties": [["n", 1]], "longrepr": ["a.py", 1, "skipped"]}
    assert _with_tuples(data) == {
        "location": ("a.py", 1, "t"), "user_properties": [("n", 1)], "longrepr": ("a.py", 1, "skipped"),
    }  # fmt: skip
    assert _with_tuples(data | {"longrepr": "text"})["longrepr"] == "text"


def test_a_pass_that_is_turned_into_a_failure() -> None:
    report: Any = SimpleNamespace(outcome="skipped", longrepr=None, wasxfail="known")
    _fail(report, "why", ["a", "b"])
    assert vars(report) == {"outcome": "failed", "longrepr": "why:\na\nb"}


@pytest.mark.parametrize(
    ("scope", "result", "outlives"),
    [
        ("module", ([1], 0), True), ("session", (object(), 0), True), ("function", ([1], 0), False),
        ("module", None, False), *(("module", (value, 0), False) for value in (None, "a", b"a", 1, 1.5)),
    ],
)  # fmt: skip
def test_what_later_tests_use(scope: str, result: Any, outlives: bool) -> None:
    fixtures = {"x": [SimpleNamespace(scope=scope, cached_result=result)], "y": []}
    assert _outlives(SimpleNamespace(_fixtureinfo=SimpleNamespace(name2fixturedefs=fixtures))) == outlives


def test_the_head_of_a_run() -> None:
    text = "ttnn mock: t3k; ttnn builds every program, {}, no kernel is run"
    for values, said in (
        ("on", "values are computed beside it"),
        ("off", "values are off: nothing about them is shown"),
    ):
        assert Summary(config(ttnn_mock_values=values)).pytest_report_header() == text.format(said)
