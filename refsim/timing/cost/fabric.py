"""Collectives over Ethernet, shard by shard: when each shard of a gather lands, and what a whole collective takes.

    Ring of 4, both directions at once        Line of 4: the middle link carries the most
    0 -> 1 -> 2 -> 3 -> 0   (to the right)    0 -> 1 -> 2 -> 3
    0 <- 1 <- 2 <- 3 <- 0   (to the left)     0 <- 1 <- 2 <- 3

A link sends its shards one after another; a device passes on what it has received, own data first. On a Ring a shard
goes the shorter way, the shard of the opposite device half and half. A reduce-scatter is the same traffic backwards.
An axis has its own links, so that two axes meet only in DRAM: ``beside`` is what another transfer draws meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from refsim.base.mesh import Topology
from refsim.timing.cost.chips import TILE, Chip

# Efficiency of a link and fixed times: tech_reports/CCLs/results/SUMMARY_wormhole (fits of traced nccl-style runs,
# bf16, DRAM; 1 link of 12.5 GB/s, packets of 6 KiB: e.g. Line all-gather 4.47 us + 1.91 us (N-1) + (N-1) bytes /
# 11.8 GB/s), and peak link use published for Blackhole (25 GB/s, 2 links, packets of 8 KiB).
_EFFICIENCY = {
    "wormhole_b0": {
        ("gather", "Linear"): 11.8 / 12.5, ("gather", "Ring"): 20.8 / 25, ("scatter", "Linear"): 11.1 / 12.5,
        ("scatter", "Ring"): 16.7 / 25, ("exchange", "Linear"): 7.6 / 12.5, ("exchange", "Ring"): 16.5 / 25,
    },
    "blackhole": {
        ("gather", "Linear"): 0.955, ("gather", "Ring"): 0.945, ("scatter", "Linear"): 0.76, ("scatter", "Ring"): 0.80,
        ("exchange", "Linear"): 0.75, ("exchange", "Ring"): 0.68,
    },
}  # fmt: skip
_START_NS = {"gather": 4470.0, "scatter": 3230.0, "exchange": 2990.0}
_HOP_NS = {
    ("gather", "Linear"): 1910.0, ("gather", "Ring"): 2500.0, ("scatter", "Linear"): 3970.0,
    ("scatter", "Ring"): 3060.0, ("exchange", "Linear"): 2140.0, ("exchange", "Ring"): 3400.0,
}  # fmt: skip
_PAIR = 0.51
"""Share of line rate a Line of two reaches (same summary): every byte is read from DRAM, none only passed on."""
_SMALL_PACKETS = math.sqrt(1.086 * 1.228)
_PACKET_NS = {"wormhole_b0": 567.0, "blackhole": 4096 / (0.955 * 25 / _SMALL_PACKETS)}
"""A link's time per packet of a gather. tt_dit's packets on Wormhole carry 4 KiB: an all-gather of (13664, 1344) bf16
over a ring of 4 with 4 links moves 13.8 MB through each link and direction in 1906 us (agmm_fused_vs_unfused.md), 567
ns a packet; with 6 KiB the summary above has 520 to 590. Blackhole's packets of 8 KiB are bound by the link, and gather
8.6 to 22.8 % faster than those of two tiles (tt-metal issue 57083, two P150a): 198 ns. No trace has a part in it."""
_WORKER_GBPS = {"wormhole_b0": 9.0, "blackhole": math.inf}
"""What one reduce-scatter worker core moves, in and out (minimax_h3_wormhole/ff2.md, 3.5)."""
TILE_BYTES = 2048
WORKERS = 2
"""Reduce-scatter workers per link and direction in tt_dit (``CCLManager.get_rs_hyperparams``)."""
_KINDS = {"all_gather": "gather", "ring_attention": "gather", "reduce_scatter": "scatter", "all_to_all": "exchange"}


@dataclass(frozen=True)
class Fabric:
    """The links of one mesh axis: ``size`` devices, ``links`` per hop.

    Attributes:
        payload: bytes of a packet; those of the chip if 0.
        workers: of a reduce-scatter, per link and direction.
        link_gbps: what a gather moves through one link and direction at most, where that is less than the link does.
    """

    chip: Chip
    size: int
    links: float
    topology: Topology
    payload: int = 0
    workers: int = WORKERS
    link_gbps: float = math.inf

    def rate(self, kind: str) -> float:
        """Return the bytes per ns of one direction of one hop."""
        value = self.chip.link_gbps * self.links * _EFFICIENCY[self.chip.arch][kind, self.topology.value]
        if self.size == 2 and self.chip.arch == "wormhole_b0":
            value = min(value, self.chip.link_gbps * self.links * _PAIR)
        if kind == "gather":
            value = min(value, self.links * min(self.packet_bytes / _PACKET_NS[self.chip.arch], self.link_gbps))
        return value

    @property
    def packet_bytes(self) -> int:
        return self.payload or self.chip.packet_bytes

    def scatter_workers_ns(self, nbytes: float, addcmul: bool = False) -> float:
        """Return what the worker cores of a reduce-scatter need: each slice is read, sent on, received and written.

        In bytes of the whole tensor: 1 in, (N-1)/N received, (N-1)/N sent, 1/N out, with addcmul 2/N more.
        """
        moved = nbytes * (3 - 1 / self.size + (2 / self.size if addcmul else 0.0))
        return moved / (2 * self.links * self.workers * _WORKER_GBPS[self.chip.arch])

    def hop_ns(self, kind: str) -> float:
        return _HOP_NS[kind, self.topology.value] * self.chip.hop_ns / 711.0

    def arrivals(self, nbytes: float, kind: str = "gather", beside_gbps: float = 0.0) -> tuple[float, ...]:
        """Return when each further shard is complete, in ns from the start, at the device that waits longest.

        Args:
            nbytes: of one device's shard.
            beside_gbps: what another axis moves through this device's DRAM meanwhile.
        """
        return _arrivals(*self._links(nbytes, kind, beside_gbps))

    def messages(self, nbytes: float) -> tuple[Message, ...]:
        """Return what a gather of shards of ``nbytes`` sends from neighbour to neighbour, as ``arrivals`` has it."""
        return _messages(*self._links(nbytes, "gather", 0.0))

    def _links(self, nbytes: float, kind: str, beside_gbps: float) -> tuple[int, str, float, float]:
        """Return size and topology, and the ns of a shard on a link and of a hop."""
        rate = min(self.rate(kind), max(self.chip.dram_gbps - beside_gbps, 1.0) / 4)
        return self.size, self.topology.value, nbytes / rate, self.hop_ns(kind)

    def collective_ns(self, name: str, nbytes: float, beside_gbps: float = 0.0) -> float:
        """Return the ns of a collective; ``nbytes``: what this device brings (all_gather: a shard, else all of it)."""
        if self.size == 1:
            return 0.0
        if name == "all_reduce":
            return self.collective_ns("reduce_scatter", nbytes) + self.collective_ns("all_gather", nbytes / self.size)
        kind = _KINDS.get(name, "gather")
        start = _START_NS[kind]
        hops = self.size // 2 if self.topology is Topology.RING else self.size - 1
        if kind == "exchange":
            n = self.size  # on a Ring n^2/8 shard-hops per direction and link
            shards = max(n / 8, 0.5) if self.topology is Topology.RING else (n // 2) * ((n + 1) // 2) / n
            return start + hops * self.hop_ns(kind) + shards * nbytes / self.rate(kind)
        shard = nbytes if kind == "gather" else nbytes / self.size
        slowest = 0.0 if kind == "gather" else self.scatter_workers_ns(nbytes)
        return start + max(self.arrivals(shard, kind, beside_gbps)[-1], slowest)

    def fused_gather_ns(self, m: int, k: int, k_block: int) -> float:
        """Return the ns of the gather of (m, k / size) in a matmul on a Ring: half of a block's row goes either way.

        ``k_block``: tiles of K in a block. A packet holds tiles of one row only, so that small blocks fill no packet,
        and one tile has no other half ("bidirectional half-block relay" of linear_topology_agmm_implementation.md).
        """
        rows = -(-m // TILE)
        shard = max(k // TILE // self.size, 1)
        blocks = -(-shard // k_block)
        half = -(-min(k_block, shard) // 2)
        tiles = max(self.packet_bytes // TILE_BYTES, 1)
        packets = (self.size - 1) * rows * blocks * -(-half // tiles)
        sent = (self.size - 1) * rows * blocks * half * TILE_BYTES
        rate = self.chip.link_gbps * self.links * _EFFICIENCY[self.chip.arch]["gather", "Ring"]
        took = max(packets * _PACKET_NS[self.chip.arch] / self.links, sent / rate)
        return _START_NS["gather"] + (self.size - 1) * self.hop_ns("gather") + took

    def gathered_matmul_ns(self, matmul_ns: float, gather_ns: float) -> float:
        """Return the ns of a matmul with the gather of its operand inside (``fused_gather_ns``).

        On Blackhole the share ``gather / matmul`` of the gather stays in sight, all of it where it takes longer than
        the matmul: nine linears of MiniMax-H3 and Wan2.2-TI2V-5B (``published.FUSED_GATHERS``).
        """
        if self.chip.arch == "blackhole":
            return matmul_ns + gather_ns * min(1.0, gather_ns / matmul_ns)
        return fused_ns(matmul_ns, gather_ns, self.size)

    def fused_scatter_ns(self, m: int, n: int, grid: tuple[int, int]) -> float:
        """Return the ns of the reduce-scatter of (m, n) beside a matmul on ``grid`` (cores for M, cores for N).

        Its workers and their routers stand on the rows that the matmul leaves free (``FusedMMRSConfig.get_params``).
        """
        free = (self.chip.cores[1] - grid[0]) * self.chip.cores[0]
        beside = replace(self, workers=max(free // (2 * self.links) - 1, 1))
        shard = m * n * 2 / self.size
        return _START_NS["scatter"] + max(
            beside.arrivals(shard, "scatter")[-1], beside.scatter_workers_ns(m * n * 2, addcmul=True)
        )

    def fused_parts(self, m: int, grid: tuple[int, int], block: tuple[int, int, int]) -> int:
        """Return how many blocks of rows a core hands on: one's reduce-scatter runs under the next one's matmul."""
        rows = math.ceil(math.ceil(m / TILE) / grid[0])
        return math.ceil(rows / block[0])

    def ideal_ns(self, name: str, nbytes: float) -> float:
        """Return the ns at the links' payload rate, without start and hops."""
        if self.size == 1:
            return 0.0
        shard = nbytes if name != "all_reduce" and _KINDS.get(name, "gather") == "gather" else nbytes / self.size
        ways = 2 if self.topology is Topology.RING else 1
        shards = (self.size - 1) / ways * (2 if name == "all_reduce" else 1)
        return shards * shard / (self.chip.link_gbps * self.links * self.chip.link_payload)


