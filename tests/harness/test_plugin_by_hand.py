"""What the plugin prepares, registers, opens and closes, hands to children, and says at the end, each by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ttnn")

from refsim.base.errors import UserError
from tests.harness.test_runner_by_hand import config, item
from tt_impl.harness import plugin
from tt_impl.harness.pytest import fixtures, isolation, machine, runner, summary
from tt_impl.harness.pytest.verdicts import Verdict
from tt_impl.harness.reports import index

ASKED: dict[str, Any] = {
    "ttnn_mock": "n300", "ttnn_mock_json": None, "ttnn_mock_sample": 0, "ttnn_mock_cases": 0, "ttnn_report": None,
    "ttnn_mock_strict": None, "ttnn_mock_numerics": None, "ttnn_mock_weights": "", "ttnn_mock_values": "on",
}  # fmt: skip


def noting(steps: list[Any], name: str, answer: Any = None) -> Any:
    def note(*what: Any, **how: Any) -> Any:
        steps.append((name, *what, *how.items()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return note


def loaded(monkeypatch: pytest.MonkeyPatch, worker: bool = False, error: Any = None, **options: Any) -> list[Any]:
    """Return what is done before conftest files are loaded."""
    steps: list[Any] = []
    monkeypatch.setattr("refsim.files.output.check_folder", noting(steps, "folder"))
    monkeypatch.setattr("tt_impl.harness.checks.strict.Strict.of", noting(steps, "strict"))
    monkeypatch.setattr("tt_impl.mock.hardware.check_numerics", noting(steps, "numerics"))
    monkeypatch.setattr(machine, "prepare", noting(steps, "prepare", error))
    monkeypatch.setattr("tt_impl.harness.weights.install", lambda made: steps.append((made.seed, made.values)))
    monkeypatch.setattr(plugin, "_forget", noting(steps, "forget"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    early: Any = SimpleNamespace(
        known_args_namespace=SimpleNamespace(**ASKED | options), getini=lambda name: f"ini {name}"
    )
    plugin.pytest_load_initial_conftests(early, pytest.Parser(_ispytest=True), [])
    return steps


def test_what_is_prepared_before_conftest_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option comes before the file; workers of xdist leave the verdicts that another process writes."""
    plain = [("strict", "ini ttnn_mock_strict"), ("numerics", "ini ttnn_mock_numerics"), ("prepare", "n300")]
    assert loaded(monkeypatch, ttnn_mock=None) == [] and loaded(monkeypatch) == plain
    options = {"ttnn_mock_strict": "freed", "ttnn_mock_numerics": "fast", "ttnn_mock_weights": "random:3"}
    places = {"ttnn_report": "r", "ttnn_mock_json": "v.json"}
    asked = [("strict", "freed"), ("numerics", "fast"), ("prepare", "n300"), (3, True)]
    folder = ("folder", Path("r"), "--ttnn-report")
    assert loaded(monkeypatch, **options, **places) == [("forget", Path("v.json")), folder, *asked]
    assert loaded(monkeypatch, worker=True, **options, **places) == [folder, *asked]
    for option in ("sample", "cases"):
        with pytest.raises(pytest.UsageError, match=rf"^--ttnn-mock-{option} -1 is no number of cases; 0 takes all\.$"):
            loaded(monkeypatch, **{f"ttnn_mock_{option}": -1})
    with pytest.raises(pytest.UsageError, match=r"^no such mesh\.$"):
        loaded(monkeypatch, error=UserError("no such mesh."))


