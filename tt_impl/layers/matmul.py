"""A product with everything ttnn can do in the same operation: bias, activation, split, gather before, gate after.

    matmul           x @ w + b, activation                          minimal_matmul
    split_matmul     the same in equal parts of the columns         minimal_matmul_split
    gather_matmul    x gathered over tp on the way                  all_gather_minimal_matmul_async
    add_gated        residual + y * gate                            addcmul

One row of tiles (a time step, a token) goes to ``ttnn.linear``, which spreads the columns over all cores; blocks of
rows and columns would leave all but one row of cores idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ttnn

from tt_impl.parallel import programs
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE
from tt_impl.parallel.tensor import gather_features

ACTIVATIONS = {"gelu_tanh": ttnn.UnaryOpType.GELU_TANH, "silu": ttnn.UnaryOpType.SILU}
"""By name, as the operation takes them; a matmul applies them before it writes its result."""


@dataclass(frozen=True)
class Residual:
    """Where the result of a branch goes: ``stream + result * gate``.

    ``stream`` (B, 1, rows, local D) and ``gate`` (B, 1, 1 or rows, local D); with ``norm``, the result is normed first.
    """

    stream: ttnn.Tensor
    gate: ttnn.Tensor
    norm: Callable[[ttnn.Tensor], ttnn.Tensor] | None = None


def matmul(
    ctx: Context,
    x: ttnn.Tensor,
    weight: ttnn.Tensor,
    bias: ttnn.Tensor | None = None,
    *,
    activation: str | None = None,
    within: bool = False,
) -> ttnn.Tensor:
    """(B, 1, rows, K) @ (1, 1, K, N) + bias (1, 1, 1, N), then the activation.

    Args:
        activation: one of ``ACTIVATIONS``, done in the same operation.
        within: the result does not leave the layer, and lies where :func:`programs.activation_memory` says.
    """
    memory = programs.activation_memory(x.shape[-2]) if within else ttnn.DRAM_MEMORY_CONFIG
    if _one_row_of_tiles(x) and activation is None:
        return ttnn.linear(x, weight, bias=bias, memory_config=memory, compute_kernel_config=ctx.linear_config)
    how = _how(ctx, x, weight, activation)
    return ttnn.experimental.minimal_matmul(x, weight, bias_tensor=bias, memory_config=memory, **how)


def split_matmul(
    ctx: Context, x: ttnn.Tensor, weight: ttnn.Tensor, bias: ttnn.Tensor | None, *, chunks: int
) -> list[ttnn.Tensor]:
    """:func:`matmul` whose columns come out as ``chunks`` tensors, each a whole number of tiles wide."""
    how = _how(ctx, x, weight, None)
    return ttnn.experimental.minimal_matmul_split(x, weight, chunks=chunks, dim=-1, bias_tensor=bias, **how)


def gather_matmul(
    ctx: Context,
    x: ttnn.Tensor,
    weight: ttnn.Tensor,
    bias: ttnn.Tensor | None = None,
    *,
    activation: str | None = None,
    within: bool = False,
) -> ttnn.Tensor:
    """:func:`matmul` of ``x`` gathered over tp: (B, 1, rows, K / tp) @ (1, 1, K, N).

    In one operation, in which a block is multiplied as soon as it has arrived; in two where that one cannot be had.
    """
    if not (workers := _workers(ctx, x)):
        return matmul(ctx, gather_features(ctx, x), weight, bias, activation=activation, within=within)
    memory = programs.activation_memory(x.shape[-2]) if within else ttnn.DRAM_MEMORY_CONFIG
    return _gathered(ctx, x, weight, workers, activation, bias_tensor=bias, memory_config=memory)[0]


def gather_split_matmul(
    ctx: Context, x: ttnn.Tensor, weight: ttnn.Tensor, bias: ttnn.Tensor | None, *, chunks: int
) -> list[ttnn.Tensor]:
    """:func:`split_matmul` of ``x`` gathered over tp, as :func:`gather_matmul` does it."""
    if not (workers := _workers(ctx, x)):
        return split_matmul(ctx, gather_features(ctx, x), weight, bias, chunks=chunks)
    return _gathered(ctx, x, weight, workers, bias_tensor=bias, chunks=chunks)


def _workers(ctx: Context, x: ttnn.Tensor) -> int:
    """Cores that share a link while ``x`` is gathered and multiplied in one operation; 0 where there is none: for more
    than one batch entry (its rows are counted without the batch), or where the links cannot be shared out evenly.
    """
    if ctx.tp == 1 or x.shape[0] > 1:
        return 0
    grid = ctx.device.compute_with_storage_grid_size()
    return programs.workers_per_link(grid.x, ctx.ccl.num_links[ctx.tp_axis])


def _gathered(
    ctx: Context, x: ttnn.Tensor, weight: ttnn.Tensor, workers: int, activation: str | None = None, **how: Any
) -> list[ttnn.Tensor]:
    """Issue the fused operation; the last row of cores forwards packets.

    A channel has a buffer less for each activation: ttnn's key of programs lacks the activation (tt-metal #57357), but
    not the number of buffers, and a call would run the program of another one that differs in nothing else.
    """
    buffers = programs.buffers_per_channel(workers)
    if activation:
        buffers -= 1 + list(ACTIVATIONS).index(activation)
        how["fused_activation"] = ACTIVATIONS[activation]
    grid = ctx.device.compute_with_storage_grid_size()
    config = programs.matmul_config(
        x.shape[-2],
        weight.shape[-2],
        weight.shape[-1],
        (grid.x, grid.y - 1),
        part=x.shape[-1],
        ring=ctx.ccl.topology[ctx.tp_axis] == ttnn.Topology.Ring,
    )
    return ctx.ccl.all_gather_matmul(
        x,
        weight,
        axis=ctx.tp_axis,
        compute_kernel_config=ctx.linear_config,
        config=config,
        num_workers_per_link=workers,
        num_buffers_per_channel=buffers,
        **how,
    )


def add_gated(onto: Residual, result: ttnn.Tensor) -> ttnn.Tensor:
    """``stream + result * gate``, the result normed before where ``onto`` says so."""
    return ttnn.addcmul(onto.stream, result if onto.norm is None else onto.norm(result), onto.gate)


def _how(ctx: Context, x: ttnn.Tensor, weight: ttnn.Tensor, activation: str | None) -> dict[str, Any]:
    grid = ctx.device.compute_with_storage_grid_size()
    rows = x.shape[0] * (-(-x.shape[-2] // TILE) * TILE)
    config = programs.matmul_config(rows, x.shape[-1], weight.shape[-1], (grid.x, grid.y))
    how: dict[str, Any] = {"config": config, "compute_kernel_config": ctx.linear_config}
    return how | ({"fused_activation": ACTIVATIONS[activation]} if activation else {})


def _one_row_of_tiles(x: ttnn.Tensor) -> bool:
    return x.shape[0] * x.shape[1] == 1 and x.shape[-2] <= TILE