def fused_ns(matmul_ns: float, collective_ns: float, parts: int) -> float:
    """Return the longer time plus what nothing can hide of the other: one of ``parts`` (shards, blocks)."""
    return max(matmul_ns, collective_ns) + min(matmul_ns, collective_ns) / parts


class Message(NamedTuple):
    """A ``shard``, or its ``share``, on the link between two neighbours of a group; times in ns from the start.

    The link is taken from ``start`` to ``sent``; at ``arrived`` the message is there.
    """

    source: int
    target: int
    shard: int
    share: float
    start: float
    sent: float
    arrived: float


@lru_cache(maxsize=4096)
def _arrivals(n: int, topology: str, shard_ns: float, hop_ns: float) -> tuple[float, ...]:
    """Return the worst device's sorted arrival times."""
    done: list[dict[int, float]] = [{} for _ in range(n)]
    for m in _messages(n, topology, shard_ns, hop_ns):
        done[m.target][m.shard] = max(done[m.target].get(m.shard, 0.0), m.arrived)
    return max((tuple(sorted(d.values())) for d in done), key=lambda times: times[-1])


@lru_cache(maxsize=64)
def _messages(n: int, topology: str, shard_ns: float, hop_ns: float) -> tuple[Message, ...]:
    """Simulate event by event: links take shards in the order they are there."""
    messages: list[Message] = []
    for way in (1, -1):
        # (ready, device that sends, shard, hops left)
        waiting = []
        for device in range(n):
            if topology == "Ring":
                waiting.append((0.0, device, device, n // 2))
            else:
                waiting.append((0.0, device, device, n - 1 - device if way == 1 else device))
        free = [0.0] * n
        while waiting:
            waiting.sort()
            ready, device, shard, hops = waiting.pop(0)
            if hops == 0:
                continue
            target = (device + way) % n
            half = 0.5 if topology == "Ring" and n % 2 == 0 and hops == 1 else 1.0
            start = max(ready, free[device])
            free[device] = start + shard_ns * half
            arrived = free[device] + hop_ns
            messages.append(Message(device, target, shard, half, start, free[device], arrived))
            waiting.append((arrived, target, shard, hops - 1))
    return tuple(messages)
