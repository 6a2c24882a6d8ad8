"""Level fast of the matrix unit: what the phases see, multiplied in float32, and a model of what is rounded on the way.

    fp32 destination     in0 cut to 7 bits | in1 cut to 5 or 10 bits --> one or two products in float32
                         HiFi3, HiFi4: what shifting products to common exponents costs, by samples
    16-bit destination   for each dot of 16 of each phase: halves are rounded to three guard bits, the sum to 8

The 16-bit destination is a compiled loop where numba is installed and the same formulas in torch, several times slower,
where it is not.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from refsim.numerics.formats import bits_of, from_bits, round_ties_away, truncate

_STEP = 16
"""Values of K in a dot."""
_ROWS = 32
"""Rows whose errors stand for those of all, see :func:`sampled`."""
_GROUP = 8
"""Products that are shifted to one exponent."""
_SAMPLES = 1 << 21
"""Products whose exact sums say how large the error of shifting is: of as many results, at most a quarter of them."""
_LEAST_RESULTS = 512
"""Results that are looked at however long their sums are."""
_POWERS = 12
"""Powers of two of a growing destination that are told apart, from the largest."""
_PHASES = (0, 5, 7, 12)
"""How many powers of two the products of each phase are smaller by."""
LEAST = -100
"""Exponent of a zero: below what is held, above where float32 has no more units."""


def matmul(in0: Tensor, in1: Tensor, phases: int, wide: bool, start: Tensor | None = None) -> Tensor:
    """Return float32 (M, N) of (M, K) and (K, N), which a destination of 32 (``wide``) or 16 bits holds."""
    if not wide:
        return _narrow(in0, in1, phases, start)
    total = sum(product(b, a) for b, a in merged(in0, in1, phases))
    if phases >= 3:
        total += _alignment(in0, in1, total, phases)
    return total if start is None else total.add_(start)


Errors: TypeAlias = tuple[np.float32, np.float32, np.float32, np.float32]
"""Gain of a product, the size of a result past which the second noise holds, and both noises."""


def sampled(in0: Tensor, in1: Tensor, phases: int, out: Tensor | None = None) -> tuple[Tensor, Errors]:
    """Return a product and how large a 16-bit destination's errors of it are, which some rows are computed for.

    Args:
        in0, in1: bf16 values (M, K) and (K, N); in0 has no more bits than ``phases`` see, see :func:`seen`.
        phases: how many run.
        out: where the product may be put, float32 (M, N).

    Returns:
        float32 (M, N) without the errors, and what the pass ``noisy`` takes to add them.
    """
    pairs = [(in0, _cut(in1, 4 if phases == 1 else 9))] if phases in (1, 2) else merged(in0, in1, phases)
    total = product(*pairs[0], exact=True, out=out)
    for b, a in pairs[1:]:
        total += product(b, a, exact=True)
    rows = torch.linspace(0, in0.shape[0] - 1, _ROWS).long()
    plain = total[rows]
    error = matmul(in0[rows], in1, phases, wide=False) - plain
    gain = ((error * plain).sum() / plain.square().sum().clamp(min=1e-30)).item()
    error -= gain * plain
    border = plain.square().mean().sqrt().item()
    packing = torch.where(plain == 0, 0.0, torch.ldexp(torch.ones_like(plain), torch.frexp(plain).exponent - 8))
    # uniform, so that its variance is a third of its largest square; what rounding to 8 bits adds is no part of it
    spare = error.square() - packing.square() / 12
    far = plain.abs() > border
    small, large = (spare[part].mean().clamp(min=0).mul(3).sqrt().item() if part.any() else 0.0 for part in (~far, far))
    return total, (np.float32(gain), np.float32(border), np.float32(small), np.float32(large))


def _narrow(in0: Tensor, in1: Tensor, phases: int, start: Tensor | None) -> Tensor:
    """Round a destination of 16 bits after every dot of 16."""
    missing = -in0.shape[1] % (2 * _STEP)
    in0 = torch.nn.functional.pad(in0, (0, missing))
    in1 = torch.nn.functional.pad(in1, (0, 0, 0, missing))
    pairs = slices(in0, in1)
    if importlib.util.find_spec("numba") is None:
        return _narrow_in_torch(pairs[:phases], started(start, in0.shape[0], in1.shape[1]))
    from refsim.numerics import compiled_cheap as compiled

    b = torch.stack([pairs[0][0], pairs[2][0]])
    a = torch.stack([in_panels(pairs[phase][1], compiled.COLUMNS) for phase in (0, 1)])
    dest = started(start, in0.shape[0], a.shape[1] * compiled.COLUMNS)
    values = compiled.cheap_dots(b.numpy(), a.numpy(), dest.numpy(), phases)
    return torch.from_numpy(values)[:, : in1.shape[1]].contiguous()


def started(start: Tensor | None, rows: int, columns: int) -> Tensor:
    """Return what a destination of (rows, columns) holds before: zeros, or ``start`` filled up with zeros."""
    if start is None:
        return torch.zeros(rows, columns)
    return torch.nn.functional.pad(start, (0, columns - start.shape[1])).contiguous()


def _narrow_in_torch(pairs: list[tuple[Tensor, Tensor]], dest: Tensor) -> Tensor:
    for start in range(0, pairs[0][0].shape[1], 2 * _STEP):
        for b, a in pairs:
            for half in (start, start + _STEP):
                middle = slice(half, half + _GROUP), slice(half + _GROUP, half + _STEP)
                dest = add_to_bf16(dest, *(b[:, part] @ a[part] for part in middle))
    return dest


def in_panels(x: Tensor, columns: int) -> Tensor:
    """Return (K, N) as (panels, K, ``columns``), filled up with zeros."""
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % columns))
    return x.reshape(x.shape[0], -1, columns).permute(1, 0, 2).contiguous()


def seen(in0: Tensor, phases: int) -> Tensor:
    """Return what one or two phases see of bf16 values in SrcB, seven bits; more of them see all."""
    return _cut(in0, 6) if phases < 3 else in0


def product(in0: Tensor, in1: Tensor, *, exact: bool | None = None, out: Tensor | None = None) -> Tensor:
    """Multiply in float32; operands that bf16 holds exactly by the CPU's bf16 products, which add in float32.

    Args:
        in0, in1: (.., M, K) and (.., K, N).
        exact: whether bf16 holds them; None looks.
        out: where the result may be put.
    """
    if exact is None:
        exact = not any((bits_of(x) & 0xFFFF).any() for x in (in0, in1))
    with _products_in("bf16" if exact else "ieee"):
        return torch.matmul(in0, in1, out=out)


@contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """Multiply float32 matrices in ``precision`` where oneDNN can."""
    unit = torch.backends.mkldnn.matmul
    before = unit.fp32_precision
    unit.fp32_precision = precision
    try:
        yield
    finally:
        unit.fp32_precision = before


def slices(in0: Tensor, in1: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of the four phases: float32 values of (high or low part of in0, high or low part of in1)."""
    in0 = truncate(in0, 10)
    b_high = truncate(in0, 6)
    a_high = truncate(in1, 4)
    # the last of the 11 bits of a TF32 value in SrcA is seen by no phase
    b_low = in0 - b_high
    a_low = truncate(in1, 9) - a_high
    return [(b_high, a_high), (b_high, a_low), (b_low, a_high), (b_low, a_low)]


