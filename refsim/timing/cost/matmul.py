"""Matrix products: TTNN's three kernels.

    minimal_matmul   M over one side of the core grid, N over the other. Blocks are handed from core to core along the
                     line: the first core reads DRAM, every core takes and passes on all of them (``relay_gbps``).
    ttnn.matmul      the first core of a row or column reads a block of K and multicasts it to its line; one block after
                     the other (``page_ns`` a tile, then the multicast, then semaphores). On one column of cores (1-D)
                     every core reads its own rows.
    conv2d           ttnn.matmul on the rows of a window that a core gathers from its own L1 and tilizes; pictures that
                     L1 does not hold come slice by slice from DRAM.

A step multiplies h x 1 by 1 x w tiles. The matrix engine is busy h w times its cycles; meanwhile h + w tiles are
unpacked into its source registers, which is slower for bf16 at LoFi and HiFi2: Wormhole, 2 x 2: 4 x 46 + 24 = 208
cycles, at HiFi4 4 x 64 + 24 (measured 209 and 281: minimax_h3_wormhole/ff1.md, experiments 16 and 17).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from refsim.timing.cost.chips import CYCLES_PER_TILE, TILE, Chip
from refsim.timing.cost.ops import Cost, Params, bounded, copy, l1_copy, tiles
from refsim.timing.read.tensors import BYTES

PACK_CYCLES = 2 * 16 + 9
"""Packing one tile of fp32, 16 cycles for each 2 KiB and 9 for the call (tt-metal issue 51901). Where ttnn.matmul does
not accumulate in L1 (``packer_l1_acc`` off), a partial sum is packed and, two tiles' worth, unpacked per block of K."""
TILIZE_CYCLES = {"wormhole_b0": 52.0, "blackhole": 57.0}
"""Rows to a tile: tt-llk issue 130 (Wormhole's unpacker), tt-metal pull request 49473 (Blackhole, L1 to L1)."""
ALONE_SHARE = 0.36
"""Share of the DRAM bandwidth when every core waits for its own read: bh_dram_read_microbenchmark.md, depth 1."""


