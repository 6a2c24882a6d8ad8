"""The matrix unit: products of 5 x 7 bits, dots of 16, and a destination that is rounded after each of them.

    in0 (M, K) -> SrcB: 11-bit mantissas, high 7 bits / low 4      in1 (K, N) -> SrcA: high 5 bits / next 5

    a tile of 32 of K:   phase 0 in0-high . in1-high    K 0..15, then 16..31
                         phase 1 in0-high . in1-low     (HiFi2 and more)
                         phase 2 in0-low  . in1-high    (HiFi3 and more)
                         phase 3 in0-low  . in1-low     (HiFi4)

    a dot of 16:         two groups of 8: products shift to the group's largest exponent, half away from zero, and add
    the destination:     both groups and what it holds shift to the largest exponent of the three (a 16-bit one keeps
                         three guard bits), add exactly, and are rounded half up in magnitude to 24 or 8 bits

Level ``exact`` gives the bits of ttsim 1.10. Level ``fast`` cuts the operands to what the phases see, multiplies in
float32 and, for a 16-bit destination, rounds it every 16 of K as the device does.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.formats import NOTHING, bits_of, from_bits, round_ties_away, truncate

FIDELITIES = ("LoFi", "HiFi2", "HiFi3", "HiFi4")
"""Fidelity n runs the first n + 1 phases."""
ARCHES = ("wormhole_b0", "blackhole")
LEVELS = ("exact", "fast")
TILE = 32
"""Rows of K whose phases run one after the other."""


def matmul(
    in0: Tensor,
    in1: Tensor,
    *,
    fidelity: str = "HiFi4",
    fp32_dest_acc_en: bool = True,
    arch: str = "wormhole_b0",
    level: str = "exact",
) -> Tensor:
    """Return what the destination holds after all of K: no K blocks, nothing packed.

    Args:
        in0: float32 (M, K), goes to SrcB; cut to TF32, which changes no bf16, bfp8 or bfp4 value.
        in1: float32 (K, N), the weights, goes to SrcA; cut likewise.
        fidelity: ``LoFi``, ``HiFi2``, ``HiFi3`` or ``HiFi4``.
        fp32_dest_acc_en: the destination has 32 bits, otherwise it holds bf16.
        arch: ``wormhole_b0`` scales a negative result of one unit in the last place wrongly, ``blackhole`` does not.
        level: ``exact`` or ``fast``.

    Returns:
        float32 (M, N).

    Raises:
        UserError: an unknown choice, or shapes that do not fit.
    """
    _check(in0, in1, fidelity, arch, level)
    phases = FIDELITIES.index(fidelity) + 1
    if level == "fast":
        return _fast(in0, in1, phases, fp32_dest_acc_en)
    compiled = loops()
    missing = -in0.shape[1] % TILE
    in0, in1 = torch.nn.functional.pad(in0, (0, missing)), torch.nn.functional.pad(in1, (0, 0, 0, missing))
    wormhole = arch == "wormhole_b0"
    bits = compiled.dots(_src_b(in0), _src_a(in1), phases, fp32_dest_acc_en, wormhole)
    return from_bits(torch.from_numpy(bits))


def _check(in0: Tensor, in1: Tensor, fidelity: str, arch: str, level: str) -> None:
    check_choices(fidelity=(fidelity, FIDELITIES), arch=(arch, ARCHES), level=(level, LEVELS))
    if in0.dim() != 2 or in1.dim() != 2 or in0.shape[1] != in1.shape[0]:
        raise UserError(
            f"matmul takes (M, K) and (K, N), not {tuple(in0.shape)} and {tuple(in1.shape)}; reshape batches into M."
        )


def check_choices(**chosen: tuple[str, tuple[str, ...]]) -> None:
    """Raise ``UserError`` for the first argument whose value is not among its choices."""
    for name, (value, choices) in chosen.items():
        if value not in choices:
            raise UserError(f"{name} '{value}' does not exist; choose one of {', '.join(choices)}.")


def loops() -> ModuleType:
    """Return the compiled loops of level ``exact``; ``UserError`` where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        raise UserError(
            "level exact needs numba, which is not installed; pip install 'refsim[numerics]' or take level fast."
        )
    from refsim.numerics import compiled

    return compiled


