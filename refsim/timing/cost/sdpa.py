"""Scaled dot-product attention on one device: whole chunks of queries, dealt out to the cores, meet chunks of keys.

    core  q chunk |k chunk 0     |k chunk 1     |...     a pair of chunks: products in steps of a subblock
                  |QK softmax PV |QK softmax PV |        (``matmul.py``), softmax_cycles a tile of scores, chunk_cycles

Both are fitted on published ring attention of 128-wide heads (``calibrate.py``); nothing of wider heads is.
"""

from __future__ import annotations

from dataclasses import dataclass

from refsim.timing.cost.chips import Chip
from refsim.timing.cost.matmul import subblock, tile_cycles
from refsim.timing.cost.ops import Cost, Params, bounded, tiles
from refsim.timing.read.tensors import BYTES

SUBBLOCK = 8
"""Tiles of a step: sums are not in fp32, so that they fill all destination registers."""
VALUE_ROWS = 2
"""Rows of tiles at most of a step of the product with the values (``ring_joint_sdpa_program_factory.cpp``)."""

SERIAL_CYCLES = 212.0
"""Of a tile of scores where exponentials run after products, not beside them: what ``published.SDPA_SERIAL`` took
longer than what runs beside would have."""


@dataclass(frozen=True)
class SDPAConfig:
    """How attention is carried out.

    Attributes:
        fidelity: of the arithmetic.
        cores: all if not given.
        q_chunk, k_chunk: rows of queries and of keys per chunk.
        causal: a query sees the keys up to its own row; chunks of keys behind it are left out.
        value_width: of a value; that of a key if not given (they differ in latent attention).
        dtype: of keys and values.
        serial: products and exponentials take turns, as in causal rings until April 2026.
    """

    fidelity: str = "HiFi2"
    cores: int | None = None
    q_chunk: int = 256
    k_chunk: int = 512
    causal: bool = False
    value_width: int | None = None
    dtype: str = "bf16"
    serial: bool = False


def sdpa(
    chip: Chip, params: Params, batch: int, heads: int, m: int, n: int, e: int, config: SDPAConfig = SDPAConfig()
) -> Cost:
    """Return the cost of attention of m queries to n keys, ``heads`` of width ``e``.

    Cores on one head hand its keys and values on, so that they are read once per turn: without that, 128 queries per
    core on Blackhole would be DRAM-bound far below the 68 % that is measured.
    """
    cores = config.cores or chip.num_cores
    v = config.value_width or e
    q_chunk = config.q_chunk
    k_chunk = config.k_chunk  # a shorter sequence is padded to a whole chunk
    chunks = batch * heads * -(-m // q_chunk)
    turns = -(-chunks // cores)
    all_k = -(-n // k_chunk)
    if config.causal:  # early and late chunks of queries are paired on the cores; a core has no less than the last one
        seen = [min(-(-(i + 1) * q_chunk // k_chunk), all_k) for i in range(-(-m // q_chunk))]
        k_chunks = max(turns * sum(seen) / len(seen), seen[-1])
    else:
        k_chunks = turns * all_k
    pair = _pair_cycles(params, tiles(q_chunk), tiles(k_chunk), tiles(e), tiles(v), config)
    keys = min(k_chunks * k_chunk, turns * n) * batch * heads * (e + v) * BYTES[config.dtype]
    dram = (batch * heads * m * (e + v) * BYTES["bf16"] + keys) / chip.dram_gbps
    first = min(m, n)  # queries that do not see all keys
    pairs = first * (first + 1) / 2 + (m - first) * n if config.causal else m * n
    ideal = 2 * batch * heads * pairs * (e + v) / chip.peak_tflops(config.fidelity) / 1000
    return bounded(chip, params.launch_ns, ideal, compute=k_chunks * pair / chip.clock_ghz, noc=0.0, dram=dram)


def _pair_cycles(params: Params, qt: int, kt: int, et: int, vt: int, config: SDPAConfig) -> float:
    """Return the cycles of a chunk of queries with one of keys, sizes in tiles."""
    dtypes = ("bf16", config.dtype, "bf16")
    scores = et * tile_cycles(params, subblock(qt, kt, SUBBLOCK), config.fidelity, dtypes)
    rows = next(h for h in (VALUE_ROWS, 1) if qt % h == 0)
    values = vt * tile_cycles(params, subblock(rows, vt, SUBBLOCK), config.fidelity, dtypes)
    softmax = params.softmax_cycles + (SERIAL_CYCLES if config.serial else 0.0)
    return qt * kt * (scores + values + softmax) + params.chunk_cycles
