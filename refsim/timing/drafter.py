"""Time of one forward of the DFlash drafter on one Blackhole chip, by context length; cached and not.

    noise (16 rows), new context rows --> fc, norm --> 8 layers: norm, q, k, v, norms, rotation | cache, attention | o,
                                                                 norm, gate and up, down         --> norm
    TT-Lang kernels   matmuls, norms, rotation        TTNN   fc, cache, attention, reshapes

Shapes are read off refsim's drafter. How the document's kernels run follows from the counters it prints with them:

    gate and up  10 x 10 cores, 276,480 reads, 960 read barriers, 1,920 writes of a tile
                 = 10 x 192 output tiles in blocks of 1 x 4, on 96 cores; per block 32 (1 + 2 * 4) reads for 32 of K
    down         8 x 10 cores, 138,880 reads, 640 writes
                 = 10 x 64 output tiles in blocks of 1 x 8, on 80 cores; per block: K tiles * (1 + 8) + 8 reads

So every kernel works on ten rows of tiles where the block needs one, and nothing is multicast. Its other matmuls are
taken to be like the second. Programs are dispatched by the host one by one, without a trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from refsim.checkpoint import ShapeWeights
from refsim.layers.kv_cache import KVCache
from refsim.mesh import get_mesh
from refsim.models.dflash.config import DFlashConfig
from refsim.models.dflash.spec import SPEC
from refsim.options import RunOptions
from refsim.runtime.tensor import MeshTensor
from refsim.timing import ops
from refsim.timing.chips import BYTES, CYCLES_PER_TILE, TILE, get_chip
from refsim.timing.fitted import get_params
from refsim.timing.matmul import matmul
from refsim.timing.ops import Cost, bounded, tiles
from refsim.timing.recorder import Op, ReadingDevice, Recorder
from refsim.timing.sdpa import SDPAConfig, sdpa
from refsim.timing.stages import EAGER_GAP_NS

PAGE = TILE * TILE * 2
ROW_TILES = 10
"""Rows of tiles a TT-Lang kernel works on; from the writes it counts."""
CHIP, PARAMS = get_chip("blackhole"), get_params("blackhole")


@dataclass(frozen=True)
class Kernel:
    """One program of a forward.

    Attributes:
        lane: ``tt-lang`` or ``ttnn``.
        cost: predicted, once it runs.
        flops, nbytes: what the arithmetic needs at least.
        moved: bytes it is predicted to read and write.
    """

    name: str
    lane: str
    cost: Cost
    flops: float
    nbytes: float
    moved: float

    @property
    def ns(self) -> float:
        """Return the ns as measured from the host, program by program."""
        return self.cost.ns + EAGER_GAP_NS

    @property
    def verdict(self) -> str:
        """Say which of the chip's roofs the arithmetic itself is under."""
        return "compute" if self.flops / CHIP.peak_tflops("HiFi2") / 1000 > self.nbytes / CHIP.dram_gbps else "memory"

    @property
    def roofline_ns(self) -> float:
        return max(self.flops / CHIP.peak_tflops("HiFi2") / 1000, self.nbytes / CHIP.dram_gbps)


@lru_cache(maxsize=32)
def read_drafter(context: int, new: int, config: DFlashConfig = DFlashConfig()) -> tuple[Op, ...]:  # noqa: B008
    """Return the ops of one forward with ``context - new`` rows in the cache and ``new`` handed in."""
    mesh = get_mesh("bh-p150")
    device = ReadingDevice(RunOptions.of(mesh=mesh))
    with torch.device("meta"), torch.inference_mode():
        model = SPEC.model_class(ShapeWeights(torch.bfloat16), device, config)
        cache = model.new_cache()
        for layer in cache:
            _fill(layer, context - new, config)
        noise = torch.empty(1, config.block_size, config.hidden_size, dtype=torch.bfloat16)
        kept = torch.empty(1, new, len(config.target_layer_ids) * config.hidden_size, dtype=torch.bfloat16)
        device.restart()
        with Recorder(device):
            model(noise, kept, cache, start=context)
    return tuple(device.ops)


def _fill(cache: KVCache, rows: int, config: DFlashConfig) -> None:
    if rows:
        shape = (1, config.num_key_value_heads, rows, config.head_dim)
        keys, values = (MeshTensor(torch.empty(shape, dtype=torch.bfloat16)) for _ in range(2))
        cache.append(keys, values)


def forward(context: int, *, new: int = 3, cached: bool = True) -> list[Kernel]:
    """Return the programs of one forward at ``context`` rows, ``new`` of them since the last one.

    Without a cache, keys and values of the whole context are computed; what fc made of it is kept.
    """
    config = DFlashConfig()
    d, wide = config.hidden_size, config.intermediate_size
    found: list[Kernel] = []
    for op in read_drafter(context, new if cached else context):
        before = [k.name for k in found]
        if op.kind == "matmul" and op.inputs[1][1] == len(config.target_layer_ids) * d:
            found += _context(new, config)
        elif op.kind == "matmul":
            names = {2 * wide: "gate_up+silu", 4096: "q_proj", d: "o_proj+resadd"}
            name = names.get(op.inputs[1][0], "v_proj" if before.count("k_proj") > before.count("v_proj") else "k_proj")
            found.append(_matmul("down+resadd" if op.inputs[1] == (d, wide) else name, op))
        elif op.kind == "sdpa":
            found += _attention(op, context, cached)
        elif op.name == "rotary_embedding":
            found.append(_rotary("q_rope" if op.output[1] == config.num_attention_heads else "k_rope", op))
        elif op.kind == "norm" and op.output[-1] == config.head_dim:
            found.append(_norm("qk_rmsnorm", op))
        elif op.kind == "norm" and op.output[-2] == config.block_size:  # the other one is the context's, part of fc
            name = "in_rmsnorm" if before.count("in_rmsnorm") == before.count("pa_rmsnorm") else "pa_rmsnorm"
            last = before.count("pa_rmsnorm") == config.num_hidden_layers
            found.append(_norm("fn_rmsnorm" if last else name, op))
    return found


