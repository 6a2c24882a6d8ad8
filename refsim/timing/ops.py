"""Time of one operation on one device: the larger of what its cores compute and what its memory and NoC move.

    matmul   M over one side of the core grid, N over the other; K runs in blocks.
             compute  output tiles of the fullest core x K tiles x cycles of a step of one subblock
             noc      ttnn.matmul: the first core of each row and column reads DRAM for all of its line (multicast)
                      minimal_matmul: blocks are handed from core to core, every core takes and passes on all of them
             dram     all of that at the chip's bandwidth
             + the fill: the first block is handed from core to core along the line; + one launch
    sdpa     two matmuls per (query, key) tile pair and the softmax of that tile between them; the K/V read hides
    tiles    elementwise, norms, layout: every core takes its tiles in turn (read, compute, write), or DRAM is the bound

A step multiplies h x 1 by 1 x w tiles. The matrix engine is busy h w times its cycles; meanwhile h + w tiles are
unpacked into its source registers, which is slower for bf16 at LoFi and HiFi2: Wormhole, 2 x 2: 4 x 46 + 24 = 208
cycles, at HiFi4 4 x 64 + 24 (measured 209 and 281: minimax_h3_wormhole/ff1.md, experiments 16 and 17).

``Params`` is all that is fitted; every other number is in ``chips.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from refsim.timing.chips import BYTES, CYCLES_PER_TILE, TILE, Chip


@dataclass(frozen=True)
class Params:
    """What is fitted per architecture, on the calibration data alone, and what ``calibration.py`` takes from documents.

    Attributes:
        launch_ns: of one program: dispatch to the first tile, last tile to done.
        unpack_cycles: one 2 KiB tile from L1 into a source register of the matrix engine.
        step_cycles: from one step of a subblock to the next one beyond the work itself (register handshake, packing).
        reader_gbps: what one core draws from interleaved DRAM.
        relay_gbps: what one core takes and passes on of the blocks that minimal_matmul hands along.
        tile_ns: one tile read from DRAM, computed and written, in turn, on one core.
        dram_share: of the DRAM bandwidth that an op gets which reads and writes in turn.
        softmax_cycles: cycles per 32x32 score tile that the matrix engine waits for in SDPA.
        gap_ns: from one program's end to the next one's start under trace.
    """

    launch_ns: float
    unpack_cycles: float
    step_cycles: float
    reader_gbps: float
    relay_gbps: float
    tile_ns: float
    dram_share: float
    softmax_cycles: float
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


def _cost(chip: Chip, launch: float, ideal: float, **terms: float) -> Cost:
    bound = max(terms, key=terms.__getitem__)
    if terms[bound] < launch:
        bound_name = "launch"
    else:
        bound_name = bound
    return Cost(launch + terms[bound], bound_name, terms["compute"], terms["dram"], ideal)


def subblock(mb: int, nb: int, most: int) -> tuple[int, int]:
    """The tiles (h, w) of a block that a step computes: of those that divide it, most tiles, then fewest unpacked."""
    found = ((h, w) for h in range(1, most + 1) for w in range(1, most // h + 1) if mb % h == 0 and nb % w == 0)
    return max(found, key=lambda s: (s[0] * s[1], -s[0] - s[1]))


def tile_cycles(params: Params, sub: tuple[int, int], fidelity: str, dtype: str = "bf16") -> float:
    """Cycles per product of two tiles when a step computes ``sub`` tiles; block floats are unpacked at bf16's pace."""
    h, w = sub
    unpack = (h + w) * params.unpack_cycles * max(BYTES[dtype] / BYTES["bf16"], 0.5)
    return (max(h * w * CYCLES_PER_TILE[fidelity], unpack) + params.step_cycles) / (h * w)


