"""Ranks that torchrun started: they join one process group, and one of them says who failed first, and doing what.

torchrun sees exit codes only, and a tenth of a second after the first one it ends all ranks of the host. So the ranks
of a host share a board (``refsim.runtime.watch.status``) in memory, and a thread of each looks out for the others:

    a rank is gone          its process has ended, and it had not said that it leaves
    torchrun's SIGTERM      whoever started it, this rank has a moment to look who is gone
    a transfer gives up     (``CommError``) the rank it leads to over the board, or one whose process is stopped

The first to notice claims the report, the others keep quiet. A rank of another host is known by the transfer alone.

What listens: the store, through which the ranks find each other, and gloo's connections. The store is the agent's, on
every interface, under plain ``torchrun``; under ``python -m refsim.base.torchrun`` it is rank 0's, on the address of
``MASTER_ADDR`` alone. gloo listens on one interface, on a single host the loopback (``GLOO_SOCKET_IFNAME`` names one).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from refsim.base import scratch
from refsim.base.errors import RankFailure, UserError
from refsim.base.jobs import Job, failure
from refsim.runtime.ranks.diagnosis import Findings, diagnose, divergence
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.status import StatusBoard

_JOIN_TIMEOUT = timedelta(seconds=60)
_LOOK_S = 0.1  # between two looks at who is gone
_PATIENCE_S = 0.5  # how long a rank waits for a message before ranks' calls are compared
_GRACE_S = 1.0  # how long a rank that died may look alive to the peer that lost the connection
_TELL_S = 5.0  # how long whoever reports a failure may take before the others end


class Host:
    """The ranks of this host: what each of them does, which of them is gone, and who of the others says so.

    The shared file holds the board of all ranks, of which only those of this host write, then a word per rank: its
    process id, 0 for one of another host or one that has left. The last word is 1 once a rank has claimed the report.
    """

    def __init__(self, fd: int, world_size: int, rank: int) -> None:
        self.world_size = world_size
        self.rank = rank
        self.board = StatusBoard(fd, world_size)
        self._fd = fd
        self._map = mmap.mmap(fd, self.size(world_size))
        self._pids = memoryview(self._map).cast("Q")[StatusBoard.size(world_size) // 8 :]
        self._pids[rank] = os.getpid()
        self._lock = threading.Lock()
        self.reports = False
        """Whether this rank has claimed the report."""
        self.board.set(rank, Activity(Kind.JOINING, "the process group"))

    @staticmethod
    def size(world_size: int) -> int:
        """Return the bytes of the shared file."""
        return StatusBoard.size(world_size) + 8 * (world_size + 1)

    def leave(self) -> None:
        """Say that this rank ends by itself, which is no failure that others have to report."""
        self._pids[self.rank] = 0

    def others(self) -> dict[int, int]:
        """Return rank -> process id of the others of this host that have joined and not left."""
        pids = {rank: self._pids[rank] for rank in range(self.world_size) if rank != self.rank}
        return {rank: pid for rank, pid in pids.items() if pid}

    def gone(self) -> set[int]:
        """Return the ranks of this host that ended without having left."""
        return {rank for rank, pid in self.others().items() if process_state(pid) in ("", "Z")}

    def claim(self) -> bool:
        """Whether it is for the caller to report; true for the first that asks, and for nobody after it."""
        with self._lock:  # the kernel's lock keeps processes apart, not the threads of one
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                if self._pids[self.world_size]:
                    return False
                self._pids[self.world_size] = 1
                self.reports = True
                return True
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def run(self, job: Job) -> tuple[dict, dict[str, torch.Tensor]]:
        """Run a job on this rank, as :func:`refsim.runtime.ranks.worker.run_job` does.

        Raises:
            UserError: as in the job.
            RankFailure: a rank failed; ``reported`` if another rank reports it.
        """
        from refsim.runtime.ranks.worker import run_job

        try:
            return run_job(job, self.board)
        except UserError:
            self.claim()
            raise
        except Exception as e:
            raise self.failed(e) from e

    def failed(self, error: Exception) -> RankFailure:
        """Return what to raise when ``error`` ended this rank's program: who failed first, in one sentence."""
        findings = self._findings()
        mine = failure(error)
        findings.failures[self.rank] = mine
        if mine["kind"] == "comm":
            until = time.monotonic() + _GRACE_S
            while not (findings.died or time.monotonic() > until or mine["peer"] not in self.others()):
                time.sleep(_LOOK_S / 10)  # whichever rank it is that ends or leaves; no one handle tells of them all
                findings.died = self.gone()
            stopped = {rank: pid for rank, pid in self.others().items() if process_state(pid) == "T"}
            findings.hung = min(stopped, default=None)
            for pid in stopped.values():
                os.kill(pid, signal.SIGCONT)  # or torchrun's SIGTERM reaches it only after half a minute, as SIGKILL
        if mine["kind"] in ("comm", "diverged") and not findings.died:
            findings.diverged = divergence(self.board, findings.events)
        if not self.claim():
            self.let_tell()
            return RankFailure("another rank says what failed.", rank=-1, reported=True)
        known = findings.died or findings.diverged or findings.hung is not None
        if mine["kind"] == "comm" and mine["peer"] not in findings.events and not known:
            doing = findings.events[self.rank][-1][1].clause
            return RankFailure(f"{error}, on another host, while rank {self.rank} was {doing}.", rank=mine["peer"])
        for_all = diagnose(findings, [None] * self.world_size)
        assert isinstance(for_all, RankFailure)
        return for_all

    def let_tell(self) -> None:
        """Wait until the rank that reports the failure has ended: torchrun ends it as soon as this one has."""
        until = time.monotonic() + _TELL_S
        while time.monotonic() < until and len(self.others()) > len(self.gone()):
            time.sleep(_LOOK_S)  # for one that is to end here; a second late costs nothing

    def report_gone(self) -> None:
        """Report the ranks that are gone, or that make other calls than this one, which waits; end this one if any."""
        findings = self._findings()
        at, doing = self.board.get(self.rank)
        if (
            not findings.died
            and doing is not None
            and doing.kind is Kind.WAITING
            and time.monotonic() - at > _PATIENCE_S
        ):
            findings.diverged = divergence(self.board, findings.events)
        if (findings.died or findings.diverged) and self.claim():
            error = diagnose(findings, [None] * self.world_size)
            assert isinstance(error, RankFailure)
            sys.stderr.write(f"refsim: {error.with_flags}\n{error.events_table()}")
            sys.stderr.flush()
            _end(error.exit_code)

    def _findings(self) -> Findings:
        return Findings(self.board.events(sorted([self.rank, *self.others()])), died=self.gone())


