"""Runs cases in several processes at a time, since ranks idle while an oracle computes, and cores while ranks wait.

                       .--job--> worker 0 (a process with oracle, checkpoints and ranks of its own)
    jobs in groups ----|
                       '--job--> worker 1 ...
    records  <--------- one by one, as they come

A worker is handed one group after another: the cases that share a checkpoint or an oracle's answer, which are made
once for them. What needs much memory comes first, and runs beside other such only where the machine holds both. A
worker that dies costs the case it was at; the rest of its group goes to another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import selectors
import signal
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from parity.cases.kinds import entry
from parity.measure.machine import cores
from parity.measure.records import Record
from parity.run.case import Job, Progress
from parity.run.worker import read_record
from refsim.base import processes, scratch
from refsim.base.errors import RefsimError, UserError
from refsim.runtime.host_memory import available_bytes
from refsim.runtime.ranks import messages

ORACLES = (
    "diffusers",  # rank 0 of a pipeline needs its schedulers
    "diffusers.models.autoencoders.autoencoder_kl",
    "transformers.models.t5.modeling_t5",
)
"""What a worker imports for cases that are judged by them: these bring most of what oracles need."""
TOGETHER = 8
"""Cases that share an answer and stay in one worker: more would leave the others idle."""
MOST = 4
"""Workers where nobody says how many: every one holds checkpoints and ranks of its own in memory."""
_PATIENCE_S = 10.0


def count(jobs: Sequence[Job], asked: int | None, backend: str) -> int:
    """Return how many workers are of use: those asked for, or by default the cores, and no more than groups.

    Raises:
        UserError: several asked for, and the backend is not ``cpu``.
    """
    if backend != "cpu":
        if asked not in (None, 1):
            raise UserError(f"--jobs is for backend cpu; on {backend} two programs run at a time; leave it out.")
        return 1
    return min(min(cores(), MOST) if asked is None else asked, len(groups(jobs)))


def groups(jobs: Sequence[Job]) -> list[list[int]]:
    """Return indices of the jobs that run in one worker, those that need most memory first.

    They are all jobs of one checkpoint, and of what has none up to ``TOGETHER`` with the same answer of an oracle.
    """
    by_key: dict[tuple, list[int]] = {}
    counts = Counter[tuple]()
    for index, (case, seed) in enumerate(jobs):
        key: tuple = case.model, seed
        if not entry(case.kind).checkpoint:
            same = *key, case.kind, case.shape, case.family, case.dtype
            key = *same, counts[same] // TOGETHER
            counts[same] += 1
        by_key.setdefault(key, []).append(index)
    return sorted(by_key.values(), key=lambda group: _needs_gb(jobs, group), reverse=True)


def _needs_gb(jobs: Sequence[Job], group: list[int]) -> float:
    """Return the memory that a group needs, 0 of what needs little."""
    return max((jobs[index][0].needs_gb for index in group), default=0.0)


def run(jobs: Sequence[Job], count: int, progress: Progress) -> list[Record]:
    """Run all jobs in ``count`` workers on the CPU backend; their records, in the order of the jobs."""
    waiting = deque(groups(jobs))
    records = dict[int, Record]()
    with scratch.Folder("workers") as folder, contextlib.ExitStack() as stack:
        threads = max(1, cores() // count)
        memory_gb = (available_bytes() or 0) / 2**30
        workers = [stack.enter_context(_Worker(number, folder, threads, _oracles(jobs))) for number in range(count)]
        while len(records) < len(jobs):
            for worker in workers:
                if not worker.group:
                    taken = sum(_needs_gb(jobs, other.group) for other in workers)
                    worker.give(jobs, _next(jobs, waiting, memory_gb - taken if taken else math.inf))
            for worker in _ready([worker for worker in workers if worker.group]):
                index = worker.group[0]
                case, seed = jobs[worker.group[0]]
                record = worker.receive()
                if record is None and worker.alive:
                    progress(case, None)
                    continue
                if record is None:
                    record = replace(Record.of(case, "cpu", seed), reason=worker.how_it_ended())
                    if rest := worker.group[1:]:
                        waiting.appendleft(rest)
                    worker.group = [index]
                    worker.start()
                records[index] = record
                del worker.group[0]
                progress(case, record)
        for worker in workers:
            worker.control.close()  # so that they end at the same time
    return [records[index] for index in range(len(jobs))]


def _oracles(jobs: Sequence[Job]) -> list[str]:
    """Return modules of ``ORACLES`` that are there, none if no case is judged by them."""
    if not any(entry(case.kind).checkpoint for case, _ in jobs):
        return []
    return [name for name in ORACLES if importlib.util.find_spec(name.partition(".")[0])]


def _next(jobs: Sequence[Job], waiting: deque[list[int]], room_gb: float) -> list[int]:
    """Return the group that a worker runs next: the first that there is room for; what needs little fits anywhere."""
    for position, group in enumerate(waiting):
        if _needs_gb(jobs, group) <= max(room_gb, 0.0):
            del waiting[position]
            return group
    return []


def _ready(workers: list[_Worker]) -> Iterator[_Worker]:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.control, selectors.EVENT_READ, worker)
        yield from (key.data for key, _ in selector.select())


class _Worker:
    """A process that runs the jobs it is given; a context manager.

    Attributes:
        given: indices of the jobs it still has to run, first the one it is at.
        alive: whether the process has not been found dead.
    """

    def __init__(self, number: int, folder: str, threads: int, modules: Sequence[str]) -> None:
        self.number = number
        self.group = list[int]()
        self._folder = folder
        self._arguments = str(threads), *modules
        self.start()

    def start(self) -> None:
        """Start the process, in place of one that died."""
        self.alive = True
        self._began = False
        self.control, theirs = socket.socketpair()
        self._process = processes.start(
            "parity.run.worker",
            str(theirs.fileno()),
            *self._arguments,
            env={"TMPDIR": self._folder},  # which goes with this process, however a worker ends
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def give(self, jobs: Sequence[Job], group: list[int]) -> None:
        """Have the process run a group of jobs."""
        self.group = group
        if group:
            with contextlib.suppress(OSError):  # it died, which receive() finds
                messages.send(self.control, {"jobs": [(jobs[index][0].id, jobs[index][1]) for index in group]})

    def receive(self) -> Record | None:
        """Return the record of the job it is at; None if the job has only begun, or the process died: see ``alive``."""
        try:
            message = messages.receive(self.control)[0]
        except (EOFError, OSError):
            self.alive = False
            return None
        self._began = True
        return read_record(message["record"]) if "record" in message else None

    def how_it_ended(self) -> str:
        """Return what became of a process that died, for the record of the case that it was at."""
        self.control.close()
        try:
            code = self._process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        processes.end(self._process)
        if not self._began:
            raise RefsimError(
                f"a process that runs cases {processes.how_it_ended(code)} before its first; run with --jobs 1."
            )
        return f"the process that ran this case {processes.how_it_ended(code)}."

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.control.close()
        processes.end(self._process, patience_s=_PATIENCE_S)
