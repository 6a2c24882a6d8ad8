"""TT-Lang kernels that a node cannot hold: too many buffers, too much of its L1."""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog


def kernel_resources(log: EventLog) -> Iterator[Finding]:
    """Find kernels of whose resources their simulator warns; on the mock's few nodes each may hold more than there."""
    for event in log.events:
        for text, on_few_nodes in event.kernel_warnings:
            where = " on the mock's grid; REFSIM_TTL_GRID=8,8 runs it on more nodes" if on_few_nodes else ""
            sentence = f"{event.op}: {text}{where}."
            yield Finding.of("kernel-resources", event, sentence, NOTE if on_few_nodes else ERROR)
