"""What stands around a test or a script: its process, the machine it finds, and how what it showed is put in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ttnn")

import ttnn

from refsim.base.errors import UserError
from tests.harness import words
from tests.tree import ROOT
from tt_impl.harness import script
from tt_impl.harness.pytest import isolation, machine, questions, verdicts
from tt_impl.harness.pytest.verdicts import Verdict


def test_the_user_s_part_of_a_stack() -> None:
    """From where it stands up to what runs tests, without what lies between it and ttnn."""
    root = "/x/tt_impl"
    frames = [
        f"{root}/trace/a.py",
        "/user/model.py",
        f"{root}/mock/b.py",
        f"{root}/harness/c.py",
        f"{root}/layers/d.py",
    ]
    lines = [f'  File "{name}", line 1 in f' for name in frames]
    for caller in ("/lib/_pytest/python.py", "/lib/pluggy/_callers.py", "<frozen runpy>"):
        stack = "\n".join(["Fatal Python error", *lines, f'  File "{caller}", line 2', '  File "/user/test.py"'])
        assert isolation._of_the_user(stack) == "\n".join(["Fatal Python error", lines[1], lines[4]])
    assert isolation._of_the_user("Traceback (most recent call last):\n /_pytest/ \n") == (
        "Traceback (most recent call last):\n /_pytest/"
    )


def test_a_child_that_somebody_else_has_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, which is what was wanted; whether it could still be killed does not matter."""
    closed: list[bool] = []
    killed: list[tuple[int, int]] = []

    def gone(error: type[Exception]) -> Any:
        def call(*what: int) -> None:
            killed.append(what)
            raise error

        return call

    monkeypatch.setattr(isolation.os, "kill", gone(ProcessLookupError))
    monkeypatch.setattr(isolation.os, "waitpid", gone(ChildProcessError))
    child: Any = isolation.Child((), 123, SimpleNamespace(close=lambda: closed.append(True)), SimpleNamespace(), 0)
    assert child._end(signal.SIGKILL) == 0 and killed == [(123, signal.SIGKILL), (123, 0)] and closed == [True]
    assert child._end() == 0 and killed[2:] == [(123, 0)]