def _matmul(name: str, op: Op) -> Kernel:
    """Price one of the document's matmuls: blocks of one row of tiles, all of K, no core shares what it reads."""
    rows, k, n = math.prod(op.inputs[0][:-1]), op.inputs[0][-1], op.inputs[1][0]
    residual, weights = name.endswith("resadd"), 2 if name == "gate_up+silu" else 1
    wide, cores = (4, 100) if weights == 2 else (8, 80 if residual else CHIP.num_cores)
    mt, kt, nt = max(tiles(rows), ROW_TILES), tiles(k), tiles(n) // weights
    blocks, pages = mt * -(-nt // wide), kt * (1 + wide * weights) + (wide if residual else 0)
    turns = -(-blocks // cores)
    needed = (rows * k + k * n + rows * n // weights) * BYTES["bf16"]
    cost = bounded(
        CHIP,
        PARAMS.launch_ns,
        needed / CHIP.dram_gbps,
        compute=turns * wide * weights * kt * CYCLES_PER_TILE["HiFi2"] / CHIP.clock_ghz,
        noc=turns * pages * PARAMS.page_ns,
        dram=(blocks * pages + mt * nt) * PAGE / CHIP.dram_gbps,
    )
    return Kernel(name, "tt-lang", cost, 2.0 * rows * k * n, needed, (blocks * pages + mt * nt) * PAGE)


def _norm(name: str, op: Op) -> Kernel:
    """Price two passes over a row of tiles, which stays on one core."""
    elements, width = math.prod(op.output), op.output[-1]
    rows = math.prod(op.output[:-2]) * tiles(op.output[-2])
    return _by_tile(name, -(-rows // CHIP.num_cores) * tiles(width) * 2, 3 * elements, 4.0 * elements)


def _rotary(name: str, op: Op) -> Kernel:
    """Price a rotation tile by tile: x, cos and sin in, x out."""
    count, elements = math.prod(op.output[:-2]) * tiles(op.output[-2]) * tiles(op.output[-1]), math.prod(op.output)
    return _by_tile(name, -(-count // CHIP.num_cores), 4 * elements, 3.0 * elements)


def _by_tile(name: str, turns: int, elements: int, flops: float) -> Kernel:
    nbytes = elements * BYTES["bf16"]
    ideal = nbytes / CHIP.dram_gbps
    cost = bounded(CHIP, PARAMS.launch_ns, ideal, compute=turns * PARAMS.tile_ns, noc=0.0, dram=ideal)
    return Kernel(name, "tt-lang", cost, flops, nbytes, nbytes)


def _context(new: int, config: DFlashConfig) -> list[Kernel]:
    """Price the context projection of the new rows, cut in pieces for bf16."""
    d, pieces = config.hidden_size, len(config.target_layer_ids)
    cost = matmul(CHIP, PARAMS, new, d, d)
    needed = (2 * new * d + d * d) * BYTES["bf16"]
    return [Kernel("fc", "ttnn", cost, 2.0 * new * d * d, needed, needed)] * pieces


def _attention(op: Op, context: int, cached: bool) -> list[Kernel]:
    """Price SDPA, one core to a head, each reading its keys and values; around it four reshapes; of the cache, K and
    V: joined with the new rows for attention, and again without the noise to be kept.
    """
    (b, heads, rows, e), keys = op.inputs[0], context + op.inputs[0][2]
    kv = 2 * b * DFlashConfig().num_key_value_heads * keys * e * BYTES["bf16"]
    rest = rows * heads * e * BYTES["bf16"]
    found = [Kernel("reshape", "ttnn", _copy(rest), 0.0, 2 * rest, 2 * rest)] * 4
    found += [Kernel("cache concat", "ttnn", _copy(kv / 2), 0.0, kv, kv)] * (4 if cached else 2)
    cost = sdpa(CHIP, PARAMS, b, heads, rows, keys, e, SDPAConfig(cores=heads, q_chunk=TILE))
    every = kv * heads / DFlashConfig().num_key_value_heads
    return [*found, Kernel("sdpa", "ttnn", cost, 4.0 * b * heads * rows * keys * e, kv, every)]


def _copy(nbytes: float) -> Cost:
    return ops.copy(CHIP, PARAMS, 2 * nbytes, 2 * int(nbytes // PAGE + 1), CHIP.num_cores)


def split_ms(kernels: list[Kernel]) -> tuple[float, float]:
    """Return (TT-Lang, TTNN) of a forward in ms."""
    return tuple(sum(k.ns for k in kernels if k.lane == lane) / 1e6 for lane in ("tt-lang", "ttnn"))
