"""How far a long command is, on stderr: a bar on a terminal and a line per step elsewhere, or a spinner."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

PATIENCE_S = 2.0
"""A command that may be done sooner shows nothing until then."""


class StepProgress:
    """Told of steps done by the launcher; a spinner until the first is known.

    Args:
        text: what is running.
        then: what runs after it, from its first step again (``--check``); empty: nothing.
        quiet: say nothing (``--json``).
    """

    def __init__(self, text: str, *, then: str = "", quiet: bool) -> None:
        self._text = text
        self._then = then
        self._quiet = quiet
        self._bar: Any = None  # rich's, imported only where there is a terminal
        self._last = (0, 0)
        self._begun = 0.0

    def __enter__(self) -> StepProgress:
        self._last = (0, 0)
        self._begun = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            columns += (TimeElapsedColumn(), TextColumn("of about"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._text, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, done: int, total: int) -> None:
        """Show ``done`` of ``total`` steps; it is called often and says something when that has changed."""
        if self._quiet or (done, total) == self._last or not total:
            return
        if done < self._last[0] and self._then:  # steps only go up within a pass
            self._next_pass()
        self._last = (done, total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif done:
            sys.stderr.write(f"step {done} of {total}, {time.monotonic() - self._begun:.1f} s\n")

    def _next_pass(self) -> None:
        self._begun = time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._task, description=self._then)
        else:
            sys.stderr.write(f"{self._then}\n")
        self._then = ""


class Spinner:
    """A spinner on a terminal while something works, if it still does after ``after_s`` seconds; nothing elsewhere."""

    def __init__(self, text: str, *, quiet: bool = False, after_s: float = 0.0) -> None:
        self._status: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._timer = threading.Timer(after_s, self._status.start)
            self._timer.daemon = True

    def __enter__(self) -> None:
        if self._status:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._timer.cancel()
            self._timer.join()  # else it might start after the stop
            self._status.stop()
