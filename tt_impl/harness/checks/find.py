"""What is wrong with a program's collectives and memory, found without a reference: ``find(log)``.

The kinds and what they mean: :data:`tt_impl.harness.checks.KINDS`.
"""

from __future__ import annotations

from itertools import chain

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.buffers import freed, never_written, same_buffer, stale, too_small, unused
from tt_impl.harness.checks.cached import cached
from tt_impl.harness.checks.fabric import Links, cluster_links, wires
from tt_impl.harness.checks.finding import Finding, once
from tt_impl.harness.checks.kernels import kernel_resources
from tt_impl.harness.checks.not_finite import not_finite
from tt_impl.harness.checks.order import in_flight, twice
from tt_impl.harness.checks.raised import refused
from tt_impl.harness.checks.statistics import local_statistics, norms_of_columns
from tt_impl.harness.checks.submeshes import submeshes_differ, uneven_replicas
from tt_impl.harness.checks.sums import partial_sums
from tt_impl.harness.checks.tile_padding import tile_padding
from tt_impl.harness.checks.trace_region import trace_region
from tt_impl.harness.checks.traces import traces
from tt_impl.mock.log.events import EventLog

__all__ = ["ERROR", "NOTE", "Finding", "find"]

_CHECKS = (
    *(twice, in_flight, same_buffer, too_small, never_written, freed, stale),
    *(uneven_replicas, partial_sums, local_statistics, norms_of_columns, unused, submeshes_differ, not_finite, refused),
    *(tile_padding, traces, trace_region, cached, kernel_resources),
)


def find(log: EventLog, links: Links | None = None) -> list[Finding]:
    """Find what is wrong with a watched program: in its order, each line of the program once per kind.

    Args:
        log: the program's events.
        links: how many Ethernet links two devices have, by their ids; the mock cluster's by default.
    """
    of_wires = wires(log, cluster_links() if links is None else links)
    return once(chain(of_wires, *(check(log) for check in _CHECKS)))
