"""A process that runs parity cases for another one, which :mod:`parity.run.workers` starts and hands them to."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from dataclasses import fields
from typing import Any

from parity.cases import Case
from parity.cases.suites import suite_cases
from parity.measure.records import Record
from parity.run.backends import make_runner
from parity.run.case import run_jobs
from refsim.base import processes
from refsim.runtime import launch
from refsim.runtime.ranks import messages


def main(control_fd: str, threads: str, *modules: str) -> None:
    """Run the jobs that come over the socket ``control_fd``, with an oracle of so many threads, until it closes.

    Args:
        modules: to import before the first job, here and in the process that forks the ranks.
    """
    control = socket.socket(fileno=int(control_fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(case: Case, record: Record | None) -> None:
        messages.send(control, {} if record is None else {"record": _values(record)})

    with contextlib.suppress(AttributeError, OSError):  # ranks too: who wakes another one is not interrupted by it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    with processes.ending_with(control.fileno(), lambda: None):
        gc.disable()  # what is imported stays
        launch.fork_server(*modules)
        import torch

        gc.freeze()
        gc.enable()
        known = {case.id: case for case in suite_cases("full", "cpu")}
        with contextlib.suppress(EOFError, ConnectionError), make_runner("cpu") as runner:
            torch.set_num_threads(int(threads))
            while True:
                jobs = messages.receive(control)[0]["jobs"]
                run_jobs(runner, "cpu", [(known[name], seed) for name, seed in jobs], tell)


def _values(record: Record) -> dict[str, Any]:
    """Return the fields of a record, to be sent."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


def read_record(values: dict[str, Any]) -> Record:
    """Make a record of what a worker sent: JSON has only words for keys."""
    values["last_events"] = {int(rank): events for rank, events in values["last_events"].items()}
    return Record(**values)
