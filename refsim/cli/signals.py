"""Ctrl-C and the other signals that ask a command to end, from its first instruction to its last.

    before the command runs    the process ends at once: nothing is there to be put away
    while it runs              the first signal is an exception, so that everything is put away in order
    ... but in an import       the process ends at once: libraries turn an exception there into another one, or abort
    from the second one on     the process ends at once

*At once* still kills the processes that were started, and removes what is temporary. Nothing but what every Python
has loaded anyway is imported here, so that the handlers are there before anything that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from refsim.base.torchrun import under_torchrun

INTERRUPTED = 130
CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131}
NAMES = {INTERRUPTED: "interrupted", 143: "terminated", 129: "hung up", 131: "quit"}
_IMPORT = "<frozen importlib._bootstrap>"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class Signals:
    """What this process does when it is asked to end.

    Attributes:
        code: the exit code of the first signal that came, 0 before. It is kept because libraries turn an exception in
            the wrong moment into another one.
        working: a command runs, which puts things away when it is interrupted.
        reported: the user knows.
    """

    def __init__(self) -> None:
        self.code = 0
        self.working = False
        self.reported = False

    def install(self) -> None:
        """Listen, but to what the parent wants ignored (nohup, background jobs); torchrun ends its ranks itself."""
        if under_torchrun():
            return
        for number in CODES:
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                signal.signal(number, self._stop)

    def ignore(self) -> None:
        """Ignore signals from here on: the command is done, and this process only puts things away."""
        for number in CODES:
            if signal.getsignal(number) == self._stop:
                signal.signal(number, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        first = not self.code
        self.code = self.code or CODES[signal.Signals(number)]
        if first and self.working and not _importing(frame):
            raise KeyboardInterrupt
        self._leave_at_once()

    def _leave_at_once(self) -> NoReturn:
        self.ignore()  # what follows takes seconds at most, and is not to be left half done
        line = b"" if self.reported else f"refsim: {NAMES[self.code]}.\n".encode()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(2, (_SHOW_CURSOR if sys.stderr.isatty() else b"") + line)
        for module, put_away in (("refsim.base.processes", "kill_started"), ("refsim.base.scratch", "remove_all")):
            # what this signal came upon may be half done, and the rest is to be put away all the same
            with contextlib.suppress(Exception):
                if module in sys.modules:
                    getattr(sys.modules[module], put_away)()
        os._exit(self.code)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None


signals = Signals()