def _issued(size: int, block: int, sub: int) -> int:
    """Tiles of one side that are computed: the last block is clipped, and rounded up to whole subblocks."""
    whole, rest = divmod(size, block)
    return (whole * -(-block // sub) + -(-rest // sub)) * sub


def matmul(
    chip: Chip,
    params: Params,
    m: int,
    k: int,
    n: int,
    *,
    batch: int = 1,
    fidelity: str = "HiFi2",
    dtype: str = "bf16",
    grid: tuple[int, int] | None = None,
    block: tuple[int, int, int] = (8, 8, 8),
    sub: tuple[int, int] | None = None,
    multicast: bool = False,
    in_l1: tuple[bool, bool, bool] = (False, False, False),
) -> Cost:
    """A product (batch, m, k) x (k, n), interleaved in DRAM unless said otherwise.

    Args:
        grid: cores for m, cores for n; minimal_matmul's choice on the chip's grid if not given.
        block: tiles of M, K and N that a core holds at a time.
        sub: tiles of M and N that a step computes; as ttnn chooses them if not given.
        multicast: ttnn.matmul: blocks go to a whole line at once, and a core keeps its whole output where L1 holds it;
            otherwise minimal_matmul: blocks are handed from core to core.
        in_l1: first operand, second operand, output: sharded in L1, where they are used.
    """
    mt, kt, nt = tiles(m), tiles(k), tiles(n)
    size = BYTES[dtype] * TILE * TILE
    rows, columns = grid or (chip.cores if m > n else chip.cores[::-1])
    per_tile = CYCLES_PER_TILE[fidelity] / chip.clock_ghz
    ideal_compute = batch * m * k * n / TILE**3 * per_tile / (rows * columns)
    outside = [bytes_ for bytes_, l1 in zip((batch * m * k, k * n, batch * m * n), in_l1, strict=True) if not l1]
    ideal = max(ideal_compute, sum(outside) * BYTES[dtype] / chip.dram_gbps)
    mc, nc = -(-mt // rows), -(-nt // columns)
    mb, kb, nb = (min(b, have) for b, have in zip(block, (mc, kt, nc), strict=True))
    if multicast:  # output and two pairs of input blocks in three quarters of L1, or halves of the output
        kb, mb, nb = min(kb, 2), mc, nc
        while (mb * nb + 2 * kb * (mb + nb)) * size > 0.75 * chip.l1_bytes and mb * nb > 1:
            mb, nb = (-(-mb // 2), nb) if mb > nb else (mb, -(-nb // 2))
    passes_m, passes_n = -(-mc // mb), -(-nc // nb)
    steps = -(-kt // kb) * passes_m * passes_n
    # minimal_matmul accumulates in fp32, which halves the destination registers to 4 tiles
    sub = sub or subblock(mb, nb, 8 if multicast else 4)
    issued = _issued(mc, mb, sub[0]) * _issued(nc, nb, sub[1])
    compute = batch * issued * kt * tile_cycles(params, sub, fidelity, dtype) / chip.clock_ghz
    in0 = 0.0 if in_l1[0] else batch * mc * kt * size * passes_n
    in1 = 0.0 if in_l1[1] else batch * nc * kt * size * passes_m
    noc = max(in0, in1) / (params.reader_gbps if multicast else params.relay_gbps)
    moved = min(rows, mt) * in0 + min(columns, nt) * in1 + (0 if in_l1[2] else batch * mt * nt * size)
    dram = moved / chip.dram_gbps
    # Double buffering: the first block is read before anything is computed, the last computed after all is read.
    compute, noc = compute + noc / steps / batch, noc + compute / steps / batch
    hops = (1, 1) if multicast else (columns - 1, rows - 1)
    chain = max(0 if in_l1[0] else mb * hops[0], 0 if in_l1[1] else nb * hops[1]) * kb * size / chip.noc_gbps
    drain = 0.0 if in_l1[2] else min(mb * nb * rows * columns, mt * nt) * size / chip.dram_gbps
    return _cost(chip, params.launch_ns + chain + drain, ideal, compute=compute, noc=noc, dram=dram)


def batched_matmul(chip: Chip, params: Params, batch: int, m: int, k: int, n: int, *, cores: int) -> Cost:
    """Many small products, each on one core: both operands' tiles are read in turn (ttnn's default for a batch)."""
    mt, kt, nt = tiles(m), tiles(k), tiles(n)
    turns = -(-(batch * mt * nt) // cores)
    size = batch * (mt * kt + kt * nt + mt * nt) * BYTES["bf16"] * TILE * TILE
    dram = size / chip.dram_gbps
    return _cost(chip, params.launch_ns, dram, compute=2 * turns * params.tile_ns, noc=0.0, dram=dram)


def sdpa(
    chip: Chip,
    params: Params,
    batch: int,
    heads: int,
    m: int,
    n: int,
    e: int,
    *,
    fidelity: str = "HiFi2",
    cores: int | None = None,
    q_chunk: int = 256,
    k_chunk: int = 512,
) -> Cost:
    """Attention of m queries to n keys, ``heads`` of width ``e``: whole query chunks, dealt out to the cores.

    Cores on one head hand its keys and values on, so that they are read once per turn: without that, 128 queries per
    core on Blackhole would be DRAM-bound far below the 68 % that is measured.
    """
    cores = cores or chip.num_cores
    q_chunk, k_chunk = min(q_chunk, TILE * tiles(m)), min(k_chunk, TILE * tiles(n))
    chunks = batch * heads * -(-m // q_chunk)
    turns = -(-chunks // cores)
    pairs = tiles(q_chunk) * tiles(k_chunk) * -(-n // k_chunk)
    math_cycles = 2 * tiles(e) * CYCLES_PER_TILE[fidelity]
    compute = turns * pairs * (math_cycles + params.softmax_cycles) / chip.clock_ghz
    keys = 2 * batch * heads * n * e * BYTES["bf16"]
    dram = (2 * batch * heads * m * e * BYTES["bf16"] + keys * turns) / chip.dram_gbps
    ideal = 4 * batch * heads * m * n * e / chip.peak_tflops(fidelity) / 1000
    return _cost(chip, params.launch_ns, ideal, compute=compute, noc=0.0, dram=dram)


def by_tiles(
    chip: Chip,
    params: Params,
    read: int,
    written: int,
    *,
    width: int | None = None,
    dtype: str = "bf16",
    cores: int | None = None,
    in_l1: bool = False,
    sources: int = 1,
) -> Cost:
    """An op that takes tile after tile.

    Args:
        read, written: elements.
        width: a row of this many elements stays on one core (norms); None where every tile is on its own.
        sources: tiles read for one tile written (a reshape that cuts or joins rows).
        in_l1: sharded operands: a tile costs its passage through the engine only (16 rows of 64 B per face line).
    """
    cores = cores or chip.num_cores
    largest = -(-max(read, written) // (TILE * TILE)) if width is None else 0
    if width is None:
        turns = -(-max(largest, 1) // cores)
    else:
        rows = -(-max(read, 1) // (width * TILE))
        turns = -(-rows // cores) * tiles(width)
    moved = (read + written) * BYTES[dtype]
    if in_l1:
        per_tile, dram = 2 * TILE * TILE * BYTES[dtype] / 32 / chip.clock_ghz, 0.0
    else:
        per_tile, dram = params.tile_ns, moved / (chip.dram_gbps * params.dram_share)
    return _cost(chip, params.launch_ns, moved / chip.dram_gbps, compute=turns * sources * per_tile, noc=0.0, dram=dram)


def copy(chip: Chip, params: Params, nbytes: float, cores: int) -> Cost:
    """DRAM to L1 or back with nothing computed: a core has many reads in flight, other than ``by_tiles``."""
    noc, dram = nbytes / cores / params.reader_gbps, nbytes / chip.dram_gbps
    return _cost(chip, params.launch_ns, dram, compute=0.0, noc=noc, dram=dram)


def l1_copy(chip: Chip, params: Params, nbytes: float, cores: int) -> Cost:
    """Data handed between cores' L1, or within one: each core's share over its NoC port."""
    noc = nbytes / cores / chip.noc_gbps
    return _cost(chip, params.launch_ns, noc, compute=0.0, noc=noc, dram=0.0)


def tflops(flops: float, ns: float) -> float:
    return flops / ns / 1000 if ns else math.nan
