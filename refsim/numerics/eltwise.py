"""Element-wise operations of the matrix unit: one product a phase, or one sum of 11-bit mantissas.

Addition and subtraction round the smaller operand to the last of the larger one's 11 bits, so they are good to 2^-11
of the larger even with a destination of 32 bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.cheap import LEAST, add_to_bf16, slices
from refsim.numerics.formats import (
    LARGE,
    check_broadcast,
    check_float32,
    from_bits,
    in_one_pass,
    passes,
    round_ties_away,
    truncate,
)
from refsim.numerics.matrix_unit import ARCHES, FIDELITIES, LEVELS, check_choices, loops, parts, src_a, src_b

OPERATIONS = ("add", "sub", "mul")


def eltwise(
    operation: str,
    a: Tensor,
    b: Tensor,
    *,
    fidelity: str = "HiFi4",
    fp32_dest_acc_en: bool = True,
    arch: str = "wormhole_b0",
    level: str = "exact",
) -> Tensor:
    """Return what the destination holds after ``a`` and ``b`` are added, subtracted or multiplied.

    Args:
        operation: ``add``, ``sub`` or ``mul``.
        a: float32, goes to SrcA (5-bit port); cut to TF32.
        b: float32, broadcast against ``a``, goes to SrcB (7-bit port); cut to TF32.
        fidelity: of ``mul``; the others have one phase.
        fp32_dest_acc_en, arch, level: as in :func:`refsim.numerics.matmul`.

    Raises:
        UserError: an unknown choice.
    """
    if operation not in OPERATIONS:
        raise UserError(f"eltwise '{operation}' does not exist; choose one of {', '.join(OPERATIONS)}.")
    check_choices(fidelity=(fidelity, FIDELITIES), arch=(arch, ARCHES), level=(level, LEVELS))
    check_float32(f"eltwise '{operation}'", a, b)
    check_broadcast(f"eltwise '{operation}'", a, b)
    a, b = torch.broadcast_tensors(a, b)
    phases = FIDELITIES.index(fidelity) + 1
    if level == "fast":
        return _fast(operation, a, b, phases, fp32_dest_acc_en)
    compiled = loops()
    wormhole = arch == "wormhole_b0"
    a_rows, b_rows = (_in_rows(x, compiled.COLUMNS) for x in (a, b))
    if operation == "mul":
        bits = compiled.products(*src_b(b_rows), *src_a(a_rows), phases, fp32_dest_acc_en, wormhole)
    else:
        operands = []
        for x in (a_rows, -b_rows if operation == "sub" else b_rows):
            sign, mantissa, exponent = parts(x)
            operands += [(2 * sign * mantissa).numpy(), exponent.numpy()]
        bits = compiled.sums(*operands, fp32_dest_acc_en, wormhole)
    return from_bits(torch.from_numpy(bits).reshape(-1)[: a.numel()]).reshape(a.shape)


def _in_rows(x: Tensor, columns: int) -> Tensor:
    """Return all values as (rows, ``columns``), filled up with zeros."""
    flat = x.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % columns)).reshape(-1, columns)


def _fast(operation: str, a: Tensor, b: Tensor, phases: int, fp32_dest_acc_en: bool) -> Tensor:
    """Compute in float32 on what the unit sees, and round a destination of 16 bits after every phase."""
    if a.numel() >= LARGE and passes() is not None:
        if operation == "mul":
            return in_one_pass("products", a, b, phases, fp32_dest_acc_en)
        return in_one_pass("sums", a, b, np.float32(-1.0 if operation == "sub" else 1.0), fp32_dest_acc_en)
    if operation == "mul":
        dest = torch.zeros_like(a)
        for x, y in slices(b, a)[:phases]:
            dest = dest + x * y if fp32_dest_acc_en else add_to_bf16(dest, x * y)
        return dest
    a = truncate(a, 10)
    b = truncate(b, 10)
    exponents = [torch.where(x == 0, LEAST, torch.frexp(x).exponent) for x in (a, b)]
    unit = torch.ldexp(torch.ones_like(a), torch.maximum(*exponents) - 11)
    a, b = (unit * x.sign() * torch.floor(x.abs() / unit + 0.5) for x in (a, b))
    dest = a - b if operation == "sub" else a + b
    return dest if fp32_dest_acc_en else round_ties_away(dest, 7)
