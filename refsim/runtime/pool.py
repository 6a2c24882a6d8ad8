"""The launcher's side of the ranks: start them, give them jobs, notice at once when one of them fails."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refsim.errors import RankFailure, UserError
from refsim.runtime import wire
from refsim.runtime.status import StatusBoard

READY_TIMEOUT_S = 120.0
_GRACE_S = 0.5  # after the first failure: how long to listen for the one that caused it


class Zygote:
    """Handle on the process that forks ranks; one per launching process."""

    _current: Zygote | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="refsim-", ignore_cleanup_errors=True)
        self.run_dir = Path(self._folder.name)
        self._control, theirs = socket.socketpair()
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        env.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "refsim.runtime.zygote", str(theirs.fileno()), str(self.run_dir)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )
        theirs.close()
        self._pools = 0

    @classmethod
    def get(cls) -> Zygote:
        """The zygote of this process, started (warming up in the background) on first use."""
        if cls._current is None or cls._current.pid != os.getpid():
            cls._current = Zygote()
            atexit.register(cls._current.close)
        return cls._current

    def start(self, message: dict[str, Any], fds: list[int]) -> int:
        self._pools += 1
        first, *rest = wire.fd_batches(fds)
        with self._alive():
            wire.send(self._control, {"command": "start", "pool": self._pools, **message}, fds=first)
            for batch in rest:
                wire.send(self._control, {"command": "fds"}, fds=batch)
            wire.receive(self._control)
        return self._pools

    def kill(self, pool: int) -> list[int]:
        """Kill the ranks of a pool; the wait status of each."""
        with self._alive():
            wire.send(self._control, {"command": "kill", "pool": pool})
            return wire.receive(self._control)[0]["statuses"]

    @contextlib.contextmanager
    def _alive(self):
        try:
            yield
        except (EOFError, ConnectionError) as e:
            Zygote._current = None
            raise RankFailure("the process that forks the ranks died; start the run again", rank=-1) from e

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        for pool in list(_POOLS.values()):
            pool.close()
        _POOLS.clear()
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
        if Zygote._current is self:
            Zygote._current = None


@dataclass
class Answer:
    """What came back from a job: rank 0's JSON and safetensors bytes, and the wall seconds it took."""

    header: dict[str, Any]
    payload: bytes
    wall_s: float


