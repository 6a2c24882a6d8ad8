"""A process that runs parity cases for another one, which :mod:`parity.lanes` starts and hands them to."""

from __future__ import annotations

import contextlib
import signal
import socket

from parity import gate, lanes
from parity.cases import Case
from parity.records import Record
from parity.suites import suite_cases
from refsim import processes
from refsim.runtime import launch, messages


def main(control_fd: str, threads: str) -> None:
    """Run the jobs that come over the socket ``control_fd``, with an oracle of so many threads, until it closes."""
    control = socket.socket(fileno=int(control_fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(case: Case, record: Record | None) -> None:
        messages.send(control, {} if record is None else {"record": lanes.values(record)})

    with processes.ending_with(control.fileno(), lambda: None):
        launch.warm_up()  # it imports torch, too, at the same time
        import torch

        known = {case.id: case for case in suite_cases("full", "cpu")}
        with contextlib.suppress(EOFError, ConnectionError), gate.make_runner("cpu") as runner:
            torch.set_num_threads(int(threads))
            while True:
                given = messages.receive(control)[0]["jobs"]
                gate.run_jobs(runner, "cpu", [(known[name], seed) for name, seed in given], tell)
