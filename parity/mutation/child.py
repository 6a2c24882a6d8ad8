"""A function called in a process of its own that imports the packages from a copied tree.

It is forked from a process with one thread that has imported torch and the oracles, which takes longer than most cases;
the packages of this project it imports anew. The fork servers of refsim's ranks and of ttnn's programs are forked from
it in turn.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from parity.mutation.tree import PACKAGES
from refsim.base import scratch

Hear = Callable[[dict[str, Any]], None]
FORK_SERVERS = ("refsim.runtime.ranks.forkserver", "tt_impl.run.worker")
_PRELOADED = ("diffusers.models.", "diffusers.pipelines.", "diffusers.schedulers.", "transformers.models.")


class Ended(NamedTuple):
    """How a call ended.

    Attributes:
        why: nothing, or why the function did not come to its end, in one line.
        files: of the copied packages, those that the error came through.
        out_of_time: the process was killed because its time was over.
    """

    why: str = ""
    files: tuple[str, ...] = ()
    out_of_time: bool = False


def call(
    reference: str, arguments: dict[str, Any], root: Path, *, limit_s: float, hear: Hear, fresh: bool = False
) -> Ended:
    """Call ``module:function`` as ``function(tell, **arguments)`` with the packages under ``root``.

    Args:
        limit_s: seconds after which the process is killed, and with it all that it started.
        hear: called with every dictionary that the function gives to ``tell``, as it comes.
        fresh: start a new Python, before it is known what to :func:`preload`.
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
                    return Ended(message["ended"], tuple(message["files"]))
                hear(message)
            return Ended(f"no end in {limit_s:.0f} s", out_of_time=True)
        except EOFError:
            return Ended("the process died")
        finally:
            process.kill()
            process.join()
            ours.close()


def preload(names: list[str]) -> None:
    """Say which modules the processes will need; heeded until the first is started."""
    multiprocessing.set_forkserver_preload(names)


def imported() -> list[str]:
    """Return modules that pull in what this process has imported of torch and of the oracles' libraries."""
    return ["torch", *(name for name in sys.modules if name.startswith(_PRELOADED))][:800]


def _main(answers: Connection, reference: str, arguments: dict[str, Any], root: Path, folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # the user's Ctrl-C is for the parent, which ends this process
    ended = ""
    files = list[str]()
    try:
        _enter(root, folder)
        module, _, name = reference.partition(":")
        getattr(importlib.import_module(module), name)(answers.send, **arguments)
    except BaseException as e:  # whatever it is, the parent is told: it cannot see this process's output
        traceback.print_exc()
        ended = f"{type(e).__name__}: {e}".splitlines()[0]
        files = [*_files(e, root)]
    answers.send({"ended": ended, "files": files})


def _files(error: BaseException | None, root: Path) -> Iterator[str]:
    """Yield the files under ``root`` that an error, or one that it was raised from, came through."""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).is_relative_to(root):
                yield Path(frame.filename).relative_to(root).as_posix()
        error = error.__cause__ or error.__context__


def _enter(root: Path, folder: Path) -> None:
    """Leave the parent's output, its temporary folder and its copy of the packages; start the ranks' fork server."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.environ |= {"TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    for name in list(sys.modules):
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    from refsim.base import processes

    processes.die_with(os.getppid())
    processes.start = _starter(processes.start, processes.fork)


def _starter(start: Callable[..., Any], fork: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``refsim.base.processes.start`` but for fork servers, which are forked and need not import torch again.

    They are forked from a process with one thread only.
    """

    def started(module: str, *arguments: str, env: Mapping[str, str], **more: Any) -> Any:
        if module not in FORK_SERVERS or threading.active_count() > 1:
            return start(module, *arguments, env=env, **more)
        return fork(module, *arguments, env=env, **more)

    return started
