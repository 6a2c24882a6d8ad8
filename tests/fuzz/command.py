"""The command line in this process, up to where ranks would start: what it says about an input, and to whom.

``refuse`` is the property of all tests here: exit code 2, one sentence on stderr, nothing on stdout, no file anywhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from refsim.base.errors import UserError
from refsim.cli import process
from refsim.runtime import launch

LONGEST_S = 10.0


class Accepted(BaseException):
    """The input is good: ranks would start now."""


@dataclass
class Said:
    """What a command did; ``code`` is None if it accepted its input."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float


def command(*words: str) -> Said:
    """Run ``refsim WORDS`` here; starting ranks counts as accepted."""
    return in_process(lambda: process.run_command(list(words)))


def in_process(call: Callable[[], object]) -> Said:
    """Call the command line, or a function of ``refsim.api``, where starting ranks counts as accepted."""
    out, err = io.StringIO(), io.StringIO()
    started = time.monotonic()

    def accept(*_: object, **__: object) -> None:
        raise Accepted

    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(launch, "warm_up", lambda: None),
        mock.patch.object(launch, "execute", accept),
        mock.patch("parity.run.suite.run_suite", accept),
        mock.patch("tt_impl.api.execute", accept),
    ):
        try:
            code = call()
        except Accepted:
            code = None
        except UserError as e:
            code = e.exit_code
            err.write(f"refsim: {e}\n")
    return Said(code, out.getvalue(), err.getvalue(), time.monotonic() - started)


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below ``folder`` with size and time of change."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(where, name))
            found[os.path.join(where, name)] = (status.st_size, status.st_mtime_ns)
    return found


def assert_refused_or_accepted(said: Said) -> None:
    """Accepted without a word, or refused in one sentence with exit code 2."""
    assert said.seconds < LONGEST_S
    if said.code in (0, None):  # 0: a command that only lists
        assert said.stderr == "" or said.code == 0
        return
    assert said.code == 2, said
    assert_one_sentence(said)


def assert_refused(said: Said) -> None:
    assert said.code == 2, said
    assert said.seconds < LONGEST_S
    assert_one_sentence(said)


def assert_one_sentence(said: Said) -> None:
    assert said.stdout == ""
    assert said.stderr.startswith("refsim: ") and said.stderr.endswith(".\n"), said.stderr
    assert said.stderr.count("\n") == 1, said.stderr
    assert "Traceback" not in said.stderr
    assert not re.search(r"\w+Error\b", _without_quotes(said.stderr)), said.stderr


def _without_quotes(text: str) -> str:
    return re.sub(r"'.*'", "", text)
