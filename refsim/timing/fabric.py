"""Collectives over Ethernet, shard by shard: when each shard of a gather lands, and what a whole collective takes.

    Ring of 4, both directions at once        Line of 4: the middle link carries the most
    0 -> 1 -> 2 -> 3 -> 0   (to the right)    0 -> 1 -> 2 -> 3
    0 <- 1 <- 2 <- 3 <- 0   (to the left)     0 <- 1 <- 2 <- 3

A link sends its shards one after another; a device passes on what it has received, own data first. On a Ring a shard
goes the shorter way, the shard of the opposite device half and half. A reduce-scatter is the same traffic backwards.
An axis has its own links, so that two axes meet only in DRAM: ``beside`` is what another transfer draws meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from refsim.mesh import Topology
from refsim.timing.chips import Chip

# Efficiency of a link and fixed times: tech_reports/CCLs/results/SUMMARY_wormhole (fits of traced nccl-style runs,
# bf16, DRAM; 1 link of 12.5 GB/s: e.g. Line all-gather 4.47 us + 1.91 us (N-1) + (N-1) bytes / 11.8 GB/s), and peak
# link use published for Blackhole (25 GB/s, 2 links).
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
_KINDS = {"all_gather": "gather", "ring_attention": "gather", "reduce_scatter": "scatter", "all_to_all": "exchange"}


@dataclass(frozen=True)
class Fabric:
    """The links of one mesh axis: ``size`` devices, ``links`` per hop."""

    chip: Chip
    size: int
    links: int
    topology: Topology

    def rate(self, kind: str) -> float:
        """Bytes per ns of one direction of one hop."""
        value = self.chip.link_gbps * self.links * _EFFICIENCY[self.chip.arch][kind, self.topology.value]
        if self.size == 2 and self.chip.arch == "wormhole_b0":
            value = min(value, self.chip.link_gbps * self.links * _PAIR)
        return value

    def hop_ns(self, kind: str) -> float:
        return _HOP_NS[kind, self.topology.value] * self.chip.hop_ns / 711.0

    def arrivals(self, nbytes: float, kind: str = "gather", beside_gbps: float = 0.0) -> tuple[float, ...]:
        """When each further shard is complete, in ns from the start, at the device that waits longest.

        Args:
            nbytes: of one device's shard.
            beside_gbps: what another axis moves through this device's DRAM meanwhile.
        """
        rate = min(self.rate(kind), max(self.chip.dram_gbps - beside_gbps, 1.0) / 4)
        return _arrivals(self.size, self.topology.value, nbytes / rate, self.hop_ns(kind))

    def collective_ns(self, name: str, nbytes: float, beside_gbps: float = 0.0) -> float:
        """A whole collective; ``nbytes`` is what this device brings (all_gather: its shard; else its whole tensor)."""
        if self.size == 1:
            return 0.0
        if name == "all_reduce":
            return self.collective_ns("reduce_scatter", nbytes) + self.collective_ns("all_gather", nbytes / self.size)
        kind = _KINDS.get(name, "gather")
        start, hops = _START_NS[kind], self.size // 2 if self.topology is Topology.RING else self.size - 1
        if kind == "exchange":
            n = self.size
            if self.topology is Topology.RING:  # n^2/8 shard-hops per direction and link
                shards, rate = max(n / 8, 0.5), self.rate(kind)
            else:
                shards, rate = (n // 2) * ((n + 1) // 2) / n, self.rate(kind)
            return start + hops * self.hop_ns(kind) + shards * nbytes / rate
        shard = nbytes if kind == "gather" else nbytes / self.size
        return start + self.arrivals(shard, kind, beside_gbps)[-1]

    def ideal_ns(self, name: str, nbytes: float) -> float:
        """At the links' payload rate, no start and no hops."""
        if self.size == 1:
            return 0.0
        shard = nbytes if _KINDS.get(name, "gather") == "gather" else nbytes / self.size
        ways = 2 if self.topology is Topology.RING else 1
        shards = (self.size - 1) / ways * (2 if name == "all_reduce" else 1)
        return shards * shard / (self.chip.link_gbps * self.links * self.chip.link_payload)


def fused_ns(matmul_ns: float, collective_ns: float, size: int) -> float:
    """The longer one, and the other one's share of one of ``size`` shards that nothing can hide."""
    return max(matmul_ns, collective_ns) + min(matmul_ns, collective_ns) / size


@lru_cache(maxsize=4096)
def _arrivals(n: int, topology: str, shard_ns: float, hop_ns: float) -> tuple[float, ...]:
    """Event by event: links take shards in the order they are there; the worst device's sorted arrival times."""
    done: list[dict[int, float]] = [{} for _ in range(n)]
    for way in (1, -1):
        # (ready, device that sends, shard, hops left, share of it)
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
            done[target][shard] = max(done[target].get(shard, 0.0), arrived)
            waiting.append((arrived, target, shard, hops - 1))
    return max((tuple(sorted(d.values())) for d in done), key=lambda times: times[-1])
