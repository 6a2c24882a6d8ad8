"""Reductions of the matrix unit: which port the data takes, so which of its bits a fidelity sees.

    last dim     data -> SrcB (7-bit port) . scaler -> SrcA     a matmul with a column of scalers
    second last  scaler -> SrcB . data -> SrcA (5-bit port)     the pool instruction, 16 rows a time
    both         a tile's faces into one row of 16, that row into a value that all tiles add to; data -> SrcA both times
    max          compared, nothing is rounded; float32 is read as TF32

HiFi2 runs all of SrcA's bits and the first 7 of SrcB's: a sum over the last dim never sees the last bit of a bf16
value, one over the second last does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.formats import truncate
from refsim.numerics.matrix_unit import check_choices, matmul

REDUCTIONS = ("sum", "mean", "max")
DIMS = ("last", "second_last", "both")
FACE = 16
"""Rows and columns of a quarter of a tile."""
BF16 = 7
"""Bits of a mantissa behind the leading one."""
TF32 = 10


def reduce(
    operation: str,
    x: Tensor,
    *,
    dim: str = "last",
    scaler: float | None = None,
    dtype: str = "bfloat16",
    **unit: str | bool,
) -> Tensor:
    """Return what the destination holds after rows, columns or both are reduced.

    Args:
        operation: ``sum``, ``mean`` or ``max``.
        x: float32 (..., M, N), as L1 holds it.
        dim: ``last`` gives (..., M, 1), ``second_last`` (..., 1, N), ``both`` (..., 1, 1).
        scaler: what each value is multiplied by; by default 1, of a mean one over the number of values. Over both dims
            its root is, twice.
        dtype: of the data in L1. The scaler is cut to it, and so is the row between the two steps over both dims; to
            TF32 if it is float32.
        unit: ``fidelity``, ``fp32_dest_acc_en``, ``arch``, ``level`` as in :func:`refsim.numerics.matmul`.

    Returns:
        float32.

    Raises:
        UserError: an unknown choice, fewer than two dims, or a negative scaler over both.
    """
    check_choices(operation=(operation, REDUCTIONS), dim=(dim, DIMS))
    if x.dim() < 2:
        raise UserError(f"reduce takes (..., M, N), not {tuple(x.shape)}; add a dim of 1.")
    dims = {"last": (-1,), "second_last": (-2,), "both": (-2, -1)}[dim]
    if operation == "max":
        return truncate(x, 10).amax(dim=dims, keepdim=True)
    count = math.prod(x.shape[index] for index in dims)
    if not x.numel():
        return x.sum(dims, keepdim=True)
    factor = scaler if scaler is not None else 1.0 if operation == "sum" else 1.0 / count
    bits = TF32 if dtype == "float32" else BF16
    if dim == "last":
        return _rows(x, factor, bits, unit)
    if dim == "second_last":
        return _columns(x, factor, bits, unit)
    if factor < 0:
        raise UserError(
            f"reduce takes the root of a scaler over both dims, which {factor:g} has not; reduce one first."
        )
    rows = truncate(_columns(_faces(x), math.sqrt(factor), bits, unit), bits)
    return _columns(rows.reshape(*x.shape[:-2], -1, 1), math.sqrt(factor), bits, unit)


def _faces(x: Tensor) -> Tensor:
    """Return (..., tiles, 64, 16): the four faces of each tile below each other; zeros fill up tiles."""
    tiles = torch.nn.functional.pad(x, (0, -x.shape[-1] % (2 * FACE), 0, -x.shape[-2] % (2 * FACE)))
    lead = x.shape[:-2]
    tiles = tiles.reshape(-1, tiles.shape[-2] // (2 * FACE), 2, FACE, tiles.shape[-1] // (2 * FACE), 2, FACE)
    return tiles.permute(0, 1, 4, 2, 5, 3, 6).reshape(*lead, -1, 4 * FACE, FACE)


def _rows(x: Tensor, factor: float, bits: int, unit: dict) -> Tensor:
    column = truncate(torch.full((x.shape[-1], 1), factor), bits)
    return matmul(x.reshape(-1, x.shape[-1]), column, **unit).reshape(*x.shape[:-1], 1)


def _columns(x: Tensor, factor: float, bits: int, unit: dict) -> Tensor:
    row = truncate(torch.full((1, x.shape[-2]), factor), bits)
    flat = x.mT.reshape(-1, x.shape[-2])
    return matmul(row, flat.T, **unit).reshape(*x.shape[:-2], 1, x.shape[-1])