def merged(in0: Tensor, in1: Tensor, phases: int) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of the fewest products that are the sum of the phases."""
    if phases == 1:
        return [(_cut(in0, 6), _cut(in1, 4))]
    if phases == 2:
        return [(_cut(in0, 6), _cut(in1, 9))]
    if phases == 4:
        return [(_cut(in0, 10), _cut(in1, 9))]
    b_high = _cut(in0, 6)
    return [(b_high, _cut(in1, 9)), (_cut(in0, 10) - b_high, _cut(in1, 4))]


def _cut(x: Tensor, mantissa_bits: int) -> Tensor:
    """Truncate as :func:`truncate` does, but leave denormals, which add nothing that counts."""
    return from_bits(bits_of(x) & -1 << (23 - mantissa_bits))


def add_to_bf16(dest: Tensor, *sums: Tensor) -> Tensor:
    """Add to a destination of 16 bits: at the largest exponent with three guard bits, rounded half away to 8 bits."""
    exponents = [torch.where(x == 0, LEAST, torch.frexp(x).exponent) for x in (dest, *sums)]
    unit = torch.ldexp(torch.ones_like(dest), torch.stack(exponents).amax(dim=0) - 1 - 10)
    return round_ties_away(dest + sum(unit * torch.floor(x / unit + 0.5) for x in sums), 7)


def _alignment(in0: Tensor, in1: Tensor, total: Tensor, phases: int) -> Tensor:
    """Return what shifting products and sums to common exponents adds to ``total``: a gain, a bias and noise.

    Ties go away from zero, which is the gain. All are measured on groups of eight products, at random. The noise of an
    element is as large as the powers of two of its operands say; its sign and size come from the bits of the element,
    so that equal operands give equal values.
    """
    in0, in1 = (torch.nn.functional.pad(x, pad) for x, pad in _whole_groups(in0, in1))
    measured = _sampled(in0, in1, phases)
    b_power = _squared_powers(in0).unflatten(1, (-1, _GROUP)).sum(dim=2)
    a_power = _squared_powers(in1).unflatten(0, (-1, _GROUP)).sum(dim=1)
    variance = product((b_power * measured.spread).bfloat16().float(), a_power.bfloat16().float())
    # how large an element is beside the others, by its row and column alone: zeros get neither a bias nor noise
    size = torch.outer(_by_mean(b_power.sum(dim=1).sqrt()), _by_mean(a_power.sum(dim=0).sqrt()))
    variance += measured.variance * size.square()
    # uniform, so that its variance is a third of its largest square
    noise = (
        variance.mul_(3).sqrt_().mul_(_hashed(total)).add_(size, alpha=measured.bias).add_(total, alpha=measured.gain)
    )
    if not math.isfinite(noise.abs().max().item()):
        noise.nan_to_num_(0.0, 0.0, 0.0)  # squares beyond float32: of results that large all of it is left out
    return noise


def _by_mean(x: Tensor) -> Tensor:
    """Divide by the mean of those that are finite."""
    return x / x[x.isfinite()].mean().clamp(min=torch.finfo(torch.float32).tiny)


def _squared_powers(x: Tensor) -> Tensor:
    """Return the squares of the powers of two that values begin with."""
    return torch.square(from_bits(bits_of(x) & 0x7F800000))


def _whole_groups(in0: Tensor, in1: Tensor) -> tuple[tuple[Tensor, tuple], ...]:
    missing = -in0.shape[1] % _GROUP
    return (in0, (0, missing)), (in1, (0, 0, 0, missing))


def _hashed(x: Tensor) -> Tensor:
    """Return values between -1 and 1 that look random, made of the bits of ``x``."""
    bits = bits_of(x) * -0x61C88647
    bits ^= bits >> 15
    bits *= -0x7A143595
    return bits.to(torch.float32).mul_(2.0**-31)


@dataclass(frozen=True)
class _Shifted:
    """What shifting groups of eight products to one exponent, and their sums to the destination's, costs.

    Attributes:
        gain: of the results.
        spread: float32 (groups,), the variance of a group's error in that of its operands' powers of two.
        bias: what all results of usual size are off by besides.
        variance: of shifting sums to the destination's exponent, of a result of usual size.
    """

    gain: float
    spread: Tensor
    bias: float
    variance: float


def _sampled(in0: Tensor, in1: Tensor, phases: int) -> _Shifted:
    """Measure on some results what the phase of high parts does to all of their groups.

    It makes nearly all of the errors: products of the other phases are 2^5 times smaller or less.
    """
    quarter = in0.shape[0] * in1.shape[1] // 4
    count = max(32, min(quarter, max(_LEAST_RESULTS, _SAMPLES // in0.shape[1])))
    generator = torch.Generator().manual_seed(0)
    row, column = (torch.randint(size, (count,), generator=generator) for size in (in0.shape[0], in1.shape[1]))
    b = in0[row]
    a = in1[:, column].T
    exponents = [torch.where(x == 0, -300, torch.frexp(x).exponent - 1) for x in (b, a)]
    largest = sum(exponents).unflatten(1, (-1, _GROUP)).amax(dim=2)
    unit = torch.ldexp(torch.ones_like(largest, dtype=torch.float32), largest.clamp(min=-110) - 10)
    products = (truncate(b, 6) * truncate(a, 4)).unflatten(1, (-1, _GROUP))
    shifted = _shifted(products, unit)
    whole = products.double().sum(dim=2)
    error = shifted - whole
    powers = [_squared_powers(x).double().unflatten(1, (-1, _GROUP)).sum(dim=2) for x in (b, a)]
    squares = powers[0] * powers[1]
    finite = torch.stack([error, whole, squares]).isfinite().all(dim=0)
    error, whole, squares = (torch.where(finite, x, 0.0) for x in (error, whole, squares))
    size = whole.sum(dim=1).abs().mean().item()
    variance, bias = _to_destination(slices(b, a)[:phases], unit, size)
    # errors that all results share are a bias; the gain is of what differs between them
    means = error.mean(dim=0), whole.mean(dim=0)
    error -= means[0]
    whole -= means[1]
    gain = (error * whole).sum() / whole.square().sum().clamp(min=1e-300)
    bias += (means[0] - gain * means[1]).sum().item()
    spread = (error - gain * whole).square().sum(dim=0) / squares.sum(dim=0).clamp(min=1e-300)
    return _Shifted(gain.item(), spread.float(), bias, variance)


def _shifted(products: Tensor, unit: Tensor) -> Tensor:
    """Return float64 (results, groups), the sums of (results, groups, 8) products as multiples of ``unit``."""
    unit = unit[:, :, None]
    return (unit * products.sign() * torch.floor(products.abs() / unit + 0.5)).double().sum(dim=2)


def _to_destination(parts: list[tuple[Tensor, Tensor]], unit: Tensor, size: float) -> tuple[float, float]:
    """Return variance and bias of shifting sums of eight products, half up, to a destination that grows to ``size``.

    Args:
        parts: operands of the phases of some results, (results, K).
        unit: of the sums of the phase of high parts, (results, groups).
        size: of a result; sums of one sign, which are the large ones, grow as straight lines.
    """
    variance = 0.0
    bias = 0.0
    if size == 0:  # rows that fill a tile up
        return variance, bias
    power = math.frexp(size)[1] - 1
    for phase, (b, a) in zip(_PHASES, parts, strict=False):
        finest = unit * 2.0**-phase
        sums = None
        for below in range(_POWERS):
            # the part of all steps at which the destination begins with this power of two
            share = (min(size, 2.0 ** (power - below + 1)) - 2.0 ** (power - below)) / size
            last = 2.0 ** (power - below - 23)
            if not (finest < last).any():
                break
            if sums is None:
                sums = _shifted((b * a).unflatten(1, (-1, _GROUP)), finest)
            error = last * torch.floor(sums / last + 0.5) - sums
            means = error.mean(dim=0)
            variance += share * (error - means).square().mean(dim=0).sum().item()
            bias += share * means.sum().item()
    return variance, bias
