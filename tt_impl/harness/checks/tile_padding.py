"""Padding of tiles that an operation takes for data."""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog


def tile_padding(log: EventLog) -> Iterator[Finding]:
    """Find operations whose results depend on what lies in a tile beyond the shape; a note if it is not known."""
    for event in log.events:
        for read in event.padding_reads:
            what = "rows" if read.dim == -2 else "columns"
            filled = f"which holds {read.fill:g}" if read.fill is not None else "of which nobody knows what it holds"
            sentence = (
                f"{event.op} reads {what} {read.shape[read.dim]} to {read.end - 1} of {read.argument} "
                f"{list(read.shape)}, padding of its last tile, {filled}: {read.remedy}."
            )
            yield Finding.of("tile-padding", event, sentence, NOTE if read.fill is None else ERROR)
