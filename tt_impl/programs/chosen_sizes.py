"""The sizes that are chosen on the host for calls of ttnn, over many shapes: no call is made.

Where a choice changes from one size to the next, no model of a reasonable size has a shape on either side. Counterpart
of nothing in ``refsim``: only ttnn takes such options.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import ttnn

from refsim.base.options import RunOptions
from tt_impl.layers import conv3d
from tt_impl.layers.pixels import pixel_chunks
from tt_impl.parallel import programs
from tt_impl.parallel.context import Context
from tt_impl.parallel.sdpa import local_program_config, program_config, usual_chunks
from tt_impl.pipelines.transformer import submeshes
from tt_impl.programs.recorded_calls import CallRecord, settings

_ATTENTION = "ttnn.transformer.scaled_dot_product_attention"
_ROWS = (1, 32, 33, 64, 96, 97, 128, 160, 192, 224, 255, 256, 257, 289, 320, 511, 512, 513, 640, 2049)
_CHANNELS = range(32, 545, 32)
_M = (32, 288, 333, 1760, 2048, 4096, 4128)
_N = (32, 72, 320, 1824, 4096)
_K = (32, 40, 96, 288, 608, 640, 928, 1184)
_GALAXY = ("cfg2_sp4_tp4", "sp4_tp8", "sp8_tp4")
_LAYOUTS = (("t3k", "sp2_tp4"), ("bh-loudbox", "sp4_tp2"), *product(("galaxy", "bh-galaxy"), _GALAXY))


def program(device: ttnn.MeshDevice, options: RunOptions, **_: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Report ``calls`` as :mod:`tt_impl.programs.recorded_calls` has them, ``grid`` and ``shape``."""
    ctx = Context(submeshes(device, options)[0], options)
    size = ctx.device.compute_with_storage_grid_size()
    calls = [*_attention(ctx), *_convolutions(ctx), *_products(ctx, (size.x, size.y)), *_links(), *_memory()]
    return {"calls": calls, "grid": [size.x, size.y], "shape": list(ctx.shape)}, {}


def _call(op: str, *shapes: tuple[int, ...], arguments: dict[str, Any] | None = None, **options: Any) -> CallRecord:
    inputs = [[list(shape), list(shape), "BFLOAT16", "DRAM"] for shape in shapes]
    return {"op": op, "inputs": inputs, "outputs": [], "arguments": arguments or {}} | settings(options)


def _attention(ctx: Context) -> Iterator[CallRecord]:
    """Chunks over sp and of local rows over others, in one piece, and of pixels."""
    for mesh, parallel in _LAYOUTS:
        options = RunOptions.of(mesh=mesh, parallel=parallel, backend=ctx.options.backend)
        layout = {"arch": options.mesh.arch, "sp": options.parallel.sp, "tp": options.parallel.tp}
        q, k = usual_chunks(options)
        yield {"op": "chunks", "chunks": layout | {"q": q, "k": k}}
    how = {"compute_kernel_config": ctx.sdpa_config}
    for rows in _ROWS:
        q = (1, 4, rows, 64)
        ring = program_config(ctx, rows, reserve_row=True)
        yield _call("ttnn.transformer.ring_joint_scaled_dot_product_attention", q, q, program_config=ring, **how)
        whole = local_program_config(ctx, rows)
        yield _call(_ATTENTION, q, q, arguments={"output_concat_heads": True}, program_config=whole, **how)
        for keys in _ROWS:
            chunks = program_config(ctx, rows, reserve_row=False, keys=keys)
            yield _call(_ATTENTION, q, (1, 4, keys, 64), program_config=chunks, **how)
    for channels, rows, keys in product((32, 224, 256, 288, 512), (32, 64, 96), (32, 128, 160, 256, 288)):
        shapes = (1, 1, rows, channels), (1, 1, keys, channels)
        yield _call(_ATTENTION, *shapes, program_config=pixel_chunks(ctx, channels, rows, keys), **how)


def _convolutions(ctx: Context) -> Iterator[CallRecord]:
    for channels, out, (kernel, side) in product(
        _CHANNELS, _CHANNELS, (((3, 1, 1), 7), ((1, 3, 3), 8), ((3, 3, 3), 9))
    ):
        taps = kernel[0] * kernel[1] * kernel[2]
        config = conv3d.config(ctx, conv3d.blocks(channels, out, taps), side, side)
        arguments = {"kernel_size": list(kernel), "output_channels": out}
        how = {"config": config, "compute_kernel_config": ctx.linear_config}
        yield _call("ttnn.experimental.conv3d", (1, kernel[0], side, side, channels), arguments=arguments, **how)


def _products(ctx: Context, grid: tuple[int, int]) -> Iterator[CallRecord]:
    """Blocks of matmuls, with and without a gather on the way."""
    gather = "ttnn.experimental.all_gather_minimal_matmul_async"
    cores = (grid[0], grid[1] - 1)
    for rows, inner, columns in product(_M, _K, _N):
        how = {"compute_kernel_config": ctx.linear_config}
        x = (1, 1, rows, inner)
        w = (1, 1, inner, columns)
        config = programs.matmul_config(rows, inner, columns, grid)
        yield _call("ttnn.experimental.minimal_matmul", x, w, config=config, **how)
        for ring in (True, False):
            config = programs.matmul_config(rows, 4 * inner, columns, cores, part=inner, ring=ring)
            arguments = {"topology": "Ring" if ring else "Linear"}
            yield _call(gather, x, (1, 1, 4 * inner, columns), arguments=arguments, config=config, **how)


def _links() -> Iterator[CallRecord]:
    """Cores that share a link while packets go through a mux, and the packets of each."""
    for columns, links in product(range(4, 15), range(1, 7)):
        workers = programs.workers_per_link(columns, links)
        buffers = programs.buffers_per_channel(workers) if workers else 0
        yield {"op": "mux", "mux": {"columns": columns, "links": links, "workers": workers, "buffers": buffers}}


def _memory() -> Iterator[CallRecord]:
    """Where activations lie that do not leave their layer, and what lives within one operation."""
    for rows in (32, 480, 511, 512, 513, 544):
        yield {"op": "activations", "lies": {"rows": rows, "in": programs.activation_memory(rows).buffer_type.name}}
    for cores, size in product((1, 64, 110), (1 << 18, 1 << 19, (1 << 19) + 1, 1 << 20)):
        memory = programs.scratch_memory(cores * size, cores).buffer_type.name
        yield {"op": "scratch", "lies": {"bytes": cores * size, "cores": cores, "in": memory}}
