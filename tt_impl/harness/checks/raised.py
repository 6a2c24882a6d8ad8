"""Calls that are refused while the program goes on: whatever it does instead is what runs on devices."""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog


def refused(log: EventLog) -> Iterator[Finding]:
    """Find calls that were refused, other than the one whose error ended the program and those it expects to raise."""
    for event in log.events:
        if event.refused and not event.dead and event.number not in log.left_by_error:  # dead: a finding of its own
            sentence = f"{event.op} is refused, and the program goes on: {event.refused}"
            yield Finding.of("refused", event, sentence.rstrip(".") + ".")
