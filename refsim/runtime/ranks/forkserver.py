"""The warm, single-threaded process that ranks are forked from.

Forking is only safe from a process with one thread, and the launching process (a notebook, pytest, an oracle at
work) seldom is one. So the launcher starts this process once; it imports torch, then forks ranks on demand. It owns
their lives: when the launcher goes away, for whatever reason, every rank is killed and the run folder removed.

    launcher ==control socket==> fork server --fork--> rank 0 .. n-1
        `========================= one socket per rank ========'
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import socket
import traceback

from refsim.base import processes
from refsim.runtime.ranks import messages

PRELOAD = (
    "refsim.runtime.ranks.worker",
    "refsim.pipelines.attention",
    "refsim.pipelines.transformer",
    "refsim.models.warm",
)


def main(control_fd: str, run_dir: str, *further: str) -> None:
    """Serve the launcher at the other end of the socket ``control_fd``; ``run_dir`` goes when it hangs up.

    Args:
        further: modules to import besides ``PRELOAD``, once in place of once in every rank that comes to need them.
    """
    control = socket.socket(fileno=int(control_fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pools: dict[int, list[int]] = {}
    try:
        with processes.ending_with(control.fileno(), lambda: shutil.rmtree(run_dir, ignore_errors=True)):
            gc.disable()  # what is imported stays
            for module in PRELOAD:
                importlib.import_module(module)
            for module in further:
                with contextlib.suppress(ImportError):  # the rank that needs it will say so
                    importlib.import_module(module)
        gc.freeze()
        gc.enable()
        while True:
            message, fds = messages.receive(control)
            if message["command"] == "start":
                while len(fds) < message["world_size"] + 1:
                    fds += messages.receive(control)[1]
                pools[message["pool"]] = _fork_ranks(message, fds, control)
                messages.send(control, {"threads": processes.threads(), "pids": pools[message["pool"]]})
            elif message["command"] == "kill":
                messages.send(control, {"exit_codes": processes.kill(pools.pop(message["pool"], []))})
    except (EOFError, ConnectionError):
        pass
    finally:
        for pids in pools.values():
            processes.kill(pids)
        shutil.rmtree(run_dir, ignore_errors=True)
        gc.freeze()  # nothing here is worth looking through once more as Python ends


def _fork_ranks(message: dict, fds: list[int], control: socket.socket) -> list[int]:
    board_fd, *rank_fds = fds
    server = os.getpid()
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
                processes.die_with(server)
                processes.be_first_to_go()
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


def _rank_main(message: dict, rank: int, fd: int, board_fd: int) -> None:
    from refsim.runtime.ranks.worker import serve
    from refsim.runtime.watch.status import StatusBoard

    board = StatusBoard(board_fd, message["world_size"])
    sock = socket.socket(fileno=fd)
    serve(sock, board, rank, message["world_size"], message["threads"])
