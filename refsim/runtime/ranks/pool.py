"""The launcher's side of the ranks: start them, give them jobs, notice at once when one of them fails."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from refsim.base import processes, scratch
from refsim.base.access import check_descriptors
from refsim.base.errors import RankFailure
from refsim.base.jobs import Job
from refsim.runtime import host_memory
from refsim.runtime.ranks import messages
from refsim.runtime.ranks.diagnosis import Findings, diagnose, divergence, is_decided
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.status import StatusBoard

READY_TIMEOUT_S = 120.0
_GRACE_S = 0.5  # after the first failure: how long to listen for the one that caused it
_LOOK_S = 0.1  # between two looks at who has died, hung or grown
_PATIENCE_S = 0.3  # how long a rank waits for a message before ranks' calls are compared


class ForkServer:
    """Handle on the process that forks ranks; one per launching process.

    Args:
        further: modules that it imports as it starts, besides those of every run.
        forked: fork it from this process, which has imported them and has one thread.
    """

    _current: ForkServer | None = None

    def __init__(self, *further: str, forked: bool = False) -> None:
        check_descriptors()
        self.pid = os.getpid()
        self._folder = scratch.Folder("ranks")
        self.run_dir = Path(self._folder.name)
        self._control, theirs = socket.socketpair()
        self._control.settimeout(READY_TIMEOUT_S)
        env = dict(processes.ONE_THREAD)
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            env["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        start: Callable[..., subprocess.Popen[bytes] | processes.Forked] = processes.fork if forked else processes.start
        self._process = start(
            "refsim.runtime.ranks.forkserver",
            str(theirs.fileno()),
            str(self.run_dir),
            *further,
            env=env,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._pools = 0

    @classmethod
    def get(cls, *further: str, forked: bool = False) -> ForkServer:
        """Return this process's fork server, started with these arguments (and warming up) on first use."""
        if cls._current is None or cls._current.pid != os.getpid():
            cls._current = ForkServer(*further, forked=forked)
            atexit.register(cls._current.close)
        return cls._current

    def start(self, message: dict[str, Any], fds: list[int]) -> tuple[int, list[int]]:
        """Fork the ranks of a new pool; its number and the ranks' process ids."""
        self._pools += 1
        first, *rest = messages.fd_batches(fds)
        with self._asked():
            messages.send(self._control, {"command": "start", "pool": self._pools, **message}, fds=first)
            for batch in rest:
                messages.send(self._control, {"command": "fds"}, fds=batch)
            answer = messages.receive(self._control)[0]
        return self._pools, answer["pids"]

    def kill(self, pool: int) -> list[int]:
        """Kill the ranks of a pool; the exit code of each, see :func:`refsim.base.processes.kill`."""
        with self._asked():
            messages.send(self._control, {"command": "kill", "pool": pool})
            return messages.receive(self._control)[0]["exit_codes"]

    @contextlib.contextmanager
    def _asked(self):
        """Ask a question and return the answer; if they do not come to an end, this server is not asked again."""
        try:
            yield
        except BaseException as e:
            self._end()
            if isinstance(e, (EOFError, OSError)):
                raise RankFailure(
                    "the process that forks the ranks died or hung, and the ranks with it; start the run again.",
                    rank=-1,
                ) from e
            raise

    def _end(self) -> None:
        """Hang up, whereupon it kills its ranks, and wait until it is gone; without ranks there is nothing to do."""
        self._control.close()
        processes.end(self._process, patience_s=10.0 if self._pools else 0.0)
        self._folder.cleanup()
        if ForkServer._current is self:
            ForkServer._current = None

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        for pool in list(_POOLS.values()):
            pool.close()
        _POOLS.clear()
        self._end()


Progress = Callable[[int, int], None]
"""Told the steps done and the steps in all; (0, 0) before the job has failures so."""


@dataclass
class Answer:
    """What came back from a job: rank 0's JSON and safetensors file, if any, and the wall seconds it took."""

    header: dict[str, Any]
    files: list[IO[bytes]]
    wall_s: float


_Reply = tuple[dict[str, Any], list[IO[bytes]]]


