"""What is wrong with a program's collectives and memory, found without a reference: ``find(log)``.

| kind | what it means |
|---|---|
| ring-without-link | a ring over devices whose last has no link back to the first |
| too-many-links | more links than neighbours have |
| not-neighbours | devices that follow each other along an axis have no link (note) |
| small-buffer | a persistent buffer cannot hold what the collective writes |
| semaphore-twice | one semaphore given twice to one collective |
| semaphore-in-flight | a semaphore is signalled while a device that lags may still wait for it |
| buffer-in-use | other devices write memory while one that lags may use it (a note: first fill, ring attention) |
| stale-read | a collective's result is read after a later one has overwritten its buffer |
| never-written | memory is read that was allocated and never written (a note where the host reads it) |
| freed | a tensor is used after it was deallocated |
| uneven-replicas | one replica is read, but devices hold different ones |
| partial-sum | sums over part of a cut dimension are used as if they were whole |
| local-statistics | a distributed norm uses statistics of one device's columns |
| buffer-twice | one buffer is given twice to one collective |
| bias-summed | a bias is added on every device to sums that are added up afterwards |
| unused-result | nothing reads the result of a collective (note) |
| submeshes-differ | submeshes that start with the same collectives go on with others (note) |
"""

from __future__ import annotations

from itertools import chain

from tt_impl.harness.checks.buffers import freed, given_twice, never_written, stale, too_small, unused
from tt_impl.harness.checks.fabric import Links, cluster_links, wires
from tt_impl.harness.checks.finding import ERROR, NOTE, Finding, once
from tt_impl.harness.checks.order import in_flight, twice
from tt_impl.harness.checks.statistics import local_statistics
from tt_impl.harness.checks.submeshes import submeshes_differ, uneven_replicas
from tt_impl.harness.checks.sums import partial_sums
from tt_impl.mock.log.events import EventLog

__all__ = ["ERROR", "NOTE", "Finding", "find"]

_CHECKS = (
    *(twice, in_flight, given_twice, too_small, never_written, freed, stale),
    *(uneven_replicas, partial_sums, local_statistics, unused, submeshes_differ),
)


def find(log: EventLog, links: Links | None = None) -> list[Finding]:
    """Find what is wrong with a watched program: in its order, each line of the program once per kind.

    Args:
        log: the program's events.
        links: how many Ethernet links two devices have, by their ids; the mock cluster's by default.
    """
    of_wires = wires(log, cluster_links() if links is None else links)
    return once(chain(of_wires, *(check(log) for check in _CHECKS)))
