"""The warm, single-threaded process that ranks are forked from.

Forking is only safe from a process with one thread, and the launching process (a notebook, pytest, an oracle at
work) seldom is one. So the launcher starts this process once; it imports torch, then forks ranks on demand. It owns
their lives: when the launcher goes away, for whatever reason, every rank is killed and the run folder removed.

    launcher ==control socket==> zygote --fork--> rank 0 .. n-1
        `======================= one socket per rank ========'
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterator

from refsim.runtime import wire

PRELOAD = (
    "refsim.runtime.worker",
    "refsim.pipelines.attention",
    "refsim.pipelines.transformer",
    "refsim.models.warm",
)
_PR_SET_PDEATHSIG = 1


def main(control_fd: int, run_dir: str) -> None:
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pools: dict[int, list[int]] = {}
    try:
        with _ending_with_the_launcher(control, run_dir):
            for module in PRELOAD:
                importlib.import_module(module)
        gc.freeze()
        while True:
            message, _, fds = wire.receive(control)
            if message["command"] == "start":
                while len(fds) < message["world_size"] + 1:
                    fds += wire.receive(control)[2]
                pools[message["pool"]] = _fork_ranks(message, fds, control)
                wire.send(control, {"threads": _threads(), "pids": pools[message["pool"]]})
            elif message["command"] == "kill":
                statuses = _kill(pools.pop(message["pool"], []))
                wire.send(control, {"statuses": statuses})
    except (EOFError, ConnectionError):
        pass
    finally:
        for pids in pools.values():
            _kill(pids)
        shutil.rmtree(run_dir, ignore_errors=True)


@contextlib.contextmanager
def _ending_with_the_launcher(control: socket.socket, run_dir: str) -> Iterator[None]:
    """End at once, not at the next message, when the launcher hangs up while this process is busy importing.

    The kernel sends SIGIO when something happens on the socket; a thread to watch it would make forking unsafe.
    """
    if not hasattr(fcntl, "F_SETOWN"):
        yield
        return
    hung_up = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(control, hung_up)

    def look(*_: object) -> None:
        if any(events & hung_up for _, events in poll.poll(0)):
            shutil.rmtree(run_dir, ignore_errors=True)
            os._exit(0)

    signal.signal(signal.SIGIO, look)
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    look()
    try:
        yield
    finally:
        fcntl.fcntl(control, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, signal.SIG_IGN)


def _threads() -> int:
    import threading

    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _fork_ranks(message: dict, fds: list[int], control: socket.socket) -> list[int]:
    board_fd, *rank_fds = fds
    zygote = os.getpid()
    pids = []
    for rank, fd in enumerate(rank_fds):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                control.close()
                for other in rank_fds:
                    if other != fd:
                        os.close(other)
                _die_with(zygote)
                _first_to_go()
                _rank_main(message, rank, fd, board_fd)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    for fd in fds:
        os.close(fd)
    return pids


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the closed socket ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _first_to_go() -> None:
    """Have the kernel, should memory run out, end a rank rather than the launcher or somebody else's process."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as f:
        f.write("1000")


def _rank_main(message: dict, rank: int, fd: int, board_fd: int) -> None:
    from refsim.runtime.status import StatusBoard
    from refsim.runtime.worker import serve

    board = StatusBoard(board_fd, message["world_size"])
    sock = socket.socket(fileno=fd)
    serve(sock, board, rank, message["world_size"], message["store"], message["threads"])


def _kill(pids: list[int]) -> list[int]:
    """Kill and reap; the wait statuses. A rank that had ended before keeps the status it ended with."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return [os.waitpid(pid, 0)[1] for pid in pids]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