class Pool:
    """``world_size`` ranks, forked and joined to one process group, reused over jobs until one of them fails."""

    def __init__(self, world_size: int) -> None:
        check_descriptors(world_size)
        self.world_size = world_size
        self.server = ForkServer.get()
        self._board_fd = _shared_memory(StatusBoard.size(world_size))
        self.board = StatusBoard(self._board_fd, world_size)
        for rank in range(world_size):
            self.board.set(rank, Activity(Kind.FORKED))  # a sign of life to count from, until the rank gives its own
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._socks = [ours for ours, _ in pairs]
        started = time.monotonic()
        self._id, self._pids = self.server.start(
            {"world_size": world_size, "threads": _threads(world_size)},
            [self._board_fd] + [theirs.fileno() for _, theirs in pairs],
        )
        for _, theirs in pairs:
            theirs.close()
        self.alive = True
        self._limit: int | None = None
        self._in_gloo = False
        self._reached = self._introduce()
        self.ready_s = time.monotonic() - started
        """Seconds from asking a warm fork server for the ranks to all of them being ready for a job."""

    def _introduce(self) -> bool:
        """Tell every rank how it reaches each other one, and whether all of them do, see ``shared_transport.Door``."""
        numbers = [header["numbers"] for header, _ in self._collect(READY_TIMEOUT_S)]
        self._tell({"numbers": numbers}, READY_TIMEOUT_S)
        reached = all(header["reached"] for header, _ in self._collect(READY_TIMEOUT_S))
        self._tell({"reached": reached}, READY_TIMEOUT_S)
        return reached

    def run(self, job: Job, progress: Progress | None = None) -> Answer:
        """Run one job on all ranks; ``progress`` is called now and then with how far rank 0 is.

        Raises:
            UserError: a rank found a mistake of the user.
            RankFailure: a rank raised, died or made no progress for the job's ``timeout_s``; the pool is gone.
        """
        if not self.alive:
            raise RankFailure("this pool of ranks was ended by an earlier failure", rank=-1)
        self._limit = host_memory.rank_limit_bytes()
        started = time.monotonic()
        for rank in range(self.world_size):
            self.board.set(rank, Activity(Kind.TAKING, "the job"))
            self.board.advance(rank, 0, 0)
        message = {"job": job.to_json(), "sys_path": [place for place in sys.path if place]}
        with self._store(job.options.transport) as store:
            self._tell(message | {"store": store}, job.options.timeout_s)
            header, files = self._collect(job.options.timeout_s, progress)[0]
        return Answer(header["answer"], files, time.monotonic() - started)

    def close(self) -> None:
        """End the ranks, if they have not been ended."""
        if self.alive:
            with contextlib.suppress(RankFailure):
                self._end()

    def _end(self) -> list[int]:
        """Hang up, then make sure that the ranks are gone; return the exit code of each."""
        self.alive = False
        for sock in self._socks:
            sock.close()
        try:
            return self.server.kill(self._id)
        finally:
            os.close(self._board_fd)
            self.board.close()

    @contextlib.contextmanager
    def _store(self, transport: str) -> Iterator[str]:
        """Hold the file through which ranks find each other for gloo, empty if the job needs none or they have."""
        if self._in_gloo or transport == "shared" or (transport == "auto" and self._reached):
            yield ""
            return
        fd, store = tempfile.mkstemp(prefix="store-", dir=self.server.run_dir)
        os.close(fd)
        try:
            yield store
        finally:
            with contextlib.suppress(OSError):
                os.unlink(store)
        self._in_gloo = True

    def _tell(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send every rank a message."""
        try:
            for rank in range(self.world_size):
                self._socks[rank].settimeout(timeout_s)
                messages.send(self._socks[rank], message)
        except TimeoutError:
            self._fail(Findings(hung=rank))
        except OSError:
            self._fail(Findings(died={rank}))
        except BaseException:
            self.close()
            raise

    def _collect(self, timeout_s: float, progress: Progress | None = None) -> list[_Reply]:
        """Wait for every rank's reply; they are returned in rank order."""
        replies: dict[int, _Reply] = {}
        findings = Findings()
        unsure_since: float | None = None
        stop_at = None
        look_at = 0.0
        try:
            with selectors.DefaultSelector() as selector:
                for rank, sock in enumerate(self._socks):
                    sock.settimeout(timeout_s)
                    selector.register(sock, selectors.EVENT_READ, rank)
                while len(replies) + len(findings.failures) + len(findings.died) < self.world_size:
                    for key, _ in selector.select(timeout=_LOOK_S):
                        rank = key.data
                        try:
                            header, fds = messages.receive(key.fileobj)
                        except TimeoutError:
                            findings.hung = rank
                        except (EOFError, ConnectionError):
                            findings.died.add(rank)
                        else:
                            if header["ok"]:
                                replies[rank] = header, [open(fd, "rb") for fd in fds]
                            else:
                                findings.failures[rank] = header
                        selector.unregister(key.fileobj)
                    if progress is not None:
                        progress(*self.board.progress(0))
                    now = time.monotonic()
                    if now < look_at and not findings.failed:
                        continue
                    look_at = now + _LOOK_S
                    if (findings.failures or findings.died) and stop_at is None:
                        stop_at = now + _GRACE_S
                    if findings.hung is not None or (stop_at is not None and now > stop_at + timeout_s):
                        break
                    if stop_at is not None and now > stop_at:
                        findings.events = self.board.events(range(self.world_size))
                        if is_decided(findings):
                            break
                    silent = set(range(self.world_size)) - replies.keys() - findings.failures.keys() - findings.died
                    if not findings.died and (findings.failures or self._waits(silent, now)):
                        findings.diverged = divergence(self.board, range(self.world_size))
                        unsure_since = None if findings.diverged is None else unsure_since or now
                        if findings.diverged and (findings.diverged.certain or now > unsure_since + _GRACE_S):
                            break
                    findings.hung = self._hung(silent, now, timeout_s)
                    findings.too_big = self._too_big(silent)
                    if findings.hung is not None or findings.too_big is not None:
                        break
        except BaseException:
            self.close()
            raise
        if findings.failed:
            self._fail(findings)
        return [replies[rank] for rank in range(self.world_size)]

    def _waits(self, silent: set[int], now: float) -> bool:
        """Whether a rank has waited for a message for some time, so that it is worth seeing if it ever comes."""
        still = (self.board.get(rank)[1] for rank in silent if now - self.board.seen(rank) > _PATIENCE_S)
        return any(doing is not None and doing.kind is Kind.WAITING for doing in still)

    def _hung(self, silent: set[int], now: float, timeout_s: float) -> int | None:
        """Return the silent rank that has been still longest, if nobody has shown life within the bound."""
        if not silent:
            return None
        last = {rank: self.board.seen(rank) for rank in silent}
        if now - max(last.values()) < timeout_s + 2 * _GRACE_S:
            return None
        return min(last, key=lambda rank: last[rank])

    def _too_big(self, silent: set[int]) -> tuple[int, int, str] | None:
        """Return the working rank that holds most, if it is over the limit set or the machine is about to run out."""
        available = host_memory.available_bytes()
        scarce = available is not None and available < host_memory.RESERVE_BYTES
        if not silent or not (scarce or self._limit):
            return None
        used, rank = max((host_memory.private_bytes(self._pids[rank]) or 0, rank) for rank in silent)
        if self._limit is not None and used > self._limit:
            return rank, used, f"of memory, more than {host_memory.LIMIT_VARIABLE}={self._limit / 1e9:g},"
        if scarce:
            return rank, used, f"of memory when the machine had {available / 1e9:.1f} GB left"
        return None

    def _fail(self, findings: Findings) -> NoReturn:
        """End the pool and raise what went wrong first, with the last events of every rank."""
        findings.events = self.board.events(range(self.world_size))
        raise diagnose(findings, self._end())


def _threads(world_size: int) -> int:
    """Return the threads of a rank: its share of the processors, at most OMP_NUM_THREADS if the user has set it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most = int(asked) if asked.isdecimal() else cpus
    return max(1, min(cpus // world_size, most))


def _shared_memory(size: int) -> int:
    """Return the file descriptor of zeroed memory without a name, so that nothing is left behind whoever dies."""
    fd = scratch.nameless("board")
    os.ftruncate(fd, size)
    return fd


_POOLS: dict[int, Pool] = {}


def pool(world_size: int) -> Pool:
    """Return the pool of that size, kept for the next job; a pool that failed is replaced."""
    current = _POOLS.get(world_size)
    if current is None or not current.alive or current.server is not ForkServer._current:
        current = Pool(world_size)
        _POOLS[world_size] = current
    return current


def close_all() -> None:
    """End every pool that is kept."""
    for pool in _POOLS.values():
        pool.close()
