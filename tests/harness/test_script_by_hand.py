"""A program's process from both sides: what is done around it, and what is told of what happened in it."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ttnn")

from refsim.base.errors import UserError
from tt_impl.harness import script, weights
from tt_impl.harness.checks import find
from tt_impl.harness.pytest import isolation, verdicts
from tt_impl.harness.reports import write
from tt_impl.harness.watch import session
from tt_impl.mock.storage.errors import MissingRule

PLAIN: dict[str, Any] = {
    "mesh": "n300", "fallback": False, "report": None, "quiet_stdout": False, "strict": None, "allowed": (),
    "numerics": "off", "values": True, "weights": "",
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "id": "x.py", "outcome": "passed", "category": "no-device", "seconds": 0.0, "mesh": "n300", "ops": {},
    "fallbacks": {}, "emulated": {}, "numerics": {}, "values": True, "op": "", "missing": "", "message": "",
    "where": "", "findings": [], "memory": {}, "report": "", "unreported": "",
}  # fmt: skip
"""What is told of a program that did nothing."""
STRICT = SimpleNamespace(failing=lambda findings, allowed: [one for one in findings if one not in allowed])


def raising(error: BaseException) -> Any:
    def execute() -> None:
        raise error

    execute.__doc__ = "ended by" if isinstance(error, SystemExit) else "ended by, shown"
    return execute


def inside(monkeypatch: pytest.MonkeyPatch, execute: Any, options: dict[str, Any], **seen: Any) -> Any:
    """Run a program that does ``execute`` in a session that has ``seen`` something; return the verdict and steps."""
    steps: list[Any] = []
    log = SimpleNamespace(ended_by=lambda error: steps.append(("ended by", error)))
    shadow = SimpleNamespace(emulated={"ttnn.rand": 1} if seen else {})
    about = {"ops": Counter(), "fallbacks": Counter(), "unknown": [], "numerics": {}, "findings": []} | seen
    of = SimpleNamespace(log=log, shadow=shadow, **about)

    @contextmanager
    def watched(*how: Any, **more: Any) -> Any:
        steps.append(("watched", *how, more))
        yield of

    monkeypatch.setattr(session, "watched", watched)
    monkeypatch.setattr(script.machine, "enter", lambda mesh: steps.append(("enter", mesh)))
    monkeypatch.setattr(script.os, "dup2", lambda *files: steps.append(("dup2", *files)))
    monkeypatch.setattr(weights, "install", lambda made: steps.append((made.seed, made.values)))
    monkeypatch.setattr(script.exhausted, "of_session", lambda one: {"of": "session"} if one is of else None)
    monkeypatch.setattr(script, "_show", lambda error: steps.append(("shown", error)))
    monkeypatch.setattr(find, "find", lambda known: about["findings"] if known is log else None)
    monkeypatch.setattr(write, "write", lambda *what: steps.append(("written", *what)))
    code = "1" if options.get("stdin") else None
    program: Any = SimpleNamespace(name="a/x.py", execute=execute, code=code)
    asked = script.Options(**PLAIN | {name: value for name, value in options.items() if name != "stdin"})
    return script._inside(program, asked, print), steps, of


@pytest.mark.parametrize(
    ("execute", "options", "seen", "wanted"),
    [
        (lambda: None, {}, {}, {}),
        (lambda: None, {}, {"ops": Counter(a=2)}, {"category": "own", "ops": {"a": 2}}),
        (lambda: None, {"values": False}, {"ops": Counter(a=2)}, {"category": "values-off", "ops": {"a": 2}}),
        (
            lambda: None, {"numerics": "fast"}, {"fallbacks": Counter(a=1), "numerics": {"level": "fast"}},
            {"category": "fallback", "fallbacks": {"a": 1}, "numerics": {"level": "fast"}},
        ),
        (lambda: None, {}, {"unknown": ["a.\nb", "c"]}, {"outcome": "failed", "category": "caught", "message": "a. b"}),
        (
            raising(SystemExit(3)), {}, {"unknown": ["a"]},
            {"outcome": "failed", "category": "error", "message": "the program ended itself with 3."},
        ),
        (raising(SystemExit(0)), {}, {"unknown": ["a"]}, {"outcome": "failed", "category": "caught", "message": "a"}),
        (raising(ValueError("no")), {}, {}, {"outcome": "failed", "category": "error", "message": "no"}),
        (raising(AssertionError("no")), {}, {}, {"outcome": "failed", "category": "assertion", "message": "no"}),
        (
            raising(MissingRule("ttnn.x")), {}, {"unknown": ["ttnn.x"]},
            {
                "outcome": "failed", "category": "rule", "op": "ttnn.x", "missing": "ttnn.x",
                "message": "ttnn.x has no shadow rule.",
            },
        ),
        (
            raising(UserError("ttnn.x uses a tensor that is gone.")), {}, {},
            {
                "outcome": "failed", "category": "refused", "op": "ttnn.x",
                "message": "ttnn.x uses a tensor that is gone.",
            },
        ),
        (
            raising(AssertionError("no")), {"values": False}, {},
            {"outcome": "skipped", "category": "unjudged", "message": "no"},
        ),
        (lambda: None, {}, {"findings": ["a", "b"]}, {"findings": ["a", "b"]}),
        (
            lambda: None, {"strict": STRICT, "allowed": ("b",)}, {"findings": ["a", "b"]},
            {
                "findings": ["a", "b"], "outcome": "failed", "category": "finding",
                "message": "1 of the findings below fail it: --strict.",
            },
        ),
        (lambda: None, {"strict": STRICT, "allowed": ("a",)}, {"findings": ["a"]}, {"findings": ["a"]}),
        (
            raising(ValueError("no")), {"strict": STRICT}, {"findings": ["a"]},
            {"findings": ["a"], "outcome": "failed", "category": "error", "message": "no"},
        ),
    ],
)  # fmt: skip
def test_what_a_program_showed(
    execute: Any, options: dict[str, Any], seen: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, steps, _ = inside(monkeypatch, execute, options, **seen)
    about = {"id": "a/x.py", "values": options.get("values", True)} | ({"emulated": {"ttnn.rand": 1}} if seen else {})
    failed = wanted.get("outcome") == "failed" and wanted["category"] != "finding"
    memory = {"memory": {"of": "session"}} if failed else {}
    assert told == NOTHING | about | memory | wanted
    how = {"numerics": options.get("numerics", "off"), "values": options.get("values", True)}
    assert steps[:2] == [("enter", "n300"), ("watched", False, False, print, how)]
    assert ", ".join(what for what, _ in steps[2:]) == (execute.__doc__ or "")


@pytest.mark.parametrize(("stdin", "name"), [(False, "x"), (True, "stdin")])
def test_what_is_done_around_a_program(stdin: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"fallback": True, "report": Path("to"), "quiet_stdout": True, "values": False, "weights": "random:4"}
    error = ValueError("no")
    _, steps, of = inside(monkeypatch, raising(error), options | {"stdin": stdin}, findings=["a"])
    assert steps == [
        ("enter", "n300"), (4, False), ("dup2", 2, 1),
        ("watched", True, True, print, {"numerics": "off", "values": False}),
        ("ended by", error), ("shown", error), ("written", Path("to"), name, of, ["a"]),
    ]  # fmt: skip


def test_a_program_has_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine is put away whatever happens; a process that is gone is not asked to end."""
    steps: list[Any] = []
    end: list[isolation.Ended] = []

    def run(*test: Any) -> dict[str, Any]:
        steps.append(("run", *test))
        if end:
            raise end[0]
        return NOTHING

    child = SimpleNamespace(run=run, close=lambda: steps.append("close"))

    def fork(group: tuple, prepare: Any, finish: Any) -> Any:
        steps.append(("fork", group, prepare(SimpleNamespace(note="note"))(0, None), finish()))
        return child

    monkeypatch.setattr(isolation.Child, "fork", fork)
    monkeypatch.setattr(script, "_inside", lambda *what: what)
    monkeypatch.setattr(script.machine, "prepare", lambda mesh: steps.append(("prepare", mesh)))
    monkeypatch.setattr(script.machine, "clean_up", lambda: steps.append("clean up"))
    program = script.Program("x.py", code="1")
    options = script.Options(**PLAIN | {"report": tmp_path})
    begin = [("prepare", "n300"), ("fork", (), (program, options, "note"), None), ("run", 0, None, None)]
    assert script.run(program, options) == verdicts.Verdict(**NOTHING) and steps == [*begin, "close", "clean up"]
    steps.clear()
    end.append(isolation.Ended("was killed by SIGSEGV", "in ttnn.add on [[1]]", "  File x", timed_out=False))
    assert script.run(program, options).as_json() == NOTHING | {
        "outcome": "failed", "category": "crash", "op": "ttnn.add", "message": str(end[0]),
    }  # fmt: skip
    assert steps == [*begin, "clean up"] and capsys.readouterr().err == "  File x\n"
    for wrong in ({"mesh": "auto"}, {"numerics": "maybe"}, {"weights": "7"}, {"report": tmp_path / "no" / "where"}):
        steps.clear()
        with pytest.raises(UserError):
            script.run(program, script.Options(**PLAIN | wrong))
        assert steps == []
