"""The command as a process: signals, exit codes, one sentence per mistake on stderr.

Exit codes: 0 done, 1 a check failed or a rank did, 2 the user's mistake (one sentence on stderr), 129 hung up,
130 interrupted, 131 quit, 141 whoever read stdout went away, 143 terminated.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import traceback
from typing import NoReturn

import typer

from refsim.base.access import out_of_descriptors
from refsim.base.errors import RankFailure, RefsimError
from refsim.base.torchrun import is_main
from refsim.cli.signals import INTERRUPTED, NAMES, signals

_STDOUT_CLOSED = 141
_GARBAGE = 10_000  # new objects before Python looks for garbage; at its default of 700 imports take a quarter longer
_RANK_0_FIRST_S = 2.0  # how long torchrun's other ranks wait for rank 0 to say the same
# Typer's base of all command-line mistakes; some versions carry their own copy of click, so it is reached by way of
# the one subclass that every version exports.
_CommandLineError = typer.BadParameter.__mro__[2]
_NO_WORDS = "NoArgsIsHelpError"  # what click, from 8.2 on, raises once it has printed the help of a bare command


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the process."""
    gc.set_threshold(_GARBAGE)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with a closed one, whose number the next file opened would get
            setattr(sys, name, open(os.devnull, "w"))
    try:
        signals.working = True
        code = run_command(argv)
        signals.working = False
    except KeyboardInterrupt:  # between two lines of what has already dealt with everything else
        code = _stopped(signals.code or INTERRUPTED)
    if code in NAMES:
        _leave(code)
    signals.ignore()
    if "ttnn" not in sys.modules:  # which tells of everything that is still there at its end
        gc.freeze()  # or Python, as it ends, looks for garbage among all that was imported
    sys.exit(code)


def run_command(argv: list[str] | None) -> int:
    """Run one command line; its exit code."""
    try:
        try:
            code = _run(argv)
            sys.stdout.flush()
        except BaseException:
            if signals.code:
                return _stopped(signals.code)
            raise
        return _stopped(code) if code in NAMES else code
    except SystemExit as e:  # rich's answer to a closed stdout
        if not isinstance(e.__context__, BrokenPipeError):
            raise
        return _stdout_closed()
    except BrokenPipeError:
        return _stdout_closed()
    except OSError as e:
        if "REFSIM_DEBUG" in os.environ:
            traceback.print_exc()
        if out_of_descriptors(e):
            return _report("too many files are open at a time; allow more with `ulimit -n 1024`.", 2)
        what = f"'{e.filename}'" if e.filename else "the output"
        return _report(f"{what} could not be read or written ({e.strerror or e}).", 1)


def _run(argv: list[str] | None) -> int:
    try:
        os.getcwd()
    except OSError:
        return _report("the current folder does not exist any more; change to one that does.", 2)
    try:
        from refsim.cli.app import app, mount

        mount()
        code = app(args=argv, prog_name="refsim", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as e:
        return e.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _CommandLineError as e:
        if type(e).__name__ == _NO_WORDS:
            return 0
        return _report(f"{e.format_message().rstrip('.')}; see --help.", 2)
    except RankFailure as e:
        return rank_failed(e)
    except RefsimError as e:
        if "REFSIM_DEBUG" in os.environ:
            traceback.print_exc()
        return _report(e.with_flags, e.exit_code)


def rank_failed(error: RankFailure) -> int:
    """Say which rank failed first, unless another process says it, and what every rank did last; the exit code."""
    if error.reported:
        return error.exit_code
    if "REFSIM_DEBUG" in os.environ and error.traceback:
        sys.stderr.write(error.traceback)
    return _report(error.with_flags, error.exit_code, error.events_table(), at_once=True)


def _leave(code: int) -> NoReturn:
    """End with this very code: Python, once Ctrl-C met it inside an ``exec``, would end itself by SIGINT instead."""
    from refsim.runtime import launch

    launch.shut_down()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _stopped(code: int) -> int:
    """Give the exit code of Ctrl-C, which Typer turns into an exit code without a word, whichever signal it was."""
    code = signals.code or code
    signals.reported = True
    return _report(f"{NAMES[code]}.", code)


def _stdout_closed() -> int:
    """End as a program that SIGPIPE ends: no word; what is still buffered goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return _STDOUT_CLOSED


def _report(sentence: str, code: int, details: str = "", *, at_once: bool = False) -> int:
    """Write one line to stderr, whatever control characters a name or a library's message holds, then the details.

    torchrun ends every rank as soon as one has failed. A rank above 0 therefore leaves rank 0 the time to say what it
    has most likely met too, and then says it itself: rank 0 may be slow, or may not have met it at all. A failure that
    one rank reports for all is said ``at_once``.
    """
    name = "refsim"
    if not is_main():
        if code in NAMES:
            return code
        if not at_once:
            time.sleep(_RANK_0_FIRST_S)  # nothing to wait on: a wrong option ends ranks before they know each other
            name = f"refsim, rank {os.environ['RANK']}"
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{name}: {line}\n{details}")
        sys.stderr.flush()
    return code