def _parts(x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sign (1 or -1), 11-bit mantissa (0 for a zero) and biased exponent of float32 values, as int32."""
    bits = bits_of(x)
    exponent = bits >> 23 & 0xFF
    mantissa = torch.where(exponent > 0, bits >> 13 & 0x3FF | 0x400, 0)
    sign = torch.where(bits < 0, -1, 1)
    exponent = torch.where(exponent > 0, exponent, NOTHING)
    return tuple(part.to(torch.int32).numpy() for part in (sign, mantissa, exponent))


def _src_b(x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the 7-bit port sees: signed high and low part, biased exponent."""
    sign, mantissa, exponent = _parts(x)
    return sign * (mantissa >> 4), sign * ((mantissa & 15) << 3), exponent


def _src_a(x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the 5-bit port sees: signed high and low part, biased exponent."""
    sign, mantissa, exponent = _parts(x)
    return sign * (mantissa >> 6), sign * (mantissa >> 1 & 31), exponent


def _fast(in0: Tensor, in1: Tensor, phases: int, fp32_dest_acc_en: bool) -> Tensor:
    """Multiply slices of the operands in float32; a 16-bit destination is rounded after every dot of 16."""
    if fp32_dest_acc_en:
        total = torch.stack([b @ a for b, a in merged(in0, in1, phases)]).sum(dim=0)
        return total if phases < 3 else total + _alignment_error(in0, in1, phases)
    pairs = slices(in0, in1, phases)
    held = torch.zeros(in0.shape[0], in1.shape[1])
    for start in range(0, in0.shape[1], TILE):
        for b, a in pairs:
            for half in (start, start + TILE // 2):
                rest = slice(half, half + TILE // 2)
                held = add_to_bf16(held, b[:, rest] @ a[rest])
    return held


_LEAST = -100
"""Exponent of a zero in the fast level: below what is held, above where float32 has no more units."""
SAMPLE = 64
"""Rows and columns whose exact dots say how large the error is that shifting to common exponents makes."""


def _alignment_error(in0: Tensor, in1: Tensor, phases: int) -> Tensor:
    """Return what shifting products to a common exponent adds, which only shows where all bits are multiplied.

    A tie goes away from zero, a bias that products of one sign add up; the rest is noise. How much of either depends
    on how far exponents lie apart, and is measured on the exact dots of a few rows and columns. Noise has one seed.
    """
    rows, columns = (_spread_out(count) for count in (in0.shape[0], in1.shape[1]))
    sample = in0[rows].contiguous(), in1[:, columns].contiguous()
    exact = matmul(*sample, fidelity=FIDELITIES[phases - 1], level="exact", arch="blackhole")
    error = exact - sum(b @ a for b, a in merged(*sample, phases))
    bias, variance = _powers(*sample)
    lean = (error * bias).sum() / bias.square().sum().clamp(min=1e-30)
    spread = (error - lean * bias).square().sum() / variance.sum().clamp(min=1e-30)
    bias, variance = _powers(in0, in1)
    noise = torch.randn(variance.shape, generator=torch.Generator().manual_seed(0))
    return lean * bias + noise * (spread * variance).sqrt()


def _spread_out(count: int) -> Tensor:
    """Return at most ``SAMPLE`` indices below ``count``, evenly spaced."""
    return torch.arange(0, count, -(-count // SAMPLE))


def _powers(in0: Tensor, in1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over K of the products' powers of two with their signs, and of their squares."""
    sides = []
    for x in (in0, in1):
        power = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 1)
        sides.append(x.sign() * power)
    return sides[0] @ sides[1], sides[0].square() @ sides[1].square()


def slices(in0: Tensor, in1: Tensor, phases: int) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of every phase: float32 values of (high or low part of in0, high or low part of in1)."""
    in0, in1 = truncate(in0, 10), truncate(in1, 10)
    b_high, a_high = truncate(in0, 6), truncate(in1, 4)
    b_low, a_low = in0 - b_high, truncate_low(in1, a_high)
    return [(b_high, a_high), (b_high, a_low), (b_low, a_high), (b_low, a_low)][:phases]


def truncate_low(x: Tensor, high: Tensor) -> Tensor:
    """Return the five bits behind the five high ones; the last of the 11 bits of a TF32 value is seen by no phase."""
    return truncate(x, 9) - high


def merged(in0: Tensor, in1: Tensor, phases: int) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of the fewest products that are the sum of the phases."""
    in0, in1 = truncate(in0, 10), truncate(in1, 9)
    b_high, a_high = truncate(in0, 6), truncate(in1, 4)
    return {
        1: [(b_high, a_high)],
        2: [(b_high, in1)],
        3: [(b_high, in1), (in0 - b_high, a_high)],
        4: [(in0, in1)],
    }[phases]


def add_to_bf16(held: Tensor, x: Tensor) -> Tensor:
    """Add to a destination of 16 bits: at the larger exponent with three guard bits, rounded half away to 8 bits."""
    exponents = [torch.where(side == 0, _LEAST, torch.frexp(side).exponent) for side in (held, x)]
    exponent = torch.maximum(*exponents)
    unit = torch.ldexp(torch.ones_like(x), exponent - 1 - 10)
    return round_ties_away(held + unit * torch.floor(x / unit + 0.5), 7)