def subblock(mb: int, nb: int, most: int) -> tuple[int, int]:
    """Return the tiles (h, w) of a block that a step computes: of those that divide it most, then fewest unpacked."""
    sizes = ((h, w) for h in range(1, most + 1) for w in range(1, most // h + 1) if mb % h == 0 and nb % w == 0)
    return max(sizes, key=lambda s: (s[0] * s[1], -s[0] - s[1]))


Place = Literal["dram", "l1", "own"]
Dtypes = str | tuple[str, str, str]
"""Of a product: one dtype of all, or those of first operand, second operand and result."""


def each_dtype(dtype: Dtypes) -> tuple[str, str, str]:
    return (dtype, dtype, dtype) if isinstance(dtype, str) else dtype


def _tile_bytes(dtype: Dtypes) -> tuple[float, float, float]:
    first, second, result = (BYTES[name] * TILE * TILE for name in each_dtype(dtype))
    return first, second, result


def tile_cycles(
    params: Params, sub: tuple[int, int], fidelity: str, dtype: Dtypes = "bf16", busy: float = 1.0
) -> float:
    """Return the cycles per product of two tiles when a step computes ``sub`` tiles; the unpacker goes by bytes, the
    engine is ``busy`` for that share of the time at most.
    """
    h, w = sub
    first, second, _ = each_dtype(dtype)
    unpack = (h * BYTES[first] + w * BYTES[second]) * params.unpack_cycles / BYTES["bf16"]
    return (max(h * w * CYCLES_PER_TILE[fidelity] / busy, unpack) + params.step_cycles) / (h * w)


def _issued(size: int, block: int, sub: int) -> int:
    """Return the tiles of one side that are computed: the last block is clipped, and rounded up to whole subblocks."""
    whole, rest = divmod(size, block)
    return (whole * -(-block // sub) + -(-rest // sub)) * sub


@dataclass(frozen=True)
class MatmulConfig:
    """How minimal_matmul is carried out.

    Attributes:
        fidelity, dtype: of the arithmetic and of the tensors.
        grid: cores for m, cores for n; the op's choice on the chip's grid if not given: transposed where m > n.
        block: tiles of M, K and N that a core holds at a time.
        sub: tiles of M and N that a step computes.
    """

    fidelity: str = "HiFi2"
    dtype: Dtypes = "bf16"
    grid: tuple[int, int] | None = None
    block: tuple[int, int, int] = (8, 8, 8)
    sub: tuple[int, int] | None = None


def matmul(
    chip: Chip, params: Params, m: int, k: int, n: int, config: MatmulConfig = MatmulConfig(), *, batch: int = 1
) -> Cost:
    """Return the cost of minimal_matmul: (batch, m, k) x (k, n), all interleaved in DRAM."""
    fidelity = config.fidelity
    dtype = config.dtype
    mt = tiles(m)
    kt = tiles(k)
    nt = tiles(n)
    size0, size1, size = _tile_bytes(dtype)
    rows, columns = config.grid or (chip.cores if m > n else chip.cores[::-1])
    per_tile = CYCLES_PER_TILE[fidelity] / chip.clock_ghz
    ideal_compute = batch * m * k * n / TILE**3 * per_tile / (rows * columns)
    least = (batch * m * (k * size0 + n * size) + k * n * size1) / TILE**2
    ideal = max(ideal_compute, least / chip.dram_gbps)
    mc = -(-mt // rows)
    nc = -(-nt // columns)
    kb = config.block[1]
    mb = min(config.block[0], mc)
    nb = min(config.block[2], nc)
    passes_m = -(-mc // mb)
    passes_n = -(-nc // nb)
    padded = -(-kt // kb) * kb  # K is filled up with zeros to whole blocks; M and N are clipped
    h, w = config.sub or subblock(config.block[0], config.block[2], 4)  # sums in fp32 leave 4 destination registers
    sub = min(h, mb), min(w, nb)
    cycles = batch * tile_cycles(params, sub, fidelity, dtype) / chip.clock_ghz
    compute = cycles * _issued(mc, mb, sub[0]) * _issued(nc, nb, sub[1]) * padded
    in0 = batch * mc * size0 * passes_n
    in1 = batch * nc * size1 * passes_m
    noc = max(in0, in1) * padded / params.relay_gbps
    moved = (min(rows, mt) * in0 + min(columns, nt) * in1) * kt + batch * mt * nt * size
    dram = moved / chip.dram_gbps
    # Double buffering: the first block is read before anything is computed, the last computed after all is read.
    compute += max(mb * size0, nb * size1) * kb / params.relay_gbps
    noc += cycles / batch * _issued(mb, mb, sub[0]) * _issued(nb, nb, sub[1]) * kb
    chain = max(mb * size0 * (columns - 1), nb * size1 * (rows - 1)) * kb / chip.noc_gbps
    drain = min(mb * nb * rows * columns, mt * nt) * size / chip.dram_gbps
    return bounded(chip, params.launch_ns + chain + drain, ideal, compute=compute, noc=noc, dram=dram)


def _halved_to_fit(chip: Chip, mb: int, nb: int, kb: int, dtype: Dtypes) -> tuple[int, int]:
    """Return the tiles of the output block, halved until it and two pairs of input blocks fit three quarters of L1."""
    size0, size1, size = _tile_bytes(dtype)
    while mb * nb * size + 2 * kb * (mb * size0 + nb * size1) > 0.75 * chip.l1_bytes and mb * nb > 1:
        mb, nb = (-(-mb // 2), nb) if mb > nb else (mb, -(-nb // 2))
    return mb, nb


def k_block(kt: int, grid: tuple[int, int]) -> int:
    """Return the tiles of K per block as ttnn.matmul chooses them (``create_simple_matmul_program_config``): two, or
    one, in 1-D; on a grid one share of K for each column of cores, or one tile where that does not divide.
    """
    if 1 in grid:
        return 2 if kt % 2 == 0 else 1
    return kt // grid[1] if kt % grid[1] == 0 else 1


@dataclass(frozen=True)
class MulticastConfig:
    """How ttnn.matmul is carried out.

    Attributes:
        grid: cores for m, cores for n.
        fidelity, dtype: of the arithmetic and of the tensors.
        kb: tiles of K per block.
        sub: tiles of M and N that a step computes.
        places: where first operand, second operand and output lie: in DRAM, in the L1 of all cores (interleaved), or in
            the L1 of the core that uses them (sharded).
        spills: partial sums are packed and unpacked per block of K.
        out_block: tiles of M and N of the output block; halved until it fits L1 if not given.
        tilized: tiles that a core makes of rows first (conv2d).
        handed_on: blocks of rows that cores tilize and multicast in turn, while the others wait (block-sharded conv2d).
        busy: share of the time that the engine may be at work (TT_MM_THROTTLE_PERF).
    """

    grid: tuple[int, int]
    fidelity: str = "HiFi2"
    dtype: Dtypes = "bf16"
    kb: int | None = None
    sub: tuple[int, int] | None = None
    places: tuple[Place, Place, Place] = ("dram", "dram", "dram")
    spills: bool = False
    out_block: tuple[int, int] | None = None
    tilized: int = 0
    handed_on: int = 0
    busy: float = 1.0


def _gbps(chip: Chip, place: Place, alone: bool = False) -> float:
    """Return the bytes per ns between the cores and what lies in ``place``; ``alone``: every core waits for its own."""
    return {"dram": chip.dram_gbps * (ALONE_SHARE if alone else 1.0), "l1": chip.l1_gbps, "own": math.inf}[place]


def multicast_matmul(chip: Chip, params: Params, m: int, k: int, n: int, config: MulticastConfig) -> Cost:
    """Return the cost of ttnn.matmul: (m, k) x (k, n)."""
    fidelity = config.fidelity
    dtype = config.dtype
    places = config.places
    spills = config.spills
    mt = tiles(m)
    kt = tiles(k)
    nt = tiles(n)
    size0, size1, size = _tile_bytes(dtype)
    rows, columns = config.grid
    ideal_compute = m * k * n / TILE**3 * CYCLES_PER_TILE[fidelity] / chip.clock_ghz / (rows * columns)
    moved = zip((m * k * size0, k * n * size1, m * n * size), places, strict=True)
    ideal = max(ideal_compute, sum(nbytes for nbytes, at in moved if at == "dram") / TILE**2 / chip.dram_gbps)
    mc = -(-mt // rows)
    nc = -(-nt // columns)
    kb = min(config.kb or k_block(kt, config.grid), kt)
    mb, nb = config.out_block or _halved_to_fit(chip, mc, nc, kb, dtype)
    passes_m = -(-mc // mb)
    passes_n = -(-nc // nb)
    k_blocks = -(-kt // kb)
    blocks = k_blocks * passes_m * passes_n
    sub = config.sub or subblock(mb, nb, 4 if spills else 8)
    issued = _issued(mc, mb, sub[0]) * _issued(nc, nb, sub[1])
    cycles = (
        issued * kt * tile_cycles(params, sub, fidelity, dtype, config.busy) + config.tilized * TILIZE_CYCLES[chip.arch]
    )
    if spills:
        cycles += (k_blocks - 1) * mc * nc * (PACK_CYCLES + 2 * params.unpack_cycles)
    compute = cycles / chip.clock_ghz + config.handed_on * params.block_ns
    alone = columns == 1
    local = [place == "own" for place in places]
    read = max(
        0.0 if local[0] or alone else mb * kb * (params.page_ns + size0 / chip.noc_gbps),
        0.0 if local[1] else nb * kb * (params.page_ns + size1 / chip.noc_gbps),
    )
    noc = blocks * (read + (params.block_ns if read or not local[0] else 0.0))
    in0 = mt * kt * passes_n * size0
    in1 = kt * nt * passes_m * size1
    out = mt * nt * size
    memory = in0 / _gbps(chip, places[0], alone) + in1 / _gbps(chip, places[1])
    # The core that hands blocks on also writes the output, and only then goes on.
    last_block = out if alone else min(mb * nb * rows * columns, mt * nt) * size
    drain = last_block / _gbps(chip, places[2], alone)
    if not alone:
        memory += out / _gbps(chip, places[2])
    # Nothing is computed before it is read, nor read after it.
    first = max(noc, memory) / blocks
    last = compute / blocks
    compute = compute + first
    noc = noc + last
    memory = memory + last
    return bounded(chip, params.launch_ns + drain, ideal, compute=compute, noc=noc, dram=memory)


def sliced_conv2d(
    chip: Chip, params: Params, pixels: int, cin: int, cout: int, kernel: int, *, slices: int, fidelity: str
) -> Cost:
    """Return the cost of ttnn.conv2d on a picture in DRAM, slice by slice: it is read and made rows, edges are
    exchanged, it is multiplied and written.

    As tt_dit calls it (layers/conv2d.py): height-sharded, blocks of one row of tiles, fp32 sums that leave the engine.
    """
    rows = -(-pixels // slices)
    cores = chip.num_cores
    nbytes = rows * cin * BYTES["bf16"]
    pages = -(-rows * cin // TILE**2)
    kt = kernel**2 * tiles(cin)
    nt = tiles(cout)
    read = copy(chip, params, nbytes, pages, cores).plus(l1_copy(chip, params, nbytes, cores, pages))
    config = MulticastConfig(
        (cores, 1), fidelity, kb=kernel * tiles(cin), sub=(1, subblock(1, nt, 4)[1]), places=("own", "dram", "own"),
        spills=True, tilized=-(-tiles(rows) // cores) * kt,
    )  # fmt: skip
    product = multicast_matmul(chip, params, rows, kt * TILE, nt * TILE, config)
    written = copy(chip, params, rows * cout * BYTES["bf16"], -(-rows * cout // TILE**2), cores)
    whole = read.plus(product).plus(written)
    return Cost(
        slices * whole.ns, whole.bound, slices * whole.compute_ns, slices * whole.dram_ns, slices * product.ideal_ns
    )


def batched_matmul(
    chip: Chip, params: Params, sizes: tuple[int, int, int, int], *, cores: int, fidelity: str, dtype: Dtypes = "bf16"
) -> Cost:
    """Return the cost of a batch of products of ``sizes`` (batch, m, k, n): whole ones on a core each where there are
    cores for all, else tile by tile on a few.

    A core reads a block of K of both operands, waits for it and writes its tiles when done; for single tiles both
    operands' tiles are read in turn.
    """
    batch, mt, kt, nt = sizes[0], *(tiles(side) for side in sizes[1:])
    size0, size1, size = _tile_bytes(dtype)
    moved = batch * (mt * kt * size0 + kt * nt * size1 + mt * nt * size)
    if cores >= batch and mt * nt > 1:
        compute = mt * nt * kt * tile_cycles(params, subblock(mt, nt, 4), fidelity, dtype) / chip.clock_ghz
        dram = moved / (chip.dram_gbps * ALONE_SHARE)
        return bounded(chip, params.launch_ns, moved / chip.dram_gbps, compute=compute, noc=0.0, dram=dram)
    turns = -(-(batch * mt * nt) // cores)
    dram = moved / chip.dram_gbps
    return bounded(chip, params.launch_ns, dram, compute=2 * turns * params.tile_ns, noc=0.0, dram=dram)
