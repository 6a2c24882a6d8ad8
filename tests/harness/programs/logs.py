"""Logs of programs that nobody has to run: events by hand, each with what the checks must say of them.

A row of ``LOGS`` is the events and the findings, as ``"kind severity number"`` in the order of the program. Beside a
log that is wrong stand those that differ from it in one thing and are right.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness import words
from tests.harness.programs.events import LINKS, LOGS
from tests.harness.programs.rows import devices, memory, order, sums, traces, wires
from tt_impl.harness.checks.find import find
from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.storage.values import ProgramValues

for _rows in (
    wires.wires,
    memory.small_buffers,
    memory.memory,
    sums.sums,
    devices.statistics,
    devices.devices,
    devices.numbers,
    order.order,
    traces.regions,
    traces.replays,
):
    _rows()


def findings(name: str) -> list[Finding]:
    """Return what the checks find in a log."""
    log = EventLog(ProgramValues())
    for number, event in enumerate(LOGS[name][0]):
        log.events.append(replace(event, number=number, where=f"program.py:{number}"))
    return find(log, LINKS)


def check() -> None:
    """Hold what is found in every log against what its row says, and its sentences against the approved ones."""
    different = {}
    sentences = {}
    for name, (_, expected) in LOGS.items():
        found = findings(name)
        said = [f"{finding.kind} {finding.severity} {finding.number}" for finding in found]
        if said != expected:
            different[name] = said, expected
        if found:
            sentences[name] = [f"{finding} {finding.op} {finding.devices}" for finding in found]
    assert different == {}
    words.check("logs.json", json.dumps(sentences, indent=1) + "\n")
