"""Element-wise composites: binary operations, modulation, addcmul, rotary embedding, embedding, tilize.

add, subtract   matrix unit (11-bit mantissas) unless both are fp32: then vector unit, rounded once
multiply        vector unit; in a 16-bit destination 0 times anything is 0; `fast` takes the matrix unit
divide          vector unit; `fast` packs the reciprocal and takes the matrix unit
power           vector unit; a number 0, 1, 2 or 3 by products, any other by its logarithm
logit           clamped, packed | x / (1 - x), its logarithm: one kernel on the vector unit
modulation      1 + scale | x (1 + scale) | + shift: three kernels, each packs
addcmul         one kernel: a + value b c on the vector unit, packed once
rotary          x . swap (a matmul that moves pairs) | that times sin | x times cos | the sum: packed each
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics import sfpu_powers, sfpu_roots
from refsim.numerics.composites.compute import Compute, by_rows, reloaded

BINARY = Compute("HiFi4", fp32_dest_acc_en=False)


def add(a: Tensor, b: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.add`` of float32 tensors that broadcast; ``dtype`` is that of operands and result."""
    if dtype == "float32":
        a, b = torch.broadcast_tensors(a, b)
        return compute.store(_wide(compute).vector().mad(a, 1.0, b), dtype)
    return compute.store(compute.add(a, b), dtype)


def subtract(a: Tensor, b: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.subtract``, as :func:`add`."""
    if dtype == "float32":
        return add(a, -b, dtype=dtype, compute=compute)
    return compute.store(compute.sub(a, b), dtype)


def multiply(a: Tensor, b: Tensor, *, dtype: str = "bfloat16", fast: bool = False, compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.multiply``; ``fast`` is its ``fast_and_approximate_mode``, which takes the matrix unit."""
    a, b = torch.broadcast_tensors(a, b)
    if fast:
        return compute.store(compute.mul(a, b), dtype)
    return compute.store(product(_wide(compute) if dtype == "float32" else compute, a, b), dtype)


def product(compute: Compute, a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two tensors of one shape in the destination, by the vector unit."""
    unit = compute.vector()
    dest = unit.stored_to_even(unit.mul(a, b))
    return dest if unit.wide else torch.where((a == 0) | (b == 0), 0.0, dest)


def divide(a: Tensor, b: Tensor, *, dtype: str = "bfloat16", fast: bool = False, compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.div``; ``fast`` is its ``fast_and_approximate_mode``, for operands that are not fp32."""
    a, b = torch.broadcast_tensors(a, b)
    return compute.store(quotient(_wide(compute) if dtype == "float32" else compute, a, b, fast), dtype)


def quotient(compute: Compute, a: Tensor, b: Tensor, fast: bool = False) -> Tensor:
    """Return the quotient of two tensors of one shape in the destination."""
    if fast:
        return compute.mul(a, compute.store(compute.sfpu("reciprocal", b)))
    return sfpu_roots.quotient(compute.vector(), a, b)


def power(x: Tensor, exponent: Tensor | float, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.pow`` of a float32 tensor and a number, or one that broadcasts with it."""
    compute = _wide(compute) if dtype == "float32" else compute
    return compute.store(raised(compute, x, exponent), dtype)


def raised(compute: Compute, x: Tensor, exponent: Tensor | float) -> Tensor:
    """Return a power in the destination; two tensors have a kernel of their own."""
    if isinstance(exponent, Tensor):
        x, exponent = torch.broadcast_tensors(x, exponent)
        return sfpu_powers.power(compute.vector(), x, exponent, of_tensor=True)
    if exponent in (0, 1, 2, 3):
        return sfpu_powers.whole_power(compute.vector(), x, int(exponent))
    return sfpu_powers.power(compute.vector(), x, torch.full_like(x, exponent), of_tensor=False)


def logit(x: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.logit`` of values that are clamped: ln(x / (1 - x)), 1 - x rounded to the destination's bits."""
    compute = _wide(compute) if dtype == "float32" else compute
    unit = compute.vector()
    rest = unit.mad(-x, 1.0, 1.0)
    rest = rest if unit.wide else rest.bfloat16().float()
    return compute.store(compute.sfpu("log", sfpu_roots.quotient(unit, x, rest)), dtype)


def _wide(compute: Compute) -> Compute:
    return Compute(compute.fidelity, fp32_dest_acc_en=True, arch=compute.arch, level=compute.level)


def modulate(x: Tensor, shift: Tensor, scale: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return x (1 + scale) + shift as the kernels of add and multiply give it, one after the other."""
    factor = add(scale, torch.ones_like(scale), dtype=dtype, compute=compute)
    return add(multiply(x, factor, dtype=dtype, compute=compute), shift, dtype=dtype, compute=compute)


def addcmul(
    a: Tensor, b: Tensor, c: Tensor, *, value: float = 1.0, dtype: str = "bfloat16", compute: Compute = BINARY
) -> Tensor:
    """Return ``ttnn.addcmul``: a + value b c, rounded once."""
    a, b, c = torch.broadcast_tensors(a, b, c)
    unit = compute.vector()
    dest = unit.mad(unit.mul(b, value) if value != 1.0 else b, c, a)
    return compute.store(unit.stored(dest), dtype)


def activation(function: str, x: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return a unary op: copied to the destination, one function of the vector unit, packed."""
    dest = reloaded(x) if dtype == "float32" and not compute.fp32_dest_acc_en else x
    return compute.store(compute.sfpu(function, dest), dtype)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY) -> Tensor:
    """Return ``ttnn.experimental.rotary_embedding_llama``: pairs (2i, 2i + 1) of the last dim are turned.

    Args:
        x: float32 (..., D), D a multiple of 32.
        cos, sin: float32 that broadcast to ``x``, each value twice.
        dtype: of all tensors.
        compute: HiFi4 by default.
    """
    swap = swapped()
    tiles = x.reshape(*x.shape[:-1], -1, swap.shape[0])
    turned = compute.store(compute.matmul(by_rows(tiles), swap), dtype).reshape(x.shape)
    return turned_by(x, turned, cos, sin, dtype=dtype, compute=compute)


def swapped() -> Tensor:
    """Return what pairs (2i, 2i + 1) of 32 columns are multiplied by, to become (-x[2i + 1], x[2i])."""
    swap = torch.zeros(32, 32)
    even = torch.arange(0, 32, 2)
    swap[even + 1, even] = -1.0
    swap[even, even + 1] = 1.0
    return swap


def turned_by(
    x: Tensor, turned: Tensor, cos: Tensor, sin: Tensor, *, dtype: str = "bfloat16", compute: Compute = BINARY
) -> Tensor:
    """Return x cos + turned sin, each product packed."""
    turned = compute.store(compute.mul(turned, sin), dtype)
    straight = compute.store(compute.mul(x, cos), dtype)
    return compute.store(compute.add(straight, turned), dtype)


def embedding(indices: Tensor, table: Tensor, *, dtype: str = "bfloat16") -> Tensor:
    """Return ``ttnn.embedding``: rows are copied, then tilized."""
    return tilize(table[indices], dtype=dtype)


def tilize(x: Tensor, *, dtype: str = "bfloat16") -> Tensor:
    """Return ``ttnn.tilize``: through the destination, so fp32 is cut to TF32 and another dtype packed."""
    return Compute(fp32_dest_acc_en=dtype == "float32").store(reloaded(x), dtype)