@pytest.mark.parametrize(
    ("parts", "timeout_s", "answer", "limits"),
    [
        ([b"a", b"b\n"], 5.0, b"ab\n", [5.0, 3.5]),
        ([b"a", b"b", b"c", b"d", TimeoutError()], 5.0, None, [5.0, 3.5, 2.0, 0.5, 0.01]),
        ([b"a", b""], None, b"a", [None, None]),
    ],
)
def test_how_long_an_answer_is_waited_for(
    parts: list[Any], timeout_s: Any, answer: Any, limits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts of it together; each comes a second and a half after the one before."""
    clock = [100.0]
    asked: list[Any] = []

    def receive(size: int) -> bytes:
        clock[0] += 1.5
        part = parts[len(asked) - 1]
        if isinstance(part, Exception):
            raise part
        return part

    monkeypatch.setattr(isolation.time, "monotonic", lambda: clock[0])
    line = SimpleNamespace(settimeout=asked.append, recv=receive)
    child: Any = isolation.Child((), 123, line, SimpleNamespace(), 0)
    assert child._read(timeout_s) == answer and asked == limits


def test_questions_are_asked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, until they may be asked here; an answer that is one of an enum's is one again."""
    asked: list[str] = []
    machine_of, cluster = ModuleType("machine"), ModuleType("cluster")  # which can be keys
    kinds = ttnn.cluster.ClusterType
    vars(cluster).update(get_cluster_type=lambda: kinds.T3K, ClusterType=kinds)
    vars(machine_of).update(
        get_arch_name=lambda: asked.append("arch") or "wormhole_b0",
        get_num_devices=lambda: asked.append("devices") or 8,
        cluster=cluster,
    )
    names = ((machine_of, "get_arch_name"), (machine_of, "get_num_devices"), (machine_of, "not_there"))
    before = vars(machine_of).copy()
    monkeypatch.setattr(questions, "ttnn", machine_of)
    monkeypatch.setattr(questions, "QUESTIONS", (*names, (cluster, "get_cluster_type")))
    monkeypatch.setattr(questions, "_originals", {})
    elsewhere: list[Any] = []
    monkeypatch.setattr(questions.Child, "ask", lambda question: elsewhere.append(question()) or elsewhere[-1])
    questions.ask_elsewhere()
    for _ in range(2):
        assert (machine_of.get_arch_name(), machine_of.get_num_devices()) == ("wormhole_b0", 8)
        assert cluster.get_cluster_type() is kinds.T3K
    assert asked == ["arch", "devices"] and elsewhere == [{"value": "wormhole_b0"}, {"value": 8}, {"enum": "T3K"}]
    questions.ask_here()
    assert vars(machine_of) == before and questions._originals == {}


def test_a_machine_is_prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a named mesh; where each test has its own, that of questions while tests are collected, asked elsewhere."""
    import torch

    done: list[Any] = []
    threads: list[int] = []
    monkeypatch.delenv("ARCH_NAME", raising=False)
    monkeypatch.setattr(machine, "ttnn_package", lambda: done.append("package"))
    monkeypatch.setattr(machine.environment, "make_folder", lambda: tmp_path)
    monkeypatch.setattr(machine.environment, "share_runtime_root", lambda folder: done.append(("root", folder)))
    for name in ("keep_temporary_files", "point_at", "prepare"):
        monkeypatch.setattr(machine.hardware, name, lambda *what, name=name: done.append((name, *what)))
    for name in ("_complete", "_hide"):
        monkeypatch.setattr(machine, name, lambda name=name: done.append(name))
    monkeypatch.setattr(questions, "ask_elsewhere", lambda: done.append("elsewhere"))
    monkeypatch.setattr(machine.atexit, "register", done.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    ends = ["_complete", "_hide"]
    for mesh, how, of in (("n300", "prepare", "n300"), ("auto", "point_at", "t3k")):
        done.clear()
        monkeypatch.setattr(machine, "_machine", machine._Machine())
        assert not machine.is_prepared() and not machine._machine.opened
        machine.prepare(mesh)
        begin = ["package", machine.say_no_more, ("root", tmp_path), ("keep_temporary_files", tmp_path)]
        assert done == [*begin, (how, machine.get_mesh(of), tmp_path), *ends, *["elsewhere"] * (mesh == "auto")]
        assert machine._machine == machine._Machine(mesh, tmp_path, 5) and machine.is_prepared()
    assert threads == [1, 1] and machine.os.environ["ARCH_NAME"] == "wormhole_b0"
    with pytest.raises(UserError, match="mesh 't4k' does not exist"):
        machine.prepare("t4k")


@pytest.mark.parametrize("opened", [False, True])
def test_a_mesh_is_entered(opened: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    done: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", done.append)
    monkeypatch.setattr(questions, "ask_here", lambda: done.append("here"))
    monkeypatch.setattr(machine.hardware, "prepare", lambda *what: done.append(what))
    monkeypatch.setattr(machine, "_machine", machine._Machine("auto", tmp_path, 5, opened))
    spec = machine.get_mesh("n300")
    if opened:
        with pytest.raises(UserError, match="a module opened a device while tests were collected"):
            machine.enter("n300")
    else:
        assert machine.enter("n300") == spec
    assert done == [5, "here", (spec, tmp_path)]
    monkeypatch.setattr(isolation.Child, "ask", lambda question: question is machine._sees_another_cluster)
    machine.look_for_devices()
    assert machine._machine.opened


@pytest.mark.parametrize(("devices", "another"), [(1, False), (8, True)])
def test_a_cluster_that_was_opened_stays(
    devices: int, another: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ttnn is pointed at one device, and asked how many there are."""
    done: list[Any] = []
    monkeypatch.setattr(machine.environment, "make_folder", lambda: tmp_path)
    monkeypatch.setattr(machine.hardware, "point_at", lambda *what: done.append(what))
    monkeypatch.setattr(questions, "ask_here", lambda: done.append("here"))
    monkeypatch.setattr(ttnn, "get_num_devices", lambda: done.append("asked") or devices)
    assert machine._sees_another_cluster() == another
    assert done == ["here", (machine.get_mesh("n150"), tmp_path), "asked"]


def told(when: str = "call", outcome: str = "passed", longrepr: Any = None, **more: Any) -> Any:
    return SimpleNamespace(when=when, outcome=outcome, longrepr=longrepr, **more)


@pytest.mark.parametrize(
    ("report", "error", "caught", "wanted"),
    [
        (told(), None, [], {"outcome": "passed", "category": "own"}),
        (told(outcome="failed"), None, ["unknown.\nmore"], {"category": "caught", "message": "unknown. more"}),
        (told(outcome="failed", longrepr="[XPASS]"), None, [], {"category": "assertion", "message": "[XPASS]"}),
        (told(outcome="skipped", longrepr=("a.py", 1, "no")), None, [], {"category": "skipped", "message": "no"}),
        (told(outcome="skipped", longrepr="text"), None, [], {"category": "skipped", "message": ""}),
        (
            told(outcome="skipped", longrepr="text", wasxfail="known"), None, [],
            {"category": "expected", "message": "known"},
        ),
        (
            told("setup", "failed"), ValueError("no"), [],
            {"category": "error", "op": "", "missing": "", "message": "no", "memory": {}, "where": "/u/a.py:4"},
        ),
    ],
)  # fmt: skip
def test_what_a_phase_showed(report: Any, error: Any, caught: list[str], wanted: dict[str, Any]) -> None:
    shadow = SimpleNamespace(emulated={"ttnn.rand": 1}, computes=True)
    session = SimpleNamespace(ops=Counter({"ttnn.add": 2}), fallbacks=Counter(), numerics={}, shadow=shadow)
    session.exhaustion = SimpleNamespace(ended=None)
    frames = [
        ("/u/b.py", 7),
        ("/u/a.py", 3),
        ("/lib/site-packages/x.py", 9),
        (f"{ttnn.__path__[0]}/y.py", 9),
        ("<string>", 9),
    ]
    traceback = [SimpleNamespace(path=path, lineno=line) for path, line in frames]
    excinfo = None if error is None else SimpleNamespace(value=error, traceback=traceback)
    facts = verdicts.phase(report, SimpleNamespace(start=1.0, stop=3.50016, excinfo=excinfo), session, caught)
    rest = {"ops": {"ttnn.add": 2}, "fallbacks": {}, "emulated": {"ttnn.rand": 1}, "numerics": {}, "values": True}
    assert facts == {"when": report.when, "outcome": report.outcome, "seconds": 2.5002} | rest | wanted
    if excinfo is not None:
        excinfo.traceback = traceback[2:]
        assert verdicts._where(excinfo) == ""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a\n  b", "a b"), ("x" * 401, "x" * 400), ("a\nbacktrace:\n b", "a"), ("info: more", "info: more"),
        ("TT_FATAL @ x: y\ninfo:\n no\nbacktrace:\n z", "TT_FATAL: no"), ("TT_THROW @ x\ninfo:\nno", "TT_FATAL: no"),
    ],
)  # fmt: skip
def test_first_words(text: str, first: str) -> None:
    assert verdicts.first_words(text) == first


