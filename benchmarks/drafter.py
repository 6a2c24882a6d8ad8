"""Time of one forward of the DFlash drafter on one Blackhole chip, by context length; cached and not.

    8 layers   norm | concat | q, k, v | reshape 2 | norm 2 | reshape 2 | rotation 2 | 4 of K and V, concat 2, 2 of Q,
               sdpa, 2 of its result | o + residual | norm | gate and up | down + residual | slice 2 (the cache)
    TT-Lang    norms, matmuls, rotation: the host waits before and after each
    TTNN       all else: the host hands them over one by one, the chip works meanwhile

The program is that of the document's repository (zoecarver/dflash@eb3c338, dflash_draft.py and src/), with which the
counters in the document agree. fc runs before what it times. Rows of the noise and rows handed in are padded to tiles
apart. Its kernels share work out by the column of a core alone, so that all ten rows of cores do the same, and wait for
what they read before they ask for more:

    gate and up  48 blocks of 1 x 4 tiles, 10 columns: 276,480 reads, 960 read barriers, 1,920 writes
    down         8 blocks of 1 x 8 tiles, 8 columns: 138,880 reads, 30,800 read barriers, 640 writes

Nothing here is fitted on the document: ``launch_ns``, ``tile_ns``, ``dram_share`` are those of the stored calibration
(348 of 512 GB/s, as cores at arbitrary places read), ``EAGER_GAP_NS`` is a MiniMax-H3 block's: 56 us; under the
profiler, the host of the trace of 8 P150 takes 55 us an operation (``HOST DURATION``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from refsim.models.dflash.config import DFlashConfig
from refsim.models.dflash.spec import SPEC
from refsim.timing.cost.chips import CYCLES_PER_TILE, TILE, get_chip
from refsim.timing.cost.device_ops import cost_of
from refsim.timing.cost.fitted import get_params
from refsim.timing.cost.ops import Cost, bounded, tiles
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.predict.stages import EAGER_GAP_NS
from refsim.timing.read.device_op import DeviceOp
from refsim.timing.read.tensors import BYTES, OpTensor

# One forward on a Blackhole chip in TT-Lang kernels and TTNN, as the document says that these predictions are compared
# with.
DOCUMENT = {  # context: wall, TT-Lang, TTNN in ms; context-only cache, 3 new rows, 5 timed runs, no trace
    2000: (48.2, 40.7, 7.5), 4000: (48.1, 40.7, 7.4), 8000: (51.0, 40.5, 10.6), 16000: (57.4, 40.4, 17.0),
    32000: (70.6, 40.9, 29.7), 64000: (95.9, 40.6, 55.3), 120000: (143.1, 43.0, 100.1),
}  # fmt: skip
DOCUMENT_OPS = {  # at 120,000: average ms, runs per forward, the document's verdict where it gives one
    "gate_up+silu": (1.640, 8, "96% compute bound"), "down+resadd": (0.837, 8, "2% memory bound"),
    "o_proj+resadd": (0.700, 8, ""), "q_proj": (0.664, 8, ""), "k_proj": (0.275, 8, ""), "pa_rmsnorm": (0.273, 8, ""),
    "qk_rmsnorm": (0.127, 16, ""), "v_proj": (0.244, 8, ""), "in_rmsnorm": (0.228, 8, ""), "q_rope": (0.136, 8, ""),
    "k_rope": (0.090, 8, ""), "fn_rmsnorm": (0.217, 1, ""),
}  # fmt: skip

PAGE = TILE * TILE * 2
READ_CYCLES = 539.0
MORE_CYCLES = 34.0
"""One core on Blackhole reads a tile of interleaved DRAM and waits for it; each further tile before it waits
(tt_metal/impl/experimental/noc_estimator/latencies/noc_latencies.yaml: 1 of 2048 bytes 539 cycles, 256 of them 9173).
"""
MASK_WAITS = 1
KV_TILES = 2
"""Reads that SDPA waits for: a tile of the mask; two tiles of K or V at a time, which is what 110 cores get of
``get_barrier_read_threshold`` (sdpa/device/kernels/dataflow/dataflow_common.hpp)."""
CHUNK_ROWS = 4
"""Rows of tiles in the smallest chunk of queries that ``chunk_cycles`` is fitted on (``fit/linears.csv``); TTNN's
own choice is one row of queries and one of keys (``sdpa_program_factory.cpp``)."""
CODES = {
    "concat": "ConcatDeviceOperation", "multiply": "BinaryNgDeviceOperation", "reshape": "ReshapeDeviceOperation",
    "slice": "SliceDeviceOperation", "tilize": "TilizeWithValPaddingDeviceOperation",
    "transpose": "TransposeDeviceOperation", "untilize": "UntilizeWithUnpaddingDeviceOperation",
}  # fmt: skip
CHIP = get_chip("blackhole")
PARAMS = get_params("blackhole")
DRAM_GBPS = CHIP.dram_gbps * PARAMS.dram_share
COLUMNS, ROWS = CHIP.cores


@dataclass(frozen=True)
class Kernel:
    """One program of a forward.

    Attributes:
        toolchain: ``tt-lang`` or ``ttnn``.
        cost: predicted, once it runs.
        flops, nbytes: what the arithmetic needs at least.
        moved: bytes it is predicted to read and write.
    """

    name: str
    toolchain: str
    cost: Cost
    flops: float
    nbytes: float
    moved: float

    @property
    def ns(self) -> float:
        """Return the ns as the document has them: from the host for TT-Lang; on the chip for TTNN."""
        return self.cost.ns + (EAGER_GAP_NS if self.toolchain == "tt-lang" else 0.0)

    @property
    def verdict(self) -> str:
        """Say which of the chip's roofs the arithmetic itself is under."""
        return "compute" if self.flops / CHIP.peak_tflops("HiFi2") / 1000 > self.nbytes / CHIP.dram_gbps else "memory"

    @property
    def roofline_ns(self) -> float:
        return max(self.flops / CHIP.peak_tflops("HiFi2") / 1000, self.nbytes / CHIP.dram_gbps)


