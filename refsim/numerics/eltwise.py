"""Element-wise operations of the matrix unit: one product a phase, or one sum of 11-bit mantissas.

Addition and subtraction round the smaller operand to the last of the larger one's 11 bits, so they are good to 2^-11
of the larger even with a destination of 32 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.formats import from_bits, round_ties_away, truncate
from refsim.numerics.matrix_unit import (
    ARCHES,
    FIDELITIES,
    LEVELS,
    _parts,
    _src_a,
    _src_b,
    add_to_bf16,
    check_choices,
    loops,
    slices,
)

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
    a, b = torch.broadcast_tensors(a, b)
    phases = FIDELITIES.index(fidelity) + 1
    if level == "fast":
        return _fast(operation, a, b, phases, fp32_dest_acc_en)
    compiled = loops()
    wormhole = arch == "wormhole_b0"
    a_flat, b_flat = a.reshape(-1), b.reshape(-1)
    if operation == "mul":
        bits = compiled.products(_src_b(b_flat), _src_a(a_flat), phases, fp32_dest_acc_en, wormhole)
    else:
        a_sign, a_mantissa, a_exponent = _parts(a_flat)
        b_sign, b_mantissa, b_exponent = _parts(-b_flat if operation == "sub" else b_flat)
        operands = a_sign * a_mantissa, a_exponent, b_sign * b_mantissa, b_exponent
        bits = compiled.sums(*operands, fp32_dest_acc_en, wormhole)
    return from_bits(torch.from_numpy(bits)).reshape(a.shape)


def _fast(operation: str, a: Tensor, b: Tensor, phases: int, fp32_dest_acc_en: bool) -> Tensor:
    """Compute in float32 on what the unit sees, and round a destination of 16 bits after every phase."""
    if operation == "mul":
        held = torch.zeros_like(a)
        for x, y in slices(b, a, phases):
            held = held + x * y if fp32_dest_acc_en else add_to_bf16(held, x * y)
        return held
    a, b = truncate(a, 10), truncate(b, 10)
    unit = torch.ldexp(torch.ones_like(a), torch.maximum(torch.frexp(a).exponent, torch.frexp(b).exponent) - 11)
    a, b = (unit * x.sign() * torch.floor(x.abs() / unit + 0.5) for x in (a, b))
    held = a - b if operation == "sub" else a + b
    return held if fp32_dest_acc_en else round_ties_away(held, 7)