def test_verdicts_of_scripts_word_for_word() -> None:
    memory = {
        "sentence": "this run ended out of memory.", "memory": "DRAM", "memories": {}, "advice": ["free it."],
        "traces": [], "kernel_binaries": {"programs": 0},
    }  # fmt: skip
    rounded = {"level": "fast", "rounded": {"ttnn.add": 2}, "once": {}}
    several = {"ttnn.b": 1, "ttnn.a": 3}
    found = [
        Verdict("x.py", "passed", "own", mesh="t3k", ops={"ttnn.add": 2, "ttnn.exp": 1}),
        Verdict("x.py", "passed", "fallback", mesh="t3k", ops=several, fallbacks=several, emulated=several),
        Verdict(
            "x.py", "failed", "memory", mesh="n150", message="TT_FATAL: no.", memory=memory, findings=["one", "two"]
        ),
        Verdict("x.py", "skipped", "unjudged", mesh="n150", message="1 != 2", values=False),
        Verdict("x.py", "passed", "own", mesh="n150", ops=several, numerics=rounded),
    ]
    words.check("scripts.txt", "\n\n".join(map(script.text, found)) + "\n")


@pytest.mark.parametrize(
    ("code", "category"), [(None, "own"), (0, "own"), (False, "own"), (1, "error"), ("no", "error")]
)
def test_a_script_that_ends_itself(code: Any, category: str) -> None:
    verdict = Verdict("x.py", "passed", "own")
    script._ended_itself(verdict, code)
    assert verdict.category == category and verdict.outcome == ("passed" if category == "own" else "failed")
    assert verdict.message == ("" if category == "own" else f"the program ended itself with {code!r}.")


def test_tracebacks_of_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """Without frames of the mock and of what runs them, of an error and of those behind it."""

    def raising(name: str, error: Exception, cause: Exception | None = None) -> Exception:
        code = compile("\n" * 6 + "def f(error, cause):\n    raise error from cause\n", name, "exec")
        space: dict[str, Any] = {}
        exec(code, space)  # noqa: S102 - a frame of that file
        try:
            space["f"](error, cause)
        except Exception as raised:
            return raised
        raise AssertionError

    mock = f"{script.tt_impl.__path__[0]}/run/x.py"
    cause = raising("/user/b.py", raising("<frozen runpy>", raising(mock, KeyError("behind"))))
    script._show(raising("/user/a.py", ValueError("before"), cause))
    shown = capsys.readouterr().err
    assert [line for line in shown.splitlines() if "File" in line and __file__ not in line] == [
        '  File "/user/b.py", line 8, in f', '  File "/user/a.py", line 8, in f',
    ]  # fmt: skip
    assert shown.endswith("ValueError: before\n") and "KeyError: 'behind'" in shown