class Pool:
    """``world_size`` ranks, forked and joined to one process group, reused over jobs until one of them fails."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.zygote = Zygote.get()
        self._board_fd = _shared_memory(StatusBoard.size(world_size))
        self.board = StatusBoard(self._board_fd, world_size)
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._socks = [ours for ours, _ in pairs]
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        fd, store = tempfile.mkstemp(prefix="store-", dir=self.zygote.run_dir)
        os.close(fd)
        started = time.monotonic()
        self._id = self.zygote.start(
            {"world_size": world_size, "store": store, "threads": max(1, cpus // world_size)},
            [self._board_fd] + [theirs.fileno() for _, theirs in pairs],
        )
        for _, theirs in pairs:
            theirs.close()
        self.alive = True
        self._collect(READY_TIMEOUT_S)
        self.ready_s = time.monotonic() - started
        """Seconds from asking a warm zygote for the ranks to all of them joined."""
        with contextlib.suppress(OSError):
            os.unlink(store)

    def run(self, job: dict[str, Any]) -> Answer:
        """Run one job on all ranks.

        Raises:
            UserError: a rank found a mistake of the user.
            RankFailure: a rank raised, died or made no progress for the job's ``timeout_s``; the pool is gone.
        """
        if not self.alive:
            raise RankFailure("this pool of ranks was ended by an earlier failure", rank=-1)
        started = time.monotonic()
        message = {**job, "sys_path": sys.path}
        try:
            for rank, sock in enumerate(self._socks):
                self.board.set(rank, "taking the job")
                wire.send(sock, message)
        except OSError as e:
            self._fail([], {rank}, None)
            raise AssertionError("unreachable") from e
        header, payload = self._collect(job["timeout_s"])
        return Answer(header["answer"], payload, time.monotonic() - started)

    def close(self) -> None:
        """End the ranks: hang up, then make sure that they are gone."""
        if not self.alive:
            return
        self.alive = False
        for sock in self._socks:
            sock.close()
        with contextlib.suppress(RankFailure):
            self.zygote.kill(self._id)
        os.close(self._board_fd)

    def _collect(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Wait for every rank's reply; returns rank 0's."""
        replies: dict[int, tuple[dict[str, Any], bytes]] = {}
        failures: list[tuple[int, dict[str, Any]]] = []
        died: set[int] = set()
        stop_at = None
        try:
            with selectors.DefaultSelector() as selector:
                for rank, sock in enumerate(self._socks):
                    selector.register(sock, selectors.EVENT_READ, rank)
                while len(replies) + len(failures) + len(died) < self.world_size:
                    for key, _ in selector.select(timeout=0.1):
                        rank = key.data
                        try:
                            header, payload, _ = wire.receive(key.fileobj)
                        except (EOFError, ConnectionError):
                            died.add(rank)
                        else:
                            if header["ok"]:
                                replies[rank] = header, payload
                            else:
                                failures.append((rank, header))
                        selector.unregister(key.fileobj)
                    now = time.monotonic()
                    if (failures or died) and stop_at is None:
                        stop_at = now + _GRACE_S
                    if stop_at is not None and now > stop_at:
                        break
                    silent = set(range(self.world_size)) - set(replies) - died
                    silent -= {rank for rank, _ in failures}
                    hung = self._hung(silent, now, timeout_s)
                    if hung is not None:
                        self._fail(failures, died, hung)
        except BaseException:
            self.close()
            raise
        if failures or died:
            self._fail(failures, died, None)
        return replies[0]

    def _hung(self, silent: set[int], now: float, timeout_s: float) -> int | None:
        """The silent rank that has been still longest, if nobody has shown life within the bound."""
        if not silent:
            return None
        last = {rank: self.board.get(rank)[0] for rank in silent}
        if now - max(last.values()) < timeout_s + 2 * _GRACE_S:
            return None
        return min(last, key=lambda rank: last[rank])

    def _fail(self, failures: list[tuple[int, dict[str, Any]]], died: set[int], hung: int | None) -> None:
        """End the pool and raise what went wrong first: a mistake, a death, an exception, a hang."""
        doing = {rank: self.board.get(rank)[1] for rank in range(self.world_size)}
        self.alive = False
        for sock in self._socks:
            sock.close()
        statuses = self.zygote.kill(self._id)
        os.close(self._board_fd)
        for _, failure in failures:
            if failure["kind"] == "user":
                raise UserError(failure["message"])
        by_rank = dict(failures)
        if died:
            rank = min(died)
            how = _describe(statuses[rank])
            raise RankFailure(f"rank {rank} {how} while it was {_doing(doing[rank])}.", rank=rank)
        for rank, failure in failures:
            if failure["kind"] == "error":
                said = f"rank {rank} failed while it was {_doing(doing[rank])}: {failure['message']}"
                raise RankFailure(said, rank=rank, traceback=failure["traceback"])
        if hung is None:
            rank, seen = failures[0][0], set()
            while rank in by_rank and rank not in seen:
                seen.add(rank)
                rank = by_rank[rank]["peer"]
            if rank in by_rank:
                failure = by_rank[rank]
                raise RankFailure(
                    f"rank {rank} failed: {failure['message']}.", rank=rank, traceback=failure["traceback"]
                )
            hung = rank
        raise RankFailure(f"rank {hung} made no progress while it was {_doing(doing[hung])}.", rank=hung)


def _doing(status: str) -> str:
    return status if status.split(" ")[0].endswith("ing") else f"at '{status}'"


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def _shared_memory(size: int) -> int:
    """File descriptor of zeroed memory without a name, so that nothing is left behind whoever dies."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("refsim-board")
    else:
        fd, path = tempfile.mkstemp(prefix="refsim-board-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


_POOLS: dict[int, Pool] = {}


def pool(world_size: int) -> Pool:
    """The pool of that size, kept for the next job; a pool that failed is replaced."""
    current = _POOLS.get(world_size)
    if current is None or not current.alive or current.zygote is not Zygote._current:
        current = _POOLS[world_size] = Pool(world_size)
    return current