_host: Host | None = None


def join() -> Host | None:
    """Join the process group that torchrun describes; None where no agent says which ranks share a host.

    The second call returns what the first did, and so does a call when the caller has set a process group up.
    """
    global _host
    if dist.is_initialized():
        return _host
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    if local_size == world_size:
        # gloo would listen on the address that the host's name resolves to
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    store = _store(rank, world_size)
    if local_size:
        _host = Host(_shared_file(store, world_size, local_size), world_size, rank)
        _watch(_host)
    group_store = dist.PrefixStore("refsim", store)
    dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world_size, timeout=_JOIN_TIMEOUT)
    atexit.register(dist.destroy_process_group)
    if _host is not None:
        _host.board.set(rank, Activity(Kind.IDLE))
        atexit.register(_host.leave)
    return _host


def leave() -> None:
    """Say that this rank ends by itself; for a process that ends without ``atexit``."""
    if _host is not None:
        _host.leave()


def _store(rank: int, world_size: int) -> dist.Store:
    """Return the store through which the ranks find each other; rank 0 has it where torchrun's agent has none."""
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if agents or rank:
        return dist.TCPStore(address, port, world_size, is_master=False, timeout=_JOIN_TIMEOUT)
    # torch's own server listens on every interface unless it is handed a socket
    listening = socket.create_server((address, port))
    return dist.TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=_JOIN_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _shared_file(store: dist.Store, world_size: int, local_size: int) -> int:
    """Return the descriptor of a zeroed file that the ranks of this host share; it has no name once all have it.

    Should a rank never come, it goes with the first one, which has made its folder.
    """
    here = f"refsim/host/{os.environ.get('GROUP_RANK', '0')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if os.environ["LOCAL_RANK"] == "0":
        path = os.path.join(scratch.Folder("board").name, "board")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, Host.size(world_size))
        store.set(here, path)
    else:
        path = store.get(here).decode()
        fd = os.open(path, os.O_RDWR)
    if store.add(f"{here}/open", 1) == local_size:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    return fd


def _watch(host: Host) -> None:
    """Have a thread look who is gone, every now and then and when torchrun ends this rank.

    The main thread may be deep inside a library when SIGTERM comes, and Python's handlers run on that thread only. What
    the signal does at once is to write to a socket, at whose other end the thread sits.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def look() -> None:
        with contextlib.closing(ours), contextlib.closing(theirs):
            while True:
                ready, _, _ = select.select([ours], [], [], _LOOK_S)
                has_to_end = bool(ready) and signal.SIGTERM in ours.recv(4096)
                host.report_gone()
                if has_to_end:
                    if host.reports:
                        time.sleep(_TELL_S)  # at most: the main thread says what failed and ends the process
                    _end(128 + signal.SIGTERM)

    threading.Thread(target=look, name="refsim-watch", daemon=True).start()


def _end(code: int) -> NoReturn:
    """End this process from a thread beside its main one, which would not come to an end by itself."""
    scratch.remove_all()
    os._exit(code)


def process_state(pid: int) -> str:
    """Return the letter of a process's state (``T`` stopped, ``Z`` ended and not yet waited for), empty if it is gone.

    ``?`` where the system has no ``/proc`` and the process is there.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        if sys.platform == "linux":
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    return "?"
