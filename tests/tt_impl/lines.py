"""Which lines of the mock and the harness a process executes, and a plugin of pytest that asks it of every test.

    process with LINES_TO=/somewhere/17.txt --each line once--> "tt_impl/mock/rules/norm.py:41" in 17.txt

A copy of this file that is called ``sitecustomize.py`` and lies on ``PYTHONPATH`` lets every Python record: those that
a test starts, too, and their forks. A process whose variable changes goes on in another file, with all lines anew.

As a plugin (``-p tests.tt_impl.lines``) it prints a line of JSON for every test, as :mod:`tests.tt_impl.judge` does.
What a fixture of a module or a session executes counts for each test that uses it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

LINES_TO = "REFSIM_MOCK_LINES_TO"
"""Variable: the file that lines are appended to; nothing is recorded without it."""
FOLDERS = ("/tt_impl/mock/", "/tt_impl/harness/")
_MONITORING: Any = getattr(sys, "monitoring", None)
"""Of Python 3.12; kept, since a test takes it from ``sys`` for a while."""
TOOL = 4
"""An id of ``sys.monitoring`` that no library here takes."""


class _Recorder:
    """Appends lines to the file that the variable names; a line that was told is not watched any more."""

    def __init__(self) -> None:
        self._name = ""
        self._file = -1

    def line(self, code: Any, number: int) -> Any:
        for folder in FOLDERS:
            before, inside, name = code.co_filename.partition(folder)
            if inside and not before.endswith("/tests"):
                self._tell(f"{folder.strip('/')}/{name}:{number}\n")
        return _MONITORING.DISABLE

    def _tell(self, text: str) -> None:
        name = os.environ.get(LINES_TO, "")
        if name != self._name:
            if self._file >= 0:
                os.close(self._file)
            self._file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if name else -1
            self._name = name
            restart()
        if self._file >= 0:
            os.write(self._file, text.encode())


def start() -> None:
    """Record from now on what the variable asks for; once in a process."""
    if _MONITORING.get_tool(TOOL) is None:
        _MONITORING.use_tool_id(TOOL, "lines of the mock")
        _MONITORING.register_callback(TOOL, _MONITORING.events.LINE, _Recorder().line)
        _MONITORING.set_events(TOOL, _MONITORING.events.LINE)


def restart() -> None:
    """Watch all lines anew."""
    _MONITORING.restart_events()


def switch(file: Path | str) -> str:
    """Record into ``file`` from now on; returns the name of the one before."""
    before = os.environ.get(LINES_TO, "")
    os.environ[LINES_TO] = str(file)
    restart()
    return before


def read(files: list[Path]) -> dict[str, list[int]]:
    """Return the recorded line numbers by source file."""
    lines: dict[str, set[int]] = {}
    for file in files:
        if file.is_file():
            for row in file.read_text(encoding="utf-8").splitlines():
                name, _, number = row.rpartition(":")
                lines.setdefault(name, set()).add(int(number))
    return {name: sorted(numbers) for name, numbers in lines.items()}


if os.environ.get(LINES_TO):
    start()


# The plugin -----------------------------------------------------------------------------------------------------------


class _Tests:
    """What is known of the test that runs, and the files of the fixtures that several tests share."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.fixtures: dict[str, Path] = {}
        self.error = ""
        self.skipped = False

    def new_file(self) -> Path:
        assert self.folder is not None
        return self.folder / f"{len(list(self.folder.iterdir()))}.txt"


TESTS = _Tests(Path(os.environ[LINES_TO]).parent if os.environ.get(LINES_TO) else None)


def pytest_configure() -> None:
    if TESTS.folder is not None:
        start()


def _wrapper(function: Any) -> Any:
    try:
        import pytest
    except ImportError:  # as sitecustomize, before there is a path to it
        return function
    return pytest.hookimpl(wrapper=True)(function)


@_wrapper
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    if TESTS.folder is None or fixturedef.scope == "function":
        return (yield)
    file = TESTS.fixtures.setdefault(f"{fixturedef.baseid} {fixturedef.argname}", TESTS.new_file())
    before = switch(file)
    try:
        return (yield)
    finally:
        switch(before)


@_wrapper
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    TESTS.error = ""
    TESTS.skipped = False
    files = []
    if TESTS.folder is not None:
        files.append(TESTS.new_file())
        switch(files[0])
    started = time.monotonic()
    result = yield
    seconds = time.monotonic() - started
    for name in item.fixturenames:
        files += [file for key, file in TESTS.fixtures.items() if key.split(" ")[1] == name]
    verdict = {"case": f"test-{item.nodeid}", "error": TESTS.error, "skipped": TESTS.skipped, "seconds": seconds}
    told = json.dumps(verdict | {"lines": read(files)})
    print(f"\njudge {told}", file=sys.__stdout__, flush=True)
    return result


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        TESTS.error = TESTS.error or report.longreprtext
    TESTS.skipped = TESTS.skipped or report.skipped
