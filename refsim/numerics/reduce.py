"""Reductions of the matrix unit: which port the data takes, so which of its bits a fidelity sees.

    last dim     data -> SrcB (7-bit port) . scaler -> SrcA     a matmul with a column of scalers
    second last  scaler -> SrcB . data -> SrcA (5-bit port)     the pool instruction, 16 rows a time
    both         second last, then what is left of each column, the data in SrcA again
    max          compared, nothing is rounded; float32 is read as TF32

HiFi2 runs all of SrcA's bits and the first 7 of SrcB's: a sum over the last dim never sees the last bit of a bf16
value, one over the second last does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.formats import truncate
from refsim.numerics.matrix_unit import check_choices, matmul

REDUCTIONS = ("sum", "mean", "max")
DIMS = ("last", "second_last", "both")


def reduce(
    operation: str,
    x: Tensor,
    *,
    dim: str = "last",
    scaler: float | None = None,
    **unit: str | bool,
) -> Tensor:
    """Return what the destination holds after rows, columns or both are reduced.

    Args:
        operation: ``sum``, ``mean`` or ``max``.
        x: float32 (..., M, N), as L1 holds it.
        dim: ``last`` gives (..., M, 1), ``second_last`` (..., 1, N), ``both`` (..., 1, 1).
        scaler: what each value is multiplied by, in bf16; by default 1, of a mean one over the number of values.
        unit: ``fidelity``, ``fp32_dest_acc_en``, ``arch``, ``level`` as in :func:`refsim.numerics.matmul`.

    Returns:
        float32.

    Raises:
        UserError: an unknown choice, or fewer than two dims.
    """
    check_choices(operation=(operation, REDUCTIONS), dim=(dim, DIMS))
    if x.dim() < 2:
        raise UserError(f"reduce takes (..., M, N), not {tuple(x.shape)}; add a dim of 1.")
    dims = {"last": (-1,), "second_last": (-2,), "both": (-2, -1)}[dim]
    if operation == "max":
        return truncate(x, 10).amax(dim=dims, keepdim=True)
    count = 1
    for index in dims:
        count *= x.shape[index]
    factor = scaler if scaler is not None else 1.0 if operation == "sum" else 1.0 / count
    if dim == "last":
        return _rows(x, factor, unit)
    if dim == "second_last":
        return _columns(x, factor, unit)
    return _columns(_columns(x, factor, unit).mT, 1.0, unit)


def _rows(x: Tensor, factor: float, unit: dict) -> Tensor:
    column = torch.full((x.shape[-1], 1), factor).bfloat16().float()
    return matmul(x.reshape(-1, x.shape[-1]), column, **unit).reshape(*x.shape[:-1], 1)


def _columns(x: Tensor, factor: float, unit: dict) -> Tensor:
    row = torch.full((1, x.shape[-2]), factor).bfloat16().float()
    flat = x.mT.reshape(-1, x.shape[-2])
    return matmul(row, flat.T, **unit).reshape(*x.shape[:-2], 1, x.shape[-1])
