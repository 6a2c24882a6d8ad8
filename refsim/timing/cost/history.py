"""Kernels and collectives of tt_dit as they were on the day of a published figure, where the code has changed since.

until 30 October 2025  linears were ttnn.linear (74063f33, 31225), which some systems had to throttle: Figure.busy
until 4 March 2026     attention took its exponentials and its products in turn (38838)
until 24 March 2026   Wan's ring attention gathered along a Line, on a Ring too (tt-metal pull request 40178)
until 25 March        ring attention's gather asked DRAM for one packet of two tiles after another, one worker for a
                      link and direction (40618; the reader before it is that of 12 January, 34748)
until 31 March        packets carried two tiles on a Blackhole Galaxy, too (commit c2fca8dc)
until September 2026   P300 boards kept to 800 MHz, as their firmware did before tt-system-firmware's pull request 553:
                       three public runs of 12 January (``P300_RUNS``) are predicted at 0.81 to 1.11 of their seconds
                       with that clock, at 0.55 to 0.83 with the full one. The end is a choice: no public run between
                       March and September says when it was lifted
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import MeshSpec, Topology
from refsim.timing.cost.chips import Chip, get_chip
from refsim.timing.cost.fabric import TILE_BYTES, Fabric
from refsim.timing.cost.ops import Params

P300_MESHES = ("bh-p300", "bh-qb", "bh-qb-1x4")
P300_RUNS = {("flux1-dev", "bh-qb"): 12.9, ("flux1-dev", "bh-p300"): 24.7, ("wan22-t2v-a14b", "bh-qb"): 690.0}
"""Seconds of pipelines on 12 January 2026 (34929); Wan's encoder ran on the host then, 27 s at most."""
_P300_GHZ = 0.8
_P300_SINCE = date(2026, 9, 1)
_STREAMING_SINCE = date(2026, 3, 4)
_MINIMAL_SINCE = date(2025, 10, 30)
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


def serial_attention(day: date | None) -> bool:
    """Return whether products and exponentials of attention took turns; None is today."""
    return day is not None and day < _STREAMING_SINCE


def multicast_linears(day: date | None) -> bool:
    """Return whether linears were ttnn.linear; None is today."""
    return day is not None and day < _MINIMAL_SINCE


def clocked(day: date | None, mesh: MeshSpec, chip: Chip, params: Params) -> tuple[Chip, Params]:
    """Return a chip and its parameters at the clock of the day: DRAM and Ethernet have clocks of their own."""
    if day is None or day >= _P300_SINCE or mesh.name not in P300_MESHES:
        return chip, params
    slow = _P300_GHZ / chip.clock_ghz
    chip = replace(chip, clock_ghz=_P300_GHZ, noc_gbps=chip.noc_gbps * slow, l1_gbps=chip.l1_gbps * slow)
    return chip, replace(params, relay_gbps=params.relay_gbps * slow)


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