CHILDREN = """
import ctypes, os, sys, time
from tt_impl.harness.pytest.isolation import Child, Ended

before = len(os.listdir("/proc/self/fd"))
sys.stdout.write("once, ")
sys.stderr.write("once there, ")

def prepare(last):
    def run(index, following):
        last.note(f"in ttnn.add on [[{index}]]")
        if index == 1:
            os._exit(3)
        if index == 2:
            time.sleep(60)
        if index == 3:
            raise ValueError("of the child")
        if index == 4:
            ctypes.string_at(0)
        return {"index": index, "following": following, "long": "x" * 3_000_000, "other": {1}}
    return run

def finish():
    sys.stdout.write("put away, ")

child = Child.fork(("group",), prepare, finish)
for index in (0, 7):
    answer = child.run(index, 5, None)
    print(answer["index"], answer["following"], len(answer["long"]), answer["other"], child.group, end=", ")
child.close()
for index in (1, 2, 3, 4):
    child = Child.fork((), prepare, finish)
    try:
        child.run(index, None, 0.5 if index == 2 else None)
    except Ended as end:
        stack = end.stack.splitlines()[-1:] if index == 3 else "in run" in end.stack
        print(end, end.timed_out, end.op, stack, end=", ")
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        print("gone", end=", ")
child = Child.fork((), prepare, finish)
child.line.shutdown(1)
child._read(20.0)
print(child._end(), end=", ")
os.close(child.stack)
print(Child.ask(lambda: [os.getppid() == here, sys.argv]) if (here := os.getpid()) else "", end=", ")
print(len(os.listdir("/proc/self/fd")) - before)
child = Child.fork((), prepare, finish)
child.line.sendall(b"[2, null]\\n")
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_children(tmp_path: Path) -> None:
    """What each says, how each ends, and that none tells again what was told before it was forked."""
    (tmp_path / "script.py").write_text(CHILDREN, encoding="utf-8")
    command = [sys.executable, "script.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.count("once there") == 1 and done.returncode == -signal.SIGKILL
    told, _, pid = done.stdout.strip().rpartition("\n")
    assert told == (
        "once, put away, 0 5 3000000 {1} ('group',), 7 5 3000000 {1} ('group',), "
        "the process exited with code 3 in ttnn.add on [[1]]. False ttnn.add False, gone, "
        "the process gave no answer in 0.5 s in ttnn.add on [[2]]. True ttnn.add False, gone, "
        "the process exited with code 1 in ttnn.add on [[3]]. False ttnn.add ['ValueError: of the child'], gone, "
        "the process was killed by SIGSEGV in ttnn.add on [[4]]. False ttnn.add True, gone, "
        "put away, 0, [True, ['script.py']], 0"
    )
    for _ in range(200):  # one whose parent is gone goes, too, whatever it does
        if not Path(f"/proc/{pid}").exists() or "Z (zombie)" in Path(f"/proc/{pid}/status").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("a child outlives its parent")


def test_modules_that_a_wheel_of_ttnn_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are there and do nothing; one that is there stays."""
    monkeypatch.setitem(sys.modules, "ttnn.database", None)
    monkeypatch.setitem(vars(ttnn), "database", None)
    machine._complete()
    made = sys.modules["ttnn.database"]
    assert made is vars(ttnn)["database"] and made.__name__ == "ttnn.database"
    assert (vars(made)["SQLITE_CONNECTION"], vars(made)["DEVICE_IDS_IN_DATABASE"]) == (None, set())
    machine._complete()
    assert sys.modules["ttnn.database"] is made


def test_what_tracebacks_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("tt_impl.mock.x", "tt_impl", "ttnn.decorators", "ttnn.decorators.x", "ttnn", "test_x")
    modules = {name: ModuleType(name) for name in names}
    monkeypatch.setattr(machine, "sys", SimpleNamespace(modules=modules))
    machine._hide()
    hidden = [name for name, module in modules.items() if getattr(module, "__tracebackhide__", False) is True]
    assert hidden == ["tt_impl.mock.x", "ttnn.decorators", "ttnn.decorators.x"]
