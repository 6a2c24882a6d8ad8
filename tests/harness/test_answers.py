"""Small answers of the harness, by tables: categories of errors, evidence of passes, strict mode, schedules, counts."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refsim.base.errors import UserError
from tests.harness.conftest import HAS_TTNN, REASON
from tt_impl.harness.checks.strict import Strict
from tt_impl.harness.pytest import verdicts
from tt_impl.harness.watch import rounding

needs_ttnn = pytest.mark.skipif(not HAS_TTNN, reason=REASON)
FATAL = "TT_FATAL @ /tt/a.cpp:12: x\ninfo:\nThe width is\n  odd\nbacktrace:\n --- libtt.so"


class Failed(Exception):
    """As that of pytest.fail is called."""


@pytest.mark.parametrize(
    ("error", "category", "op", "message"),
    [
        (RuntimeError(FATAL), verdicts.REFUSED, "", "TT_FATAL: The width is odd"),
        (RuntimeError("TT_THROW: no"), verdicts.REFUSED, "", "TT_THROW: no"),
        (RuntimeError("TT_ASSERT: no"), verdicts.REFUSED, "", "TT_ASSERT: no"),
        (RuntimeError("TT_FATAL: Out of Memory: Not enough space to"), verdicts.MEMORY, "", "TT_FATAL: Out of Memory"),
        (
            RuntimeError("Statically allocated circular buffers clash with L1 buffers"),
            verdicts.MEMORY,
            "",
            "Statically",
        ),
        (RuntimeError("circular buffers grow beyond max L1 size"), verdicts.MEMORY, "", "circular"),
        (AssertionError(), verdicts.ASSERTION, "", "AssertionError"),
        (Failed("Timeout >10s"), verdicts.TIMEOUT, "", "Timeout >10s"),
        (Failed("not close"), verdicts.ASSERTION, "", "not close"),
        (ImportError("no"), verdicts.VERSION, "", "no"),
        (ModuleNotFoundError("no", name="timm"), verdicts.VERSION, "", "module timm is not installed: no"),
        (AttributeError("module 'ttnn' has no attribute 'x'"), verdicts.VERSION, "", "module 'ttnn' has"),
        (AttributeError("module 'numpy' has no attribute 'x'"), verdicts.ERROR, "", "module 'numpy' has"),
        (TypeError("f() got an unexpected keyword argument 'x'"), verdicts.VERSION, "", "f() got"),
        (TypeError("add(): incompatible function arguments."), verdicts.VERSION, "", "add():"),
        (FileNotFoundError(2, "no", "x.bin"), verdicts.ENVIRONMENT, "", "[Errno 2] no: 'x.bin'"),
        (UserError("ttnn.add uses a tensor that is gone."), verdicts.REFUSED, "ttnn.add", "ttnn.add uses"),
        (UserError("ttl.copy is no kernel."), verdicts.REFUSED, "ttl.copy", "ttl.copy is"),
        (UserError("a mesh of 2x4."), verdicts.REFUSED, "", "a mesh of 2x4."),
        (KeyError("x" * 500), verdicts.ERROR, "", "'" + "x" * 399),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@needs_ttnn
def test_what_an_error_is(error: Exception, category: str, op: str, message: str) -> None:
    found = verdicts.failed(error)
    assert found[:2] == (category, op) and found[2].startswith(message) and len(found[2]) <= 400


@needs_ttnn
def test_errors_that_were_raised_from_each_other_end() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__context__ = other, one
    assert list(verdicts.chain(one)) == [one, other]


@needs_ttnn
def test_a_run_leaves_no_files_of_the_mock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tt_impl.harness import plugin
    from tt_impl.harness.pytest import machine

    closed = []
    runner = SimpleNamespace(close=lambda: closed.append(True))
    folder = tmp_path / "mock"
    folder.mkdir()
    for made, of_run in ((None, runner), (folder, None), (folder, runner)):
        assert folder.is_dir()
        monkeypatch.setattr(machine._machine, "folder", made)
        manager = SimpleNamespace(get_plugin=lambda name: of_run)  # noqa: B023 - called at once
        plugin.pytest_unconfigure(SimpleNamespace(pluginmanager=manager))
    assert not folder.exists() and len(closed) == 2


@needs_ttnn
def test_a_forked_process_gets_the_threads_of_torch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tt_impl.harness.pytest import machine

    before = torch.get_num_threads()
    monkeypatch.setattr(machine, "_machine", machine._Machine("n150", threads=before + 1))
    try:
        assert machine.enter("n150").name == "n150" and torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@needs_ttnn
def test_errors_of_the_mock_count_even_where_others_follow() -> None:
    from tt_impl.mock.storage.errors import MissingRule, RefusedOption, ShadowError, UnseenValue

    for error, category in (
        (MissingRule("ttnn.x"), verdicts.RULE),
        (RefusedOption("ttnn.x", "y"), verdicts.OPTION),
        (ShadowError("a value."), verdicts.SHADOW),
    ):
        later = ValueError("later")
        later.__context__ = error
        assert verdicts.failed(error)[0] == verdicts.failed(later)[0] == category
        later.__context__, later.__cause__ = None, error
        assert verdicts.failed(later)[0] == category
    assert issubclass(UnseenValue, ShadowError)


@pytest.mark.parametrize(
    ("error", "may_be"),
    [(AssertionError("1 != 2"), True), (ZeroDivisionError("by zero"), True), (RuntimeError("TT_FATAL: no"), False)],
)
def test_errors_that_may_come_of_zeros(error: Exception, may_be: bool) -> None:
    assert verdicts.may_be_of_values(error) == may_be


def test_a_stack_of_ttnn_is_left_out() -> None:
    error = RuntimeError("no\nbacktrace:\n libtt.so", 3)
    verdicts.shorten(error)
    assert error.args == ("no", 3)
    for other in (ValueError("a\nbacktrace: b"), RuntimeError(), RuntimeError(3)):
        before = other.args
        verdicts.shorten(other)
        assert other.args == before


@pytest.mark.parametrize(
    ("ops", "fallbacks", "values", "category"),
    [
        (["ttnn.add"], [], True, verdicts.RULES),
        ([], [], True, verdicts.NO_DEVICE),
        (["ttnn.add"], ["ttnn.add"], True, verdicts.FALLBACK),
        (["ttnn.add", "ttl.copy"], [], True, verdicts.KERNELS),
        (["ttnn.add", "ttl.copy"], ["ttnn.add"], True, verdicts.FALLBACK),  # the weakest evidence counts
        (["ttnn.add"], [], False, verdicts.NO_VALUES),
        ([], [], False, verdicts.NO_DEVICE),
    ],
)
def test_what_a_pass_rests_on(ops: list[str], fallbacks: list[str], values: bool, category: str) -> None:
    assert verdicts.passed(Counter(ops), Counter(fallbacks), values) == category


def phase(when: str, outcome: str = "passed", **more: Any) -> dict[str, Any]:
    return {"when": when, "outcome": outcome, "category": f"{when} {outcome}", "seconds": 0.25} | more


@pytest.mark.parametrize(
    ("phases", "category", "message"),
    [
        ([phase("setup"), phase("call", message="m"), phase("teardown")], "call passed", "m"),
        ([phase("setup"), phase("call", "skipped", message="s"), phase("teardown")], "call skipped", "s"),
        ([phase("setup", "skipped", message="s"), phase("teardown")], "setup skipped", "s"),
        ([phase("setup"), phase("call", "skipped"), phase("teardown", "failed", message="f")], "teardown failed", "f"),
        ([phase("setup"), phase("teardown", message="t")], "teardown passed", "t"),
    ],
)
def test_phases_of_a_test_are_one_verdict(phases: list[dict[str, Any]], category: str, message: str) -> None:
    phases[0]["mesh"] = "t3k"
    phases[0]["ops"] = {"ttnn.add": 1}
    phases[-1] |= {"ops": {"ttnn.add": 2}, "report": "r.json", "unreported": "why", "where": "a.py:1"}
    phases[-1]["findings"] = ["found"]
    verdict = verdicts.combined("t", phases)
    assert (verdict.id, verdict.category, verdict.message, verdict.mesh) == ("t", category, message, "t3k")
    assert (verdict.seconds, verdict.ops, verdict.findings) == (0.25 * len(phases), {"ttnn.add": 2}, ["found"])
    assert (verdict.report, verdict.unreported, verdict.values) == ("r.json", "why", True)
    assert verdict.where == ("a.py:1" if category.startswith("teardown") else "")
    phases[0] |= {"values": False, "seconds": 0.0006}
    for later in phases[1:]:
        later["seconds"] = 0.0
    assert verdicts.combined("t", phases).seconds == 0.001
    assert not verdicts.combined("t", phases).values


@pytest.mark.parametrize(
    ("text", "allowed", "failing"),
    [
        ("all", (), ["freed"]),
        (" , ", (), ["freed"]),
        ("all", ("freed",), []),
        ("unused-result", (), ["unused-result"]),
        ("unused-result, freed", ("unused-result",), ["freed"]),
        ("stale-read", (), []),
    ],
)
def test_what_strict_mode_counts(text: str, allowed: tuple[str, ...], failing: list[str]) -> None:
    findings: Any = [
        SimpleNamespace(kind=kind, severity=s) for kind, s in (("freed", "error"), ("unused-result", "note"))
    ]
    assert [finding.kind for finding in Strict.of(text).failing(findings, allowed)] == failing


@pytest.mark.parametrize(
    ("option", "ini", "kinds"),
    [(None, "", "off"), ("all", "", None), (None, "freed", {"freed"}), ("freed", "stale-read", {"freed"})],
)
def test_strict_mode_by_option_before_the_file(option: str | None, ini: str, kinds: Any) -> None:
    config = SimpleNamespace(getoption=lambda name, default: option, getini=lambda name: ini)
    strict = Strict.of_pytest(config)
    assert (strict is None) if kinds == "off" else (strict is not None and strict.kinds == kinds)


@pytest.mark.parametrize(
    ("option", "seed"), [("", None), ("random", 0), ("random:7", 7), ("random:", "no"), ("random:x", "no"), ("7", "no")]
)
def test_seeds_of_random_weights(option: str, seed: int | str | None) -> None:
    from tt_impl.mock.hardware import seed_of

    if seed == "no":
        with pytest.raises(UserError, match=rf"^weights can be random or random:SEED, not '{option}'\.$"):
            seed_of(option)
    else:
        assert seed_of(option) == seed


def test_values_are_on_or_off() -> None:
    from tt_impl.mock.hardware import check_numerics, check_values

    assert check_values("on") and not check_values("off")
    check_numerics("off")
    for check in (check_values, check_numerics):
        with pytest.raises(UserError, match="maybe"):
            check("maybe")


def test_how_values_were_rounded() -> None:
    fast = {"level": "fast", "rounded": {"ttnn.add": 2, "ttnn.exp": 1}, "once": {"ttnn.sum": 4}}
    assert rounding.sentence([{}, {}]) == ""
    assert rounding.sentence([fast, {}, fast | {"once": {"ttnn.add": 1}}]) == (
        "numerics fast: 6 operations rounded as the kernels do, 2 of 3 kinds rounded once: ttnn.add, ttnn.sum"
    )
    assert rounding.sentence([fast | {"once": {}}]).endswith("0 of 2 kinds rounded once")


@needs_ttnn
@pytest.mark.parametrize("how", ["script", "module", "stdin"])
def test_what_lies_beside_a_program_comes_first(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tt_impl.harness.script import Program

    code = "import sys; print(__name__, sys.argv, sys.path[0])"
    (tmp_path / "told_once.py").write_text(code, encoding="utf-8")
    for name, value in (("path", ["elsewhere", *sys.path]), ("argv", []), ("modules", {**sys.modules})):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.chdir(tmp_path)
    name = {"script": str(tmp_path / "told_once.py"), "module": "told_once", "stdin": "-"}[how]
    Program(name, ("a", "b"), how == "module", code if how == "stdin" else None).execute()
    first = "-" if how == "stdin" else str(tmp_path / "told_once.py")
    assert capsys.readouterr().out == f"__main__ {[first, 'a', 'b']} {tmp_path}\n"


@needs_ttnn
def test_programs_run_when_the_host_has_sent_them() -> None:
    """Two meshes of two devices; the host waits where it reads, and for all where it synchronises."""
    from refsim.timing.cost.fitted import get_params
    from tests.harness.programs.events import call, use
    from tt_impl.harness.reports.schedule import schedule

    gap = get_params("wormhole_b0").gap_ns
    meshes: Any = {0: {"devices": [0, 1], "arch": "wormhole_b0"}, 1: {"devices": [2, 3], "arch": "wormhole_b0"}}

    def laid_out(*steps: Any) -> tuple[list[float], float, dict[int, float]]:
        events: list[Any] = []
        programs: list[Any] = []
        for number, step in enumerate(steps):
            event = call("exp") if isinstance(step, tuple) else step
            event.number = number
            events.append(event)
            if isinstance(step, tuple):
                mesh, ns = step
                launch = SimpleNamespace(event=number, mesh=mesh)
                programs.append(SimpleNamespace(launch=launch, ns=ns, low_ns=ns / 2, unpriced=not ns))
        result = schedule(events, programs, meshes)
        return result.starts, result.ns, dict(result.busy)

    def read(device: int, **options: Any) -> Any:
        return call("to_torch", [use(1, devices=(device,))], options=options)

    first, second = (0, 100.0), (1, 40.0)
    assert laid_out(first, second) == (
        [0.0, 0.0],
        100.0,
        dict.fromkeys((0, 1), 100 + gap) | dict.fromkeys((2, 3), 40 + gap),
    )
    assert laid_out(first, first)[:2] == ([0.0, 100 + gap], 200 + gap)
    assert laid_out(first, read(0), second)[:2] == ([0.0, 100 + gap], 140 + gap)
    assert laid_out(first, read(0, blocking=False), second)[0] == [0.0, 0.0]
    assert laid_out(second, first, read(2), second)[0] == [0.0, 0.0, 40 + gap]
    assert laid_out(first, call("synchronize_device"), second)[0] == [0.0, 100 + gap]
    assert laid_out(first, call("event_synchronize"), second)[0] == [0.0, 100 + gap]
    assert laid_out(first, call("exp", [use(1, devices=(0,))]), second)[0] == [0.0, 0.0]
    assert laid_out((0, 0.0), first)[0] == [0.0, 0.0]