def forward(context: int, *, new: int = 3, cached: bool = True) -> list[Kernel]:
    """Return the programs of one forward with ``context`` rows in the cache and ``new`` handed in.

    Without a cache all rows are handed in; what fc made of them is kept, and the upload of outputs is not counted.
    """
    config = DFlashConfig.from_dict(SPEC.published[0].config)
    d = config.hidden_size
    e = config.head_dim
    q = config.num_attention_heads * e
    kv = config.num_key_value_heads * e
    noise = _padded(config.block_size)
    new_rows = _padded(new if cached else context)
    rows = new_rows + noise
    q_flat = _tile(1, 1, noise, q)
    q_heads = _tile(1, 1, noise * q // e, e)
    k_flat = _tile(1, 1, rows, kv)
    k_heads = _tile(1, 1, rows * kv // e, e)
    kernels: list[Kernel] = []
    for _ in range(config.num_hidden_layers):
        kernels += [_norm("in_rmsnorm", noise, d), _matmul("q_proj", noise, d, q)]
        kernels += [_op("concat", _tile(1, 1, rows, d), _tile(1, 1, new_rows, d), _tile(1, 1, noise, d))]
        kernels += [_matmul("k_proj", rows, d, kv), _matmul("v_proj", rows, d, kv)]
        kernels += [_op("reshape", q_heads, q_flat), _op("reshape", k_heads, k_flat)]
        kernels += [_norm("qk_rmsnorm", noise * q // e, e), _norm("qk_rmsnorm", rows * kv // e, e)]
        kernels += [_op("reshape", q_flat, q_heads), _op("reshape", k_flat, k_heads)]
        kernels += [_rotary("q_rope", noise, q, e), _rotary("k_rope", rows, kv, e)]
        kernels += _attention(context if cached else 0, noise, rows, config)
        kernels += [_matmul("o_proj+resadd", noise, q, d), _norm("pa_rmsnorm", noise, d)]
        kernels += [_matmul("gate_up+silu", noise, d, config.intermediate_size)]
        kernels += [_matmul("down+resadd", noise, config.intermediate_size, d)]
        if cached:
            whole, last = (_tile(1, kv // e, context + n, e) for n in (rows, new))
            kernels += [_op("slice", last, whole, name="cache slice")] * 2
    return [*kernels, _norm("fn_rmsnorm", noise, d)]


def _padded(rows: int) -> int:
    return TILE * tiles(rows)


def _read_ns(count: int) -> float:
    """Return the ns in which one core reads ``count`` tiles and then waits for them."""
    return (READ_CYCLES + (count - 1) * MORE_CYCLES) / CHIP.clock_ghz


def _matmul(name: str, rows: int, k: int, n: int) -> Kernel:
    """Price one of the document's matmuls: blocks of one row of tiles, no core shares what it reads.

    A block of gate and up takes all of K at once; the others take K tile by tile, and the first operand of those with
    a residual comes by the other data movement core.
    """
    residual = name.endswith("resadd")
    weights = 2 if name == "gate_up+silu" else 1
    wide = 4 if weights == 2 else 8
    kt = tiles(k)
    blocks = tiles(rows) * -(-tiles(n) // wide)
    turns = -(-blocks // COLUMNS)
    pages = kt * (1 + wide * weights) + (wide if residual else 0)
    if weights == 2:
        reading = _read_ns(kt * (1 + wide))
    elif residual:
        reading = (kt + 1) * _read_ns(wide)
    else:
        reading = kt * (_read_ns(1) + _read_ns(wide))
    moved = blocks * ROWS * (pages + wide) * PAGE
    needed = (rows * k + k * n * weights + rows * n) * BYTES["bf16"]
    cost = bounded(
        CHIP,
        PARAMS.launch_ns,
        needed / CHIP.dram_gbps,
        compute=turns * wide * weights * kt * CYCLES_PER_TILE["HiFi2"] / CHIP.clock_ghz,
        noc=turns * reading,
        dram=moved / DRAM_GBPS,
    )
    return Kernel(name, "tt-lang", cost, 2.0 * rows * k * n * weights, needed, moved)


def _norm(name: str, rows: int, width: int) -> Kernel:
    """Price two passes over a row of tiles, which stays on one column of cores; the second one reads weights, too."""
    turns = -(-tiles(rows) // COLUMNS) * tiles(width)
    return _by_tile(name, turns * 2, turns * 3, rows * width, 4.0)


def _rotary(name: str, rows: int, features: int, width: int) -> Kernel:
    """Price a rotation tile by tile, a head on one column of cores: x, its other half, cos and sin in, x out."""
    turns = -(-tiles(rows) * (features // width) // COLUMNS) * tiles(width)
    return _by_tile(name, turns, turns * 4, rows * features, 3.0)


def _by_tile(name: str, turns: int, reads: int, elements: int, flops: float) -> Kernel:
    """Price ``turns`` tiles through the engine of a core, which waits for each of its ``reads`` tiles."""
    nbytes = 3 * elements * BYTES["bf16"]
    terms = {"compute": turns * PARAMS.tile_ns, "noc": reads * _read_ns(1), "dram": ROWS * nbytes / DRAM_GBPS}
    cost = bounded(CHIP, PARAMS.launch_ns, nbytes / CHIP.dram_gbps, **terms)
    return Kernel(name, "tt-lang", cost, flops * elements, nbytes, ROWS * nbytes)


def _attention(cached: int, noise: int, rows: int, config: DFlashConfig) -> list[Kernel]:
    """Price what lies between the rotation and o: heads before rows, new rows behind the cache, the mask scaled, SDPA.

    Heads of K and V are the last but one dim for a while, padded to a tile. One core to a head reads its own keys,
    values and mask, a tile's rows at a time.
    """
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads
    e = config.head_dim
    keys = cached + rows
    kt = tiles(cached + rows)
    et = tiles(e)
    by_head = _tile(1, kv_heads, rows, e)
    joined = _joined(cached, rows, kv_heads, e) if cached else []
    turned = [
        _op("reshape", _tile(1, rows, kv_heads, e), _tile(1, 1, rows, kv_heads * e)),
        _op("transpose", by_head, _tile(1, rows, kv_heads, e)),
    ]
    flat = _tile(1, 1, noise, heads * e)
    apart = _tile(1, noise, heads, e)
    q = _tile(1, heads, noise, e)
    mask = _tile(1, 1, noise, keys)  # fmt: skip
    before = [_op("reshape", apart, flat), _op("transpose", q, apart), _op("multiply", mask, mask)]
    reading = kt * (MASK_WAITS * _read_ns(1) + 2 * -(-et // KV_TILES) * _read_ns(min(et, KV_TILES)))
    row_params = replace(PARAMS, chunk_cycles=PARAMS.chunk_cycles / CHUNK_ROWS)
    alone = sdpa(CHIP, row_params, 1, heads, noise, keys, e, SDPAConfig(cores=heads, q_chunk=TILE, k_chunk=TILE))
    moved = heads * kt * (2 * et + 1) * PAGE
    terms = {"compute": alone.compute_ns, "noc": reading, "dram": moved / DRAM_GBPS}
    cost = bounded(CHIP, PARAMS.launch_ns, alone.ideal_ns, **terms)
    needed = 2 * keys * kv_heads * e * BYTES["bf16"]
    attended = Kernel("sdpa", "ttnn", cost, 4.0 * heads * noise * keys * e, needed, moved)
    return [*turned * 2, *joined * 2, *before, attended, _op("transpose", apart, q), _op("reshape", flat, apart)]


def _joined(cached: int, rows: int, heads: int, e: int) -> list[Kernel]:
    """Price new rows behind those of K or V in the cache, untilized if these fill no whole tiles (``concat.cpp``)."""
    shapes = [(1, heads, n, e) for n in (cached, rows, cached + rows)]
    old, new, both = (_tile(*shape) for shape in shapes)
    if cached % TILE == 0:
        return [_op("concat", both, old, new, name="cache concat")]
    old_rows, new_rows, both_rows = (OpTensor(shape, "bf16", "DRAM", "ROW_MAJOR", shape[2]) for shape in shapes)
    untilized = [_op("untilize", old_rows, old), _op("untilize", new_rows, new)]
    return [
        *untilized,
        _op("concat", both_rows, old_rows, new_rows, name="cache concat"),
        _op("tilize", both, both_rows),
    ]


def _tile(b: int, z: int, y: int, x: int) -> OpTensor:
    return OpTensor((b, z, _padded(y), _padded(x)), "bf16", "DRAM", "TILE", y)


def _op(kind: str, out: OpTensor, *inputs: OpTensor, name: str = "") -> Kernel:
    """Price one of ttnn's operations like those of a profiler file."""
    cores = min(CHIP.num_cores, tiles(out.numel // TILE))
    cost = cost_of(DeviceOp(CODES[kind], CHIP.arch, cores, "HiFi2", inputs, (out,)))
    nbytes = sum(t.nbytes for t in (*inputs, out))
    return Kernel(name or kind, "ttnn", cost, 0.0, nbytes, nbytes)


def split_ms(kernels: list[Kernel]) -> tuple[float, float]:
    """Return (TT-Lang, the rest) of a forward in ms, as the document times them.

    A TT-Lang kernel is timed by itself, from an idle chip to an idle chip. The host hands over a TTNN program in
    ``EAGER_GAP_NS``; the chip starts it once it is there and the one before is done.
    """
    lang = 0.0
    host = 0.0
    chip = 0.0
    for k in kernels:
        if k.toolchain == "tt-lang":
            lang += k.ns
            host = max(host, chip) + k.ns
            chip = host
        else:
            host += EAGER_GAP_NS
            chip = max(host, chip) + k.cost.ns
    return lang / 1e6, (max(host, chip) - lang) / 1e6
