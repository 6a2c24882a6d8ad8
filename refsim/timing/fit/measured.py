"""Measured operations, from profiler files and published tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from refsim.timing.cost.chips import CYCLES_PER_TILE, get_chip
from refsim.timing.fit import published
from refsim.timing.read import profile
from refsim.timing.read.device_op import Cut, DeviceOp, Wires
from refsim.timing.read.op_names import op_name
from refsim.timing.read.tensors import OpTensor

CALIBRATION = [
    "wh_clip_encoder_2.csv",
    "bh_64_clip_encoder_1.csv",
    "GEMM_FLOPS.md: N150 and P150, default, BFLOAT16 and BFLOAT8_B",
    "MiniMax-H3 on Galaxies: linears, gathers and scatters, ring attention",
    "Wan2.2-TI2V-5B on a Blackhole Galaxy: ring attention by chunk sizes",
    "Flux.1 on a QuietBox and a Galaxy: seconds at 4 and 28 steps (the host's seconds alone)",
]
VALIDATION = ["matmul_wh_galaxy_best.csv", "bh_p100_dlv3.csv"]
_NAMES = {
    "mm": "MinimalMatmulOp",
    "all_gather_matmul": "AllGatherMinimalMatmulAsyncOp",
    "matmul_reduce_scatter": "matmul_reduce_scatter",
    "all_gather": "AllGatherAsync",
    "reduce_scatter": "ReduceScatterMinimalAsync",
    "sdpa": "RingJointSDPA",
}
"""What a table of linears measures, and ttnn's operation."""
GEMM, LINEARS = (Path(__file__).with_name(name) for name in ("gemm.csv", "linears.csv"))
HIDDEN = 10**6
"""Links of ring attention whose gather is taken to hide under it wholly: so that its seconds are those of attention."""


@dataclass(frozen=True)
class Measured:
    """One distinct operation that took ``ns`` of kernel time on average over ``count`` runs.

    Attributes:
        source: the file or document.
        use: what a table of linears measures, as ``_NAMES`` has it.
        sizes: M, K and N as a table has them.
        ideal_ns: what the vendor's own model says; 0 if there is none.
    """

    op: DeviceOp
    ns: float
    count: int = 1
    source: str = ""
    use: str = ""
    sizes: tuple[int, ...] = ()
    gap_ns: float = 0.0
    ideal_ns: float = 0.0

    @property
    def kind(self) -> str:
        """Return its class; ``unclassified`` if nothing is known of its name."""
        known = op_name(self.op.name)
        return known.kind if known else "unclassified"


def calibration(folder: Path) -> list[Measured]:
    """Return the measurements that parameters may be fitted on."""
    return [*trace(folder / CALIBRATION[0]), *trace(folder / CALIBRATION[1]), *_published()]


def validation(folder: Path) -> list[Measured]:
    """Return the measurements that no parameter may be fitted on."""
    return [*_swept(folder / VALIDATION[0]), *trace(folder / VALIDATION[1])]


def trace(path: Path) -> list[Measured]:
    """Return the distinct operations of a profiler's file."""
    return of_rows(profile.read(path))


def of_rows(rows: pd.DataFrame) -> list[Measured]:
    """Return the distinct operations of a table of :func:`refsim.timing.read.profile.read`."""
    return [
        Measured(profile.device_op(row), row.ns, row.count, row.source, gap_ns=row.gap_ns, ideal_ns=row.ideal_ns)
        for row in profile.distinct(rows).itertuples()
    ]


