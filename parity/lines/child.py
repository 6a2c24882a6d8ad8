"""A function called in a process of its own that imports the packages from a copied tree.

It is forked from a process with one thread that has imported torch and the oracles, which takes longer than most cases;
the packages of this project it imports anew. The fork server of refsim's ranks is forked from it in turn.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parity.lines.tree import PACKAGES
from refsim import scratch

Hear = Callable[[dict[str, Any]], None]
FORK_SERVER = "refsim.runtime.forkserver"
_PRELOADED = ("diffusers.models.", "diffusers.pipelines.", "diffusers.schedulers.", "transformers.models.")


def call(
    reference: str, arguments: dict[str, Any], root: Path, *, limit_s: float, hear: Hear, fresh: bool = False
) -> str:
    """Call ``module:function`` as ``function(tell, **arguments)`` with the packages under ``root``.

    Args:
        limit_s: seconds after which the process is killed, and with it all that it started.
        hear: called with every dictionary that the function gives to ``tell``, as it comes.
        fresh: start a new Python, before it is known what to :func:`preload`.

    Returns:
        Nothing, or why the function did not come to its end, in one line.
    """
    context: Any = multiprocessing.get_context("spawn" if fresh else "forkserver")
    ours, theirs = context.Pipe(duplex=False)
    with scratch.Folder("child") as folder:
        process = context.Process(target=_main, args=(theirs, reference, arguments, root, Path(folder)), daemon=True)
        process.start()
        theirs.close()
        until = time.monotonic() + limit_s
        try:
            while ours.poll(max(0.0, until - time.monotonic())):
                message = ours.recv()
                if "ended" in message:
                    return message["ended"]
                hear(message)
            return out_of_time(limit_s)
        except EOFError:
            return "the process died"
        finally:
            process.kill()
            process.join()
            ours.close()


def out_of_time(limit_s: float) -> str:
    """What :func:`call` says when the time is over."""
    return f"no end in {limit_s:.0f} s"


def preload(names: list[str]) -> None:
    """Say which modules the processes will need; heeded until the first is started."""
    multiprocessing.set_forkserver_preload(names)


def imported() -> list[str]:
    """Modules that pull in what this process has imported of torch and of the oracles' libraries."""
    return ["torch", *(name for name in sys.modules if name.startswith(_PRELOADED))][:800]


def _main(answers: Connection, reference: str, arguments: dict[str, Any], root: Path, folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # the user's Ctrl-C is for the parent, which ends this process
    ended = ""
    try:
        _enter(root, folder)
        module, _, name = reference.partition(":")
        getattr(importlib.import_module(module), name)(answers.send, **arguments)
    except BaseException as e:
        traceback.print_exc()
        ended = f"{type(e).__name__}: {e}".splitlines()[0]
    answers.send({"ended": ended})


def _enter(root: Path, folder: Path) -> None:
    """Leave the parent's output, its temporary folder and its copy of the packages; start the ranks' fork server."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.environ |= {"TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    tempfile.tempdir, sys.dont_write_bytecode = None, True
    for name in list(sys.modules):
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    from refsim import processes

    processes.die_with(os.getppid())
    processes.start = _starter(processes.start)


def _starter(start: Callable[..., Any]) -> Callable[..., Any]:
    """``refsim.processes.start``, but for the ranks' fork server, which is forked and need not import torch again."""

    def started(module: str, *arguments: str, env: Mapping[str, str], **more: Any) -> Any:
        if module != FORK_SERVER:
            return start(module, *arguments, env=env, **more)
        return _Forked(module, arguments, env, more["pass_fds"])

    return started


class _Forked:
    """A forked process, with what is used of :class:`subprocess.Popen`: it has the given files and environment."""

    def __init__(self, module: str, arguments: tuple[str, ...], env: Mapping[str, str], fds: tuple[int, ...]) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            os.environ |= env
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd > 2 and fd not in fds:
                    with contextlib.suppress(OSError):  # the one that lists
                        os.close(fd)
            importlib.import_module(module).main(*arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self.pid, 0 if until is None else os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("the fork server", timeout)
            time.sleep(0.01)
