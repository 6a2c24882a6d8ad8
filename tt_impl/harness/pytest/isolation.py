"""Tests in processes of their own: when ttnn ends one, that is a failed test with the operation's name, and no more.

The process that collected the tests opens no device. It forks a child for a group of tests (a file's, on one mesh),
hands over one test after the other, and reports what comes back as if it had run the test itself:

    collected --fork--> child: mesh, values, setup, call, teardown
        |  "3, then 4"  -->  |
        |  <--  reports      |  (dies in test 4: it failed, and a new child goes on with test 5)
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from refsim.base import processes
from tt_impl.harness.watch.session import LastOperation

_FAREWELL_S = 20.0
"""How long a child may take to put away what its last test left open."""
_STACK_CHARS = 16000

_CALLERS = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}", "<frozen runpy>")
"""Frames of what calls a test or a script."""
_BETWEEN = tuple(f"{os.sep}tt_impl{os.sep}{name}" for name in ("trace", "mock", "harness"))
"""Frames between a program and ttnn."""

Run = Callable[[int, int | None], dict[str, Any]]
"""Runs the test of a number, knowing the number of the next one in its group; what it gives are JSON values."""


class Ended(Exception):
    """The child is gone, or was killed because it gave no answer in time.

    Attributes:
        how: ``was killed by SIGSEGV``, ``exited with code 3`` or ``gave no answer in 60 s``.
        place: where: ``in`` or ``after`` an operation and its shapes; empty before the first.
        stack: where Python was, as ``faulthandler`` writes it.
        timed_out: it was alive.
    """

    def __init__(self, how: str, place: str, stack: str, timed_out: bool) -> None:
        super().__init__(f"the process {how} {place or 'before any operation of ttnn'}.")
        self.how = how
        self.place = place
        self.stack = stack
        self.timed_out = timed_out

    @property
    def op(self) -> str:
        """The operation's name."""
        return self.place.partition(" ")[2].partition(" on ")[0]


@dataclass
class Child:
    """One process for the tests of ``group``; :meth:`run` hands over a test and waits for its reports."""

    group: tuple
    pid: int
    line: Any
    last: LastOperation
    stack: int

    @classmethod
    def fork(cls, group: tuple, prepare: Callable[[LastOperation], Run], finish: Callable[[], None]) -> Child:
        """Fork a child that calls ``prepare`` once, its result for every test, and ``finish`` when there is no more."""
        ours, theirs = socket.socketpair()
        last = LastOperation()
        stack = os.memfd_create("refsim-stack")
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # of threads that are not forked: what ttnn and torch need, they start again
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ours.close()
            processes.die_with(parent)
            processes.be_first_to_go()
            _serve(theirs, stack, lambda: prepare(last), finish)
        theirs.close()
        return cls(group, pid, ours, last, stack)

    @classmethod
    def ask(cls, question: Callable[[], Any]) -> Any:
        """Return what a forked process answers, in values of JSON."""
        child = cls.fork((), lambda _last: lambda *_test: {"value": question()}, lambda: None)
        answer = child.run(0, None, None)
        child.close()
        return answer["value"]

    def run(self, index: int, following: int | None, timeout_s: float | None) -> dict[str, Any]:
        """Return what ``Run`` says of one test; ``Ended`` if it will say nothing; None waits as long as it takes."""
        try:
            self.line.sendall(json.dumps([index, following]).encode() + b"\n")
            answer = self._read(timeout_s)
        except OSError:
            answer = b""
        if answer is None:
            self._end(signal.SIGKILL)
            raise Ended(f"gave no answer in {timeout_s:g} s", self.last.read(), self._stack(), timed_out=True)
        if not answer.endswith(b"\n"):
            code = self._end()
            raise Ended(processes.how_it_ended(code), self.last.read(), self._stack(), timed_out=False)
        return json.loads(answer)

    def close(self) -> None:
        """Let the child put away what is left open, and end."""
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)
            self._read(_FAREWELL_S)
        self._end(signal.SIGKILL)
        os.close(self.stack)

    def _read(self, timeout_s: float | None) -> bytes | None:
        """One line, or what came of it before the end; None when the time is over."""
        started = time.monotonic()
        received = b""
        while not received.endswith(b"\n"):
            self.line.settimeout(None if timeout_s is None else max(0.01, started + timeout_s - time.monotonic()))
            try:
                part = self.line.recv(1 << 20)
            except TimeoutError:
                return None
            if not part:
                return received
            received += part
        return received

    def _end(self, number: int | None = None) -> int:
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        self.line.close()
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def _stack(self) -> str:
        text = os.pread(self.stack, _STACK_CHARS, 0).decode("utf-8", "replace")
        os.close(self.stack)
        return _of_the_user(text)


def _of_the_user(stack: str) -> str:
    """Cut a stack of ``faulthandler``, innermost frame first, where the user's code was called."""
    if stack.startswith("Traceback"):  # an error of what runs tests
        return stack.rstrip()
    lines: list[str] = []
    for line in stack.splitlines():
        if any(caller in line for caller in _CALLERS):
            break
        if not any(between in line for between in _BETWEEN):
            lines.append(line)
    return "\n".join(lines).rstrip()


def _serve(line: socket.socket, stack: int, prepare: Callable[[], Run], finish: Callable[[], None]) -> NoReturn:
    """Run the tests that are asked for until the other side hangs up; never returns."""
    code = 1
    try:
        faulthandler.enable(stack)
        run = prepare()
        for request in line.makefile("r", encoding="utf-8"):
            index, following = json.loads(request)
            line.sendall(json.dumps(run(index, following), default=str).encode() + b"\n")
        finish()
        code = 0
    except BaseException:
        import traceback

        os.write(stack, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
