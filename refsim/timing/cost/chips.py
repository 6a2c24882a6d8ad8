"""The chips: what their data sheets and public measurements say, in units of ns, bytes and cycles.

Nothing here is fitted; what is fitted to measured operations stands in ``calibrated.json`` (see ``calibrate.py``).
All bandwidths are GB/s = bytes per ns.
"""

from __future__ import annotations

from dataclasses import dataclass

from refsim.base.errors import UserError

TILE = 32
CYCLES_PER_TILE = {"LoFi": 16, "HiFi2": 32, "HiFi3": 48, "HiFi4": 64}
"""Matrix engine cycles for one 32x32 by 32x32 product (tech_reports/GEMM_FLOPS)."""


@dataclass(frozen=True)
class Chip:
    """One device.

    Attributes:
        cores: worker cores of a program's grid, (x, y); source: tech_reports/Blackhole guide, sdpa_perf_utils.py.
        clock_ghz: worker clock (same).
        l1_bytes: per core (same).
        dram_gbytes, dram_gbps: capacity; bandwidth as measured (Saturating_DRAM_bandwidth; Blackhole per bank x 8).
        noc_gbps: one NoC's bytes per ns into a core: 32 B (Wormhole) or 64 B (Blackhole) per cycle (chip guides).
        l1_gbps: what all cores together write to each other's L1 in tiles of 2 KiB: 56 x 56 of them in 30,645 cycles on
            Wormhole, 110 x 110 in 39,021 on Blackhole (tt-metal's noc_latencies.yaml, ALL_TO_ALL).
        link_gbps: one Ethernet link, one direction (tech_reports/CCLs/CCL_bandwidth.md; Blackhole runs at half rate).
        link_payload: payload ceiling of a link (same).
        hop_ns: one more hop (same).
        packet_bytes: what a packet carries as tt_dit sets the fabric up: two bf16 tiles of the default's 4352 B, 8 KiB
            on a Blackhole Galaxy (``ring_params_8k``, tt-metal commit c2fca8dc).
    """

    arch: str
    cores: tuple[int, int]
    clock_ghz: float
    l1_bytes: int
    dram_gbytes: float
    dram_gbps: float
    noc_gbps: float
    l1_gbps: float
    link_gbps: float
    link_payload: float
    hop_ns: float
    packet_bytes: int = 4096

    @property
    def num_cores(self) -> int:
        return self.cores[0] * self.cores[1]

    def peak_tflops(self, fidelity: str, cores: int | None = None) -> float:
        """Return 2 FLOP per multiply-add of the matrix engines at their rate for ``fidelity``."""
        per_core = 2 * TILE**3 / CYCLES_PER_TILE[fidelity] * self.clock_ghz
        return per_core * (cores or self.num_cores) / 1000


_WORMHOLE = Chip("wormhole_b0", (8, 8), 1.0, 1464 * 1024, 12.0, 267.0, 32.0, 210.0, 12.5, 0.96, 711.0)
_BLACKHOLE = Chip("blackhole", (11, 10), 1.35, 1464 * 1024, 31.9, 512.0, 86.4, 857.0, 25.0, 0.96, 515.0)
CHIPS: dict[str, Chip] = {
    "wormhole_b0": _WORMHOLE,
    "blackhole": _BLACKHOLE,
    # Galaxy boards give a program more of the die: 8x9 and 12x10 (sdpa_perf_utils.py).
    "wormhole_b0-galaxy": Chip(**{**_WORMHOLE.__dict__, "cores": (8, 9)}),
    "blackhole-galaxy": Chip(**{**_BLACKHOLE.__dict__, "cores": (12, 10), "packet_bytes": 8192}),
}


def get_chip(arch: str, *, galaxy: bool = False) -> Chip:
    """Return the chip of an architecture, as a Galaxy has it or as a card does."""
    if arch not in ("wormhole_b0", "blackhole"):
        raise UserError(f"no chip '{arch}' is known; choose wormhole_b0 or blackhole.")
    return CHIPS[f"{arch}-galaxy" if galaxy else arch]
