"""What stderr shows of a long command: which pass is running, and nothing of what is done soon."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from refsim.base.errors import UserError
from refsim.cli import progress
from refsim.cli.process import run_command


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch) -> Terminal:
    """Put a terminal in place of stderr; from the test itself, because pytest puts its own there after fixtures."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_the_pass_that_checks_is_named(capsys):
    with progress.StepProgress("model on mesh", then="check against one process", quiet=False) as told:
        for done in (0, 1, 2, 0, 1, 1, 2):
            told(done, 2)
    lines = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["step 1 of 2", "step 2 of 2", "check against one process", "step 1 of 2", "step 2 of 2"]


def test_a_bar_takes_the_name_of_the_pass_that_checks(monkeypatch):
    shown = terminal(monkeypatch)
    with progress.StepProgress("model", then="check against one process", quiet=False) as told:
        told(1, 1)
        told(0, 1)
        told._bar.refresh()
    assert shown.getvalue().index("model") < shown.getvalue().index("check against one process")


def patience_is_over() -> None:
    """Wait until the spinner's timer has gone off."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)


def test_a_spinner_shows_after_a_while(monkeypatch):
    found = terminal(monkeypatch)
    with progress.Spinner("reading", after_s=0.01):
        patience_is_over()
    assert "reading" in found.getvalue()


def test_a_spinner_is_not_shown_before(monkeypatch):
    found = terminal(monkeypatch)
    with progress.Spinner("reading", after_s=3600):
        assert any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert found.getvalue() == ""


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    with progress.Spinner("reading", after_s=0.0):
        patience_is_over()
    assert capsys.readouterr().err == ""


def slow(*_, **__):
    patience_is_over()
    raise UserError("enough.")


@pytest.mark.parametrize(
    ("words", "slowed", "text"),
    [
        (["parity", "list"], "parity.cases.selection.select", "collecting the cases of suite smoke"),
        (["time", "sd35-medium", "--mesh", "n150"], "refsim.timing.read.reading.read_published", "reading sd35-medium"),
    ],
)
def test_commands_that_take_long_show_it(monkeypatch, words, slowed, text):
    found = terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(slowed, slow)
    assert run_command(words) == 2
    assert text in found.getvalue() and found.getvalue().endswith("enough.\n")
