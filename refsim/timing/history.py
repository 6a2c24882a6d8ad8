"""Collectives of tt_dit as they were on the day of a published figure, where the code has changed since.

until 24 March 2026   Wan's ring attention gathered along a Line, on a Ring too (tt-metal pull request 40178)
until 25 March        ring attention's gather asked DRAM for one packet of two tiles after another, one worker for a
                      link and direction (40618; the reader before it is that of 12 January, 34748)
until 31 March        packets carried two tiles on a Blackhole Galaxy, too (commit c2fca8dc)
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.mesh import Topology
from refsim.timing.chips import get_chip
from refsim.timing.fabric import TILE_BYTES, Fabric

_BLACKHOLE = get_chip("blackhole")
_PACKET = 2 * TILE_BYTES
IDLE_NS = 576 / _BLACKHOLE.clock_ghz
"""A packet of two tiles from DRAM to a core of an idle Blackhole (ONE_FROM_ALL, DRAM_INTERLEAVED: tt-metal's
noc_latencies.yaml): 9.6 GB/s a link at most. In January, dense attention over a line of 8 took 27.4 ms with its gather
(34929), which no less than 7.0 GB/s allows."""


def _busy_ns(rows: int = 8544, heads: int = 10, width: int = 128, size: int = 4, links: int = 2) -> float:
    """Return the same beside attention that sends keys on by multicast, as it does since 10 March (39125).

    Measured once, on 24 March (40618): a Ring of 4 with two shards on the busier way, on 100 cores, used 50 % of the
    engines instead of 65 %. The last shard is attended to after it has come. That the days before were as slow is not
    measured; the code of the gather was the same.
    """
    whole = 4.0 * heads * rows * size * rows * width / (_BLACKHOLE.peak_tflops("HiFi2", 100) * 1000)
    gathering = whole / 0.50 - whole / 0.65 / size
    packets = 2 * (2 * heads * rows * width * 2) / links / _PACKET
    return gathering / packets


BUSY_NS = _busy_ns()
"""817 ns, 5.0 GB/s a link."""


def as_on(day: date | None, fabric: Fabric, name: str) -> Fabric:
    """Return the links as the collective ``name`` used them on ``day``; None is today."""
    if day is None:
        return fabric
    if day < date(2026, 3, 31):
        fabric = replace(fabric, payload=_PACKET)
    if name != "ring_attention":
        return fabric
    if day < date(2026, 3, 24):
        fabric = replace(fabric, topology=Topology.LINEAR)
    if day < date(2026, 3, 25) and fabric.chip.arch == "blackhole":
        fabric = replace(fabric, link_gbps=_PACKET / (BUSY_NS if day >= date(2026, 3, 10) else IDLE_NS))
    return fabric
