"""Price one operation on one device: the larger of what its cores compute and what its memory and NoC move.

    matmul   see ``matmul.py``
    sdpa     see ``sdpa.py``
    tiles    elementwise, norms, layout: every core takes its tiles in turn (read, compute, write), or DRAM is the bound

``Params`` is all that is fitted; every other number is in ``chips.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from refsim.timing.cost.chips import TILE, Chip
from refsim.timing.read.tensors import BYTES

UNTILIZE_CYCLES = {"wormhole_b0": 57.0, "blackhole": 82.0}
"""A tile to rows: the packer's, tt-llk issue 131."""


@dataclass(frozen=True)
class Params:
    """What is fitted per architecture, on the calibration data alone, and what ``calibrate.py`` takes from documents.

    Attributes:
        launch_ns: of one program: dispatch to the first tile, last tile to done.
        unpack_cycles: one 2 KiB tile from L1 into a source register of the matrix engine.
        step_cycles: from one step of a subblock to the next one beyond the work itself (register handshake, packing).
        page_ns: one page (a tile) that a core reads from interleaved DRAM, many in flight.
        block_ns: a block of K beyond its reads in ttnn.matmul: DRAM latency and the semaphores of sender and receivers.
        relay_gbps: what one core takes and passes on of the blocks that minimal_matmul hands along.
        tile_ns: one tile read from DRAM, computed and written, in turn, on one core.
        dram_share: of the DRAM bandwidth that an op gets which reads and writes in turn.
        softmax_cycles: cycles per 32x32 score tile that the matrix engine waits for in SDPA.
        chunk_cycles: in SDPA, of a chunk of keys that meets a chunk of queries, beyond its tiles: the keys are handed
            on to the next core, running maximum, sum and output are rescaled.
        gap_ns: from one program's end to the next one's start under trace.
    """

    launch_ns: float
    unpack_cycles: float
    step_cycles: float
    page_ns: float
    block_ns: float
    relay_gbps: float
    tile_ns: float
    dram_share: float
    softmax_cycles: float
    chunk_cycles: float
    gap_ns: float


@dataclass(frozen=True)
class Cost:
    """Seconds are ns throughout. ``bound`` is the term that sets ``ns``: compute, dram, noc or launch."""

    ns: float
    bound: str
    compute_ns: float
    dram_ns: float
    ideal_ns: float

    def plus(self, other: Cost) -> Cost:
        first = self if self.ns >= other.ns else other
        return Cost(
            self.ns + other.ns,
            first.bound,
            self.compute_ns + other.compute_ns,
            self.dram_ns + other.dram_ns,
            self.ideal_ns + other.ideal_ns,
        )


def tiles(size: int) -> int:
    return -(-size // TILE)


def bounded(chip: Chip, launch: float, ideal: float, **terms: float) -> Cost:
    bound = max(terms, key=terms.__getitem__)
    if terms[bound] < launch:
        bound_name = "launch"
    else:
        bound_name = bound
    return Cost(launch + terms[bound], bound_name, terms["compute"], terms["dram"], ideal)


def by_tiles(
    chip: Chip,
    params: Params,
    elements: int,
    nbytes: float,
    *,
    width: int | None = None,
    cores: int | None = None,
    sharded: bool = False,
    sources: int = 1,
) -> Cost:
    """Return the cost of an op that takes tile after tile; the tiles of several operands are read together.

    Args:
        elements: of the largest operand or result.
        nbytes: read from and written to DRAM.
        width: a row of this many elements stays on one core (norms); None where every tile is on its own.
        sources: tiles read for one tile written (a reshape that cuts or joins rows).
        sharded: all in the core's own L1: a tile costs its passage through the engine only (32 bytes per cycle each
            way), and nothing waits for DRAM.
    """
    cores = cores or chip.num_cores
    if width is None:
        turns = -(-max(-(-elements // (TILE * TILE)), 1) // cores)
    else:
        rows = -(-max(elements, 1) // (width * TILE))
        turns = -(-rows // cores) * tiles(width)
    if sharded:
        per_tile = 2 * TILE * TILE * BYTES["bf16"] / 32 / chip.clock_ghz
        return bounded(chip, params.block_ns, 0.0, compute=turns * sources * per_tile, noc=0.0, dram=0.0)
    ideal = nbytes / chip.dram_gbps
    dram = nbytes / (chip.dram_gbps * params.dram_share)
    return bounded(chip, params.launch_ns, ideal, compute=turns * sources * params.tile_ns, noc=0.0, dram=dram)


def copy(chip: Chip, params: Params, nbytes: float, pages: int, cores: int) -> Cost:
    """Return the cost of a copy to or from DRAM: a core has many pages (tiles, rows) in flight, not as ``by_tiles``."""
    ideal = nbytes / chip.dram_gbps
    dram = nbytes / (chip.dram_gbps * params.dram_share)
    return bounded(chip, params.launch_ns, ideal, compute=0.0, noc=-(-pages // cores) * params.page_ns, dram=dram)


def l1_copy(chip: Chip, params: Params, nbytes: float, cores: int, untilized: int = 0) -> Cost:
    """Return the cost of data handed between cores' L1: each core's share over its NoC port, tiles made rows first."""
    noc = nbytes / cores / chip.noc_gbps
    compute = -(-untilized // cores) * UNTILIZE_CYCLES[chip.arch] / chip.clock_ghz
    return bounded(chip, params.block_ns + compute, noc, compute=0.0, noc=noc, dram=0.0)
