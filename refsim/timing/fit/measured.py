"""Measured operations, from profiler traces and published tables, and the model's answer to each."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from refsim.base.mesh import Topology
from refsim.timing.cost import ops
from refsim.timing.cost.chips import CYCLES_PER_TILE, Chip, get_chip
from refsim.timing.cost.fabric import Fabric, fused_ns
from refsim.timing.cost.matmul import MatmulConfig, MulticastConfig, batched_matmul, matmul, multicast_matmul
from refsim.timing.cost.sdpa import SDPAConfig, sdpa
from refsim.timing.fit import published
from refsim.timing.read.op_names import op_name
from refsim.timing.read.tensors import BYTES, Tensor_

CALIBRATION = [
    "wh_clip_encoder_2.csv",
    "bh_64_clip_encoder_1.csv",
    "GEMM_FLOPS.md: N150 and P150, default, BFLOAT16 and BFLOAT8_B",
    "MiniMax-H3 on Galaxies: linears, gathers and scatters, ring attention",
    "Wan2.2-TI2V-5B on a Blackhole Galaxy: ring attention by chunk sizes",
    "Flux.1 on a QuietBox and a Galaxy: seconds at 4 and 28 steps (the host's seconds alone)",
]
VALIDATION = ["matmul_wh_galaxy_best.csv", "bh_p100_dlv3.csv"]

_USE_CASES = {
    "mm": "mm",
    "agmm": "all_gather_matmul",
    "mmrs": "matmul_reduce_scatter",
    "ag": "all_gather",
    "rs": "reduce_scatter",
    "sdpa": "sdpa",
}
_COPIES = (
    "Move",
    "Copy",
    "Halo",
    "Slice",
    "PaddedSlice",
    "Concat",
    "Upsample",
    "InterleavedTo",
    "ShardedTo",
    "Reshard",
    "Permute",
)
_FIDELITY = ("LoFi", "HiFi2", "HiFi3", "HiFi4")


@dataclass(frozen=True)
class Sample:
    """One distinct measured op: it took ``ns`` of kernel time on average over ``count`` runs.

    ``mkn`` where the source is a table; ``grid``: cores for M, for N; ``ring``, ``links``: of a collective in it.
    """

    source: str
    arch: str
    code: str
    ns: float
    count: int
    cores: int
    fidelity: str = "HiFi2"
    inputs: tuple[Tensor_, ...] = ()
    output: Tensor_ | None = None
    mkn: tuple[int, int, int] | None = None
    grid: tuple[int, int] | None = None
    block: tuple[int, int, int] = (8, 8, 8)
    sub: tuple[int, int] | None = None
    dtype: str = "bf16"
    ring: int = 1
    links: int = 1
    attributes: str = ""
    gap_ns: float = 0.0
    vendor_ideal_ns: float = 0.0

    @property
    def kind(self) -> str:
        """Return its class; ``unclassified`` if nothing is known of its name."""
        if self.code.startswith("Collective"):
            return "collective"
        known = op_name(self.code)
        return known.kind if known else "unclassified"


def calibration(folder: Path) -> list[Sample]:
    """Return the measurements that parameters may be fitted on."""
    return [*trace(folder / CALIBRATION[0]), *trace(folder / CALIBRATION[1]), *_published()]


def validation(folder: Path) -> list[Sample]:
    """Return the measurements that no parameter may be fitted on."""
    return [*_swept(folder / VALIDATION[0]), *trace(folder / VALIDATION[1])]


def trace(path: Path) -> list[Sample]:
    """Return the distinct ops of a profiler file (columns of tt-perf-report)."""
    from refsim.timing.read import profile

    found = []
    for row in profile.distinct(profile.read(path)).itertuples():
        config = re.search(
            r"M_block_size=(\d+);K_block_size=(\d+);N_block_size=(\d+).*?x=(\d+);y=(\d+)", row.attributes
        )
        numbers = [int(g) for g in config.groups()] if config else None
        found.append(
            Sample(
                row.source,
                row.arch,
                row.op,
                row.ns,
                row.count,
                row.cores,
                row.fidelity or "HiFi4",
                row.inputs[:5],
                row.outputs[0] if row.outputs else None,
                grid=(numbers[4], numbers[3]) if numbers else None,
                block=tuple(numbers[:3]) if numbers else (8, 8, 8),
                attributes=row.attributes,
                gap_ns=row.gap_ns,
                vendor_ideal_ns=row.ideal_ns,
            )
        )
    return found


def _published() -> list[Sample]:
    found = []
    for (arch, grid, dtype, fidelity), table in published.GEMM.items():
        per_tile = CYCLES_PER_TILE[fidelity] / get_chip(arch).clock_ghz
        for line in table.split("|"):
            m, k, n = (int(x) for x in line.split()[:3])
            cores = grid[0] * grid[1]
            ns = m * k * n / 32768 * per_tile / cores / float(line.split()[3]) * 100
            found.append(
                Sample("GEMM_FLOPS.md", arch, "Matmul", ns, 1, cores, fidelity, mkn=(m, k, n), grid=grid, dtype=dtype)
            )
    for arch, table in published.H3.items():
        for line in table.strip().splitlines():
            op, m, k, n, grid, block, sub, links, us = line.split()
            found.append(_linear(
                "MiniMax-H3", arch, _USE_CASES[op], float(us), mkn=(int(m), int(k), int(n)), grid=_pair(grid, "x"),
                block=_pair(block, ","), sub=_pair(sub, ","), ring=8 if op == "sdpa" else 4, links=int(links),
            ))  # fmt: skip
    for (rows, heads, width, ring, links, cores), table in published.RING_SDPA.items():
        for line in table.split("|"):
            q, k, us = line.split()
            found.append(_linear(
                "Wan2.2-TI2V-5B", "blackhole", "sdpa", float(us), mkn=(rows, heads, width), grid=(cores, 1),
                block=(0, int(q), int(k)), ring=ring, links=links,
            ))  # fmt: skip
    return found


def _pair(text: str, by: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(by))


def _linear(source: str, arch: str, use: str, us: float, **shape: Any) -> Sample:
    """Make the sample of a linear of a sweep; ``shape`` are the fields of :class:`Sample` that say what was
    multiplied and where.
    """
    code = {"all_gather": "Collective", "reduce_scatter": "Collective", "sdpa": "RingJointSDPA"}
    name = f"{code.get(use, 'MinimalMatmulOp')} {use}"
    return Sample(source, arch, name, us * 1000, 1, math.prod(shape["grid"]), attributes=use, **shape)


def _swept(path: Path) -> list[Sample]:
    """Return the best times of a sweep; minimal_matmul's cores lie transposed where M > N, the fused
    reduce-scatter's never.
    """
    found = []
    with path.open(newline="") as file:
        for r in csv.DictReader(file):
            x, y = _pair(r["core_grid"], "x")
            use = r["use_case"].removesuffix("_tp8")
            transposed = use != "matmul_reduce_scatter" and int(r["M"]) > int(r["N"])
            block = (int(r["M_block"]), int(r["K_block"]), int(r["N_block"]))
            found.append(_linear(
                path.name, "wormhole_b0", use, float(r["best_us"]), mkn=(int(r["M"]), int(r["K"]), int(r["N"])),
                grid=(x, y) if transposed else (y, x), block=block,
                sub=(int(r["subblock_h"]), int(r["subblock_w"])), ring=8, links=4,
            ))  # fmt: skip
    return found


class Unsaid(Exception):
    """What a formula needs to know of an operation and the operation does not say."""


def predict(chip: Chip, params: ops.Params, s: Sample) -> ops.Cost:
    """Return the model's cost of a measured op."""
    fidelity = s.fidelity if s.fidelity in _FIDELITY else "HiFi4"
    if s.mkn:
        if s.code != "Matmul" and s.attributes != "mm":
            return _with_collective(chip, params, s)
        if s.code == "Matmul":
            return multicast_matmul(chip, params, *s.mkn, MulticastConfig(s.grid, fidelity, s.dtype))
        return matmul(chip, params, *s.mkn, MatmulConfig(fidelity, grid=s.grid, block=s.block, sub=s.sub))
    if not s.inputs or s.output is None:
        return ops.l1_copy(chip, params, 0.0, s.cores)
    x, out = s.inputs[0], s.output
    if s.kind in ("matmul", "conv") and len(s.inputs) > 1:
        return _product(chip, params, s, fidelity)
    # A slice is read, or written, as large as it is; an embedding reads the rows it is asked for.
    written = x if s.code.startswith("SliceWrite") else out
    operands = s.inputs[:1] if s.kind == "layout" and s.code != "ConcatDeviceOperation" else s.inputs
    taken = [t for t in operands if t.numel <= 4 * out.numel]
    whole = x.numel <= written.numel or s.kind != "layout"
    read = sum(t.nbytes for t in taken if not t.in_l1) if whole else out.numel * BYTES[x.dtype] * (not x.in_l1)
    if s.code.startswith("RotaryEmbedding") and len(s.inputs) > 2:  # each head reads the tables again
        read += 2 * (x.shape[1] - 1) * s.inputs[1].nbytes
    moved = read + (0.0 if out.in_l1 else written.nbytes)
    if s.code == "ReshapeDeviceOperation" and x.layout == out.layout == "TILE" and x.shape[3] != out.shape[3]:
        wider = x.shape[3] // out.shape[3]  # a tile's rows come from as many tiles
        sources = min(32, wider if wider > 1 else out.rows)
        return ops.by_tiles(chip, params, out.numel, moved, cores=s.cores, sources=sources)
    if s.kind == "norm":
        return ops.by_tiles(chip, params, x.numel, moved, width=x.shape[3], cores=s.cores)
    local = all(t.sharded for t in (*s.inputs, out))
    if s.code.startswith(_COPIES):
        untilized = -(-x.numel // 1024) if x.layout == "TILE" and out.layout != "TILE" else 0
        if local:
            return ops.l1_copy(chip, params, max(x.nbytes, out.nbytes), s.cores, untilized)
        pages = max(x.pages if whole else 0, written.pages)
        return ops.copy(chip, params, moved, pages, s.cores)
    elements = max((x.numel if whole else 0), written.numel)
    return ops.by_tiles(chip, params, elements, moved, cores=s.cores, sharded=local)


def _number(s: Sample, name: str) -> int:
    """Return the number of an attribute; ``Unsaid`` if the operation has none of that name."""
    if (found := re.search(rf"{name}=(\d+)", s.attributes)) is None:
        raise Unsaid(name)
    return int(found[1])


def _product(chip: Chip, params: ops.Params, s: Sample, fidelity: str) -> ops.Cost:
    """Predict a linear or convolution of a trace, on the cores and in the blocks that its row names."""
    x, w, out = s.inputs[0], s.inputs[1], s.output
    places, spills = (x.place, w.place, out.place), "packer_l1_acc=0" in s.attributes
    if s.kind == "conv":
        m, k, n = out.shape[0] * out.shape[1] * out.shape[2], w.shape[2], out.shape[3]
        row_cores, input_parts, column_cores, rows = (
            _number(s, name)
            for name in ("num_cores_nhw", "num_cores_c_in", "num_cores_c_out", "per_core_out_matrix_height_ntile")
        )
        height, width, h, v = (
            _number(s, f"{name}_ntiles") for name in ("act_block_h", "act_block_w", "out_subblock_h", "out_subblock_w")
        )
        blocks = -(-rows // height) * -(-ops.tiles(k) // width) if column_cores > 1 else 0
        config = MulticastConfig(
            (row_cores, column_cores), fidelity, w.dtype, width, (h, v), places, spills,
            tilized=rows * ops.tiles(k) // input_parts, handed_on=blocks,
        )  # fmt: skip
        return multicast_matmul(chip, params, m, k, n, config)
    dtype = (x.dtype, w.dtype, out.dtype)
    batch, m, k, n = x.shape[0] * x.shape[1], x.shape[2], x.shape[3], w.shape[3]
    block = re.search(r"in0_block_w=(\d+);out_subblock_h=(\d+);out_subblock_w=(\d+)", s.attributes)
    given = {"kb": int(block[1]), "sub": (int(block[2]), int(block[3]))} if block else {}
    config = MulticastConfig((1, 1), fidelity, dtype, places=places, spills=spills, **given)
    if per_core := re.search(r"per_core_M=(\d+);per_core_N=(\d+)", s.attributes):
        return _configured(chip, params, s, config, (int(per_core[1]), int(per_core[2])))
    if w.shape[0] * w.shape[1] > 1:
        return batched_matmul(chip, params, (batch, m, k, n), cores=s.cores, fidelity=fidelity, dtype=dtype)
    if op_name(s.code).code != "Matmul":
        grid = s.grid or _grid(s.cores, m, n)
        return matmul(chip, params, m, k, n, MatmulConfig(fidelity, dtype, grid, s.block), batch=batch)
    config = replace(config, grid=_grid(s.cores, batch * m, n))
    return multicast_matmul(chip, params, batch * m, k, n, config)


def _configured(
    chip: Chip, params: ops.Params, s: Sample, config: MulticastConfig, per_core: tuple[int, int]
) -> ops.Cost:
    """Predict a product whose program says how many tiles of M and of N a core has (``per_core``).

    Products of a batch that are not one matrix (``fuse_batch=0``) run one after the other in one program. A first
    operand that serves them all is read once and stays in L1 (``reuse_in0_in_CB`` of ttnn's 1-D program factory).
    """
    x, w = s.inputs[:2]
    products = max(x.shape[0] * x.shape[1], w.shape[0] * w.shape[1])
    rows, k, n = x.shape[2], x.shape[3], w.shape[3]
    if "fuse_batch=1" in s.attributes:
        products, rows = 1, products * rows
    grid = -(-ops.tiles(rows) // per_core[0]), -(-ops.tiles(n) // per_core[1])
    held = re.search(r"out_block_h=(\d+);out_block_w=(\d+)", s.attributes)
    config = replace(config, grid=grid, held=(int(held[1]), int(held[2])) if held else per_core)
    first = rest = multicast_matmul(chip, params, rows, k, n, config)
    if products > x.shape[0] * x.shape[1]:
        rest = multicast_matmul(chip, params, rows, k, n, replace(config, places=("own", *config.places[1:])))
    more = products - 1
    return replace(
        first, ns=first.ns + more * (rest.ns - params.launch_ns), compute_ns=first.compute_ns + more * rest.compute_ns,
        dram_ns=first.dram_ns + more * rest.dram_ns, ideal_ns=first.ideal_ns + more * rest.ideal_ns,
    )  # fmt: skip


def _with_collective(chip: Chip, params: ops.Params, s: Sample) -> ops.Cost:
    """Predict a collective on a Galaxy's ring, alone or fused with the matmul that takes or makes what it moves."""
    m, k, n = s.mkn
    fabric = Fabric(get_chip(chip.arch, galaxy=True), s.ring, s.links, Topology.RING)
    if s.kind == "sdpa":  # the gather hides under it at these sizes
        step = sdpa(chip, params, 1, k, m, m, n, SDPAConfig("HiFi2", s.cores, *s.block[1:]))
        return replace(step, ns=s.ring * (step.ns - params.launch_ns) + params.launch_ns)
    if s.kind == "collective":
        gathers = s.attributes == "all_gather"
        took = fabric.collective_ns(s.attributes, m * k / s.ring * 2 if gathers else m * n * 2)
        ideal = fabric.ideal_ns(s.attributes, m * k / s.ring * 2 if gathers else m * n * 2)
        return ops.Cost(took, "fabric", 0.0, 0.0, ideal)
    alone = matmul(chip, params, m, k, n, MatmulConfig(s.fidelity, grid=s.grid, block=s.block, sub=s.sub))
    if s.attributes == "all_gather_matmul":
        took = fabric.fused_gather_ns(m, k, s.block[1])
        ns = fabric.gathered_matmul_ns(alone.ns, took)
    else:
        took, parts = fabric.fused_scatter_ns(m, n, s.grid), fabric.fused_parts(m, s.grid, s.block)
        ns = fused_ns(alone.ns, took, parts)
    return replace(alone, ns=ns, bound="fabric" if took > alone.ns else alone.bound)


def _grid(cores: int, m: int, n: int) -> tuple[int, int]:
    """Return the cores for M and for N: one side alone where its tiles make up that count (1-D), else the fewest
    tiles a core.
    """
    mt, nt = ops.tiles(m), ops.tiles(n)
    if cores == -(-mt // -(-mt // cores)):
        return cores, 1
    if cores == -(-nt // -(-nt // cores)):
        return 1, cores
    sides = [(a, cores // a) for a in range(1, cores + 1) if cores % a == 0]
    return min(sides, key=lambda s: -(-mt // s[0]) * -(-nt // s[1]))