@pytest.mark.parametrize("worker", [False, True])
def test_what_is_registered(worker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of xdist say nothing at the end; whoever ran tests ends its child and removes the mock's files."""
    plugins: dict[str, Any] = {}
    steps: list[Any] = []
    asked = config()
    asked.addinivalue_line = noting(steps, "line")
    asked.pluginmanager.register = lambda one, name: plugins.update({name: one})
    asked.pluginmanager.get_plugin = plugins.get
    if worker:
        asked.workerinput = {}
    monkeypatch.setattr(machine, "is_prepared", lambda: True)
    monkeypatch.setattr(machine, "clean_up", noting(steps, "clean up"))
    plugin.pytest_unconfigure(asked)
    plugin.pytest_configure(asked)
    assert [name for name, *_ in steps] == ["line"] and plugins["ttnn-mock-fixtures"] is fixtures
    assert [type(one).__name__ for one in plugins.values()] == ["module", "Runner", *["Summary"] * (not worker)]
    plugins[plugin._RUNNER].close = noting(steps, "close")
    plugin.pytest_unconfigure(asked)
    assert [name for name, *_ in steps[1:]] == ["close", "clean up"]


def test_verdicts_that_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text("{}")
    monkeypatch.setattr(Path, "unlink", noting([], "unlink", PermissionError(13, "Permission denied")))
    with pytest.raises(pytest.UsageError, match=r"^--ttnn-mock-json .*/v.json: Permission denied\.$"):
        plugin._forget(tmp_path / "v.json")


@pytest.mark.parametrize(
    ("param", "fabric", "shape"),
    [(None, None, (1, 8)), (4, "F", (1, 4)), ((2, 4), None, (2, 4)), ([2, 3], "F", (2, 3))],
)
def test_a_mesh_for_a_test(param: Any, fabric: str | None, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened as it is asked for, under its fabric; closed with its submeshes first."""
    steps: list[Any] = []
    opened = SimpleNamespace(get_submeshes=lambda: ["a", "b"])
    ttnn = SimpleNamespace(
        get_num_devices=lambda: 8, MeshShape=lambda *shape: shape, FabricConfig=SimpleNamespace(DISABLED="off"),
        set_fabric_config=noting(steps, "fabric"), open_mesh_device=noting(steps, "open", opened),
        close_mesh_device=noting(steps, "close"), open_device=noting(steps, "open one", "device"),
        close_device=noting(steps, "close one"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    request = SimpleNamespace(**{} if param is None else {"param": param})
    params = {"l1_small_size": 5} | ({} if fabric is None else {"fabric_config": fabric})
    mesh_device: Any = fixtures.mesh_device
    given = mesh_device.__wrapped__(request, dict(params))
    assert next(given) is opened
    begin = [*([("fabric", "F")] if fabric else []), ("open", ("mesh_shape", shape), ("l1_small_size", 5))]
    assert steps == begin and next(given, "end") == "end"
    closed = [("close", "a"), ("close", "b"), ("close", opened)]
    assert steps == [*begin, *closed, *([("fabric", "off")] if fabric else [])]
    for too_many, said in ((9, "1x9"), ((3, 3), "3x3")):
        with pytest.raises(pytest.skip.Exception, match=f"^asks for {said} devices, but the mesh has 8$"):
            next(mesh_device.__wrapped__(SimpleNamespace(param=too_many), {}))
    one: Any = fixtures.device
    assert list(one.__wrapped__({"l1_small_size": 5})) == ["device"]
    assert steps[-2:] == [("open one", ("device_id", 0), ("l1_small_size", 5)), ("close one", "device")]
    parameters: Any = fixtures.device_params
    asked = {"a": 1}
    copied = parameters.__wrapped__(SimpleNamespace(param=asked))
    assert copied == asked and copied is not asked and parameters.__wrapped__(SimpleNamespace()) == {}


@pytest.mark.parametrize(("strict", "folder", "files"), [("", None, "a"), ("all", "r", "a"), ("", "r", "")])
def test_what_is_said_at_the_end(strict: str, folder: Any, files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    terminal = SimpleNamespace(write_sep=noting(said, "sep"), write_line=noting(said, "line"))
    monkeypatch.setattr(summary, "lines", lambda verdicts, *, strict: [f"{len(verdicts)} {strict}"])
    monkeypatch.setattr(index, "index", lambda *what: f"index of {what}")
    found = summary.Summary(config({"ttnn_mock_strict": strict}, ttnn_report=folder))
    found.verdicts = [Verdict("t", "passed", "own", report=file) for file in ("", files)]
    found.pytest_terminal_summary(terminal)
    place = "memory, collectives and predicted times: index of ('r', ['a'])"
    written = [("line", place)] if folder and files else []
    assert said == [("sep", "=", "ttnn mock t3k"), ("line", f"2 {bool(strict)}"), *written]


def test_tests_are_handed_to_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each group, told which test of it comes next; of one that is gone the reports are made here."""
    steps: list[Any] = []
    answers: list[Any] = []

    class Child:
        def __init__(self, group: tuple) -> None:
            self.group = group

        def run(self, *test: Any) -> dict[str, Any]:
            steps.append(("run", *test))
            if isinstance(answers[0], Exception):
                raise answers.pop(0)
            return answers.pop(0)

        def close(self) -> None:
            steps.append(("close", self.group))

    def fork(group: tuple, prepare: Any, finish: Any) -> Child:
        steps.append(("fork", group, prepare("last"), finish))
        return Child(group)

    asked = config(ttnn_mock_timeout=7.0)
    asked.hook = SimpleNamespace(pytest_report_from_serializable=lambda config, data: (config is asked, data["id"]))
    of = runner.Runner(asked)
    one, two, other = (item(name, path=path) for name, path in (("a", "x.py"), ("b", "x.py"), ("c", "y.py")))
    for test in (one, two, other):
        test.session = SimpleNamespace(items=[one, two, other])
    monkeypatch.setattr(runner.Child, "fork", fork)
    monkeypatch.setattr(of, "_enter", lambda test, last: (test.nodeid, last))
    monkeypatch.setattr(of, "_warned", noting(steps, "warned"))
    monkeypatch.setattr(of, "_ended", lambda test, end, seconds: [(test.nodeid, end, seconds)])
    clock = iter((100.0, 102.5))
    report = {"location": [], "user_properties": [], "longrepr": None}

    def delegate(test: Any, following: Any, *ids: str) -> list[Any]:
        answers.append({"warnings": [f"w{name}" for name in ids], "reports": [report | {"id": name} for name in ids]})
        steps.clear()
        return of._delegate(test, following)

    forked = ("fork", ("t3k", "x.py"), ("a", "last"), of._put_away)
    assert delegate(one, two, "1", "2") == [(True, "1"), (True, "2")]
    assert steps == [forked, ("run", 0, 1, 7.0), ("warned", "w1"), ("warned", "w2")]
    assert delegate(two, other, "3") == [(True, "3")] and steps == [("run", 1, None, 7.0), ("warned", "w3")]
    end = isolation.Ended("was killed", "", "", timed_out=False)
    answers.insert(0, end)
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    assert delegate(other, None) == [("c", end, 2.5)]
    assert steps == [
        ("close", ("t3k", "x.py")),
        ("fork", ("t3k", "y.py"), ("c", "last"), of._put_away),
        ("run", 2, None, 7.0),
    ]
    assert of._child is None


def test_a_child_tells_nobody_but_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reports leaves it; it sees its own terminal, and puts away what is still set up."""
    steps: list[Any] = []
    names = ("WorkerInteractor", "TerminalReporter", "LogXML", "Summary", "Other")
    plugins = [type(name, (), {})() for name in names]
    asked = config()
    asked.pluginmanager.get_plugins = lambda: plugins
    asked.pluginmanager.unregister = lambda one: steps.append(type(one).__name__)
    asked.pluginmanager.register = lambda one, name: steps.append((type(one).__name__, name))
    monkeypatch.setattr(machine, "enter", noting(steps, "enter"))
    of = runner.Runner(asked)
    of._child = cast("Any", SimpleNamespace())
    one = item("a")
    state = SimpleNamespace(teardown_exact=noting(steps, "put away"))
    one.session = SimpleNamespace(items=[one], _setupstate=state)
    last: Any = "last"
    run: Any = of._enter(one, last)
    assert steps == [*names[:4], ("enter", "t3k"), ("_Terminal", "terminalreporter"), ("_InChild", "ttnn-mock-child")]
    assert (of.last, of._child, run.__self__.runner) == (last, None, of)
    assert of._items == [one] and runner._Terminal()._tw._file is sys.stderr
    of._put_away()
    assert steps[7:] == [("put away", None)]
    of._items = []
    of._put_away()
    assert len(steps) == 8


def test_a_fixture_writes_to_the_terminal_of_a_child(capsys: pytest.CaptureFixture) -> None:
    terminal = runner._Terminal()
    terminal.ensure_newline()
    terminal.write_line("a line", red=True)
    terminal.write_sep("-", "a title")
    terminal.section("another")
    terminal.write("an end")
    terminal.flush()
    said = capsys.readouterr().err
    assert said.startswith("a line\n") and " a title " in said and "another" in said and said.endswith("an end")