def _published() -> Iterator[Measured]:
    """Yield the lines of both tables; what they are of, ``published.py`` says."""
    for row in _rows(GEMM):
        arch = row["arch"]
        dtype = row["dtype"]
        fidelity = row["fidelity"]
        grid = _numbers(row["core_grid"], "x")
        per_tile = CYCLES_PER_TILE[fidelity] / get_chip(arch).clock_ghz
        cores = math.prod(grid)
        sizes = tuple(int(row[name]) for name in "MKN")
        m, k, n = sizes
        ns = m * k * n / 32768 * per_tile / cores / float(row["percent"]) * 100
        operands = (tensor(1, m, k, dtype), tensor(1, k, n, dtype))
        out = tensor(1, m, n, dtype)
        op = DeviceOp("Matmul", arch, cores, fidelity, operands, (out,), cut=Cut(grid))
        yield Measured(op, ns, source="GEMM_FLOPS.md", sizes=sizes)
    for row in _rows(LINEARS):
        grid = _numbers(row["core_grid"], "x")
        yield _linear(row, grid, row["source"], row["arch"], (int(row["ring"]), int(row["links"])))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of a CSV file, by column."""
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _numbers(text: str, by: str) -> tuple[Any, ...]:
    return tuple(int(number) for number in text.split(by))


def _swept(path: Path) -> Iterator[Measured]:
    """Yield a sweep's best times; minimal_matmul's cores lie transposed where M > N, a fused scatter's never."""
    for row in _rows(path):
        x, y = _numbers(row["core_grid"], "x")
        row |= {"use_case": row["use_case"].removesuffix("_tp8"), "us": row["best_us"]}
        transposed = row["use_case"] != "matmul_reduce_scatter" and int(row["M"]) > int(row["N"])
        yield _linear(row, (x, y) if transposed else (y, x), path.name, "wormhole_b0", (8, 4))


def _linear(row: dict[str, str], grid: tuple[Any, ...], source: str, arch: str, wires: tuple[int, int]) -> Measured:
    """Return a line of a table of linears; ``grid``: cores for M and N; ``wires``: devices of its ring, links."""
    use = row["use_case"]
    cores = math.prod(grid)
    ring, links = wires
    sizes = tuple(int(row[name]) for name in "MKN")
    m, k, n = sizes
    blocks = tuple(int(row[f"{name}_block"]) for name in "MKN")
    if use == "sdpa":
        op = ring_attention((_NAMES[use], m, k, n, n, ring, cores, "bf16"), blocks[1:], arch, HIDDEN)
    else:
        x = tensor(1, m, k)
        w = tensor(1, k, n)
        out = tensor(1, m, n)
        inputs = {"all_gather": (tensor(1, m, k // ring),), "reduce_scatter": (out,)}.get(use, (x, w))
        on = Wires() if use == "mm" else Wires(ring, links, ring=True, galaxy=True)
        cut = Cut(grid, blocks, (int(row["subblock_h"]), int(row["subblock_w"])))
        op = DeviceOp(_NAMES[use], arch, cores, "HiFi2", inputs, (out,), wires=on, cut=cut)
    return Measured(op, float(row["us"]) * 1000, source=source, use=use, sizes=sizes)


def gates(lines: Mapping[published.Attended, str] = published.SDPA_GATES) -> Iterator[Measured]:
    """Yield published ring attention; nothing was fitted on ``SDPA_GATES``."""
    chip = get_chip("blackhole", galaxy=True)
    for attended, line in lines.items():
        model, rows, heads, width, value, size, cores, _ = attended
        q, k, percent = line.split()
        flops = 2 * rows * rows * size * heads * (width + value) / (2 if model == "MLA" else 1)
        ns = flops / (float(percent) / 100 * chip.peak_tflops("HiFi2", cores) * 1000)
        yield Measured(ring_attention(attended, (int(q), int(k))), ns)


def ring_attention(
    attended: published.Attended, chunks: tuple[int, ...], arch: str = "blackhole", links: int = 2
) -> DeviceOp:
    """Return ring joint attention as an operation; MLA's is causal and balanced, with one head of keys."""
    model, rows, heads, width, value, size, cores, dtype = attended
    latent = model == "MLA"
    queries = tensor(heads, rows, width)
    keys = tensor(1 if latent else heads, rows, width, dtype)
    inputs = (queries, keys, tensor(heads, rows, value, dtype))
    attributes = "q_chunk_size={};k_chunk_size={};".format(*chunks)
    if latent:
        attributes += "'is_causal': 'true'; 'is_balanced': 'true'; 'is_cross': 'false'"
    wires = Wires(size, links, ring=True, galaxy=size == 8)
    return DeviceOp("RingJointSDPA", arch, cores, "HiFi2", inputs, (queries,), attributes, wires)


def tensor(heads: int, rows: int, width: int, dtype: str = "bf16") -> OpTensor:
    """Return a tensor in interleaved DRAM."""
    return OpTensor((1, heads, rows, width), dtype, "DEV_0_DRAM_INTERLEAVED", "TILE", rows)
