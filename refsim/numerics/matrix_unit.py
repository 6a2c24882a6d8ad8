"""The matrix unit: products of 5 x 7 bits, dots of 16, and a destination that is rounded after each of them.

    in0 (M, K) -> SrcB: 11-bit mantissas, high 7 bits / low 4      in1 (K, N) -> SrcA: high 5 bits / next 5

    a tile of 32 of K:   phase 0 in0-high . in1-high    K 0..15, then 16..31
                         phase 1 in0-high . in1-low     (HiFi2 and more)
                         phase 2 in0-low  . in1-high    (HiFi3 and more)
                         phase 3 in0-low  . in1-low     (HiFi4)

    a dot of 16:         two groups of 8: products shift to the group's largest exponent, half away from zero, and add
    the destination:     both groups and what it holds shift to the largest exponent of the three (a 16-bit one keeps
                         three guard bits), add exactly, and are rounded half up in magnitude to 24 or 8 bits

Level ``exact`` gives the bits of ttsim 1.10, ``fast`` the formulas of :mod:`refsim.numerics.cheap`.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics import cheap
from refsim.numerics.formats import bits_of, check_float32, from_bits

FIDELITIES = ("LoFi", "HiFi2", "HiFi3", "HiFi4")
"""Fidelity n runs the first n + 1 phases."""
ARCHES = ("wormhole_b0", "blackhole")
LEVELS = ("exact", "fast")
TILE = 32
"""Rows of K whose phases run one after the other."""
_SMALL = {True: 1 << 28, False: 1 << 24}
"""Products up to which level ``fast`` runs the loops of ``exact``, by whether the destination has 32 bits.

Those of 32 bits at HiFi3 and HiFi4 cost a third of the samples that stand for them at most, those of 16 bits four times
the cheap formula.
"""


def matmul(
    in0: Tensor,
    in1: Tensor,
    *,
    fidelity: str = "HiFi4",
    fp32_dest_acc_en: bool = True,
    arch: str = "wormhole_b0",
    level: str = "exact",
    start: Tensor | None = None,
) -> Tensor:
    """Return what the destination holds after all of K: no K blocks, nothing packed.

    Args:
        in0: float32 (M, K), goes to SrcB; cut to TF32, which changes no bf16, bfp8 or bfp4 value.
        in1: float32 (K, N), the weights, goes to SrcA; cut likewise.
        fidelity: ``LoFi``, ``HiFi2``, ``HiFi3`` or ``HiFi4``.
        fp32_dest_acc_en: the destination has 32 bits, otherwise it holds bf16.
        arch: ``wormhole_b0`` scales a negative result of one unit in the last place wrongly, ``blackhole`` does not.
        level: ``exact`` or ``fast``.
        start: float32 (M, N) that the destination holds before, by default zeros; values that it can hold.

    Returns:
        float32 (M, N).

    Raises:
        UserError: an unknown choice, or shapes that do not fit.
    """
    _check(in0, in1, fidelity, arch, level)
    phases = FIDELITIES.index(fidelity) + 1
    if not (in0.numel() and in1.numel()):
        return in0.new_zeros(in0.shape[0], in1.shape[1]) if start is None else start.clone()
    if level == "fast" and not _is_small(in0.shape[0] * in1.numel(), phases, fp32_dest_acc_en):
        return cheap.matmul(in0, in1, phases, fp32_dest_acc_en, start)
    compiled = loops()
    missing = -in0.shape[1] % TILE
    in0 = torch.nn.functional.pad(in0, (0, missing))
    panels = cheap.in_panels(torch.nn.functional.pad(in1, (0, 0, 0, missing)), compiled.COLUMNS)
    dest = bits_of(cheap.started(start, in0.shape[0], panels.shape[0] * compiled.COLUMNS)).numpy()
    bits = compiled.dots(*src_b(in0), *src_a(panels), dest, phases, fp32_dest_acc_en, arch == "wormhole_b0")
    return from_bits(torch.from_numpy(bits)[:, : in1.shape[1]])


def _is_small(products: int, phases: int, wide: bool) -> bool:
    """Whether level ``fast`` is exact: few results have statistics of their own, and samples would cost more."""
    if importlib.util.find_spec("numba") is None or (wide and phases < 3):
        return False
    return products <= _SMALL[wide]


def _check(in0: Tensor, in1: Tensor, fidelity: str, arch: str, level: str) -> None:
    check_choices(fidelity=(fidelity, FIDELITIES), arch=(arch, ARCHES), level=(level, LEVELS))
    check_float32("matmul", in0, in1)
    if in0.dim() != 2 or in1.dim() != 2 or in0.shape[1] != in1.shape[0]:
        raise UserError(
            f"matmul takes (M, K) and (K, N), not {tuple(in0.shape)} and {tuple(in1.shape)}; reshape batches into M."
        )


def check_choices(**chosen: tuple[str, tuple[str, ...]]) -> None:
    """Raise ``UserError`` for the first argument whose value is not among its choices."""
    for name, (value, choices) in chosen.items():
        if value not in choices:
            raise UserError(f"{name} '{value}' does not exist; choose one of {', '.join(choices)}.")


def check_level(level: str) -> None:
    """Raise ``UserError`` unless ``level`` exists and what it needs is installed."""
    check_choices(level=(level, LEVELS))
    if level == "exact":
        _need_numba()


def loops(name: str = "compiled") -> ModuleType:
    """Return a module of compiled loops of level ``exact``; ``UserError`` where numba is not installed."""
    _need_numba()
    return importlib.import_module(f"refsim.numerics.{name}")


def _need_numba() -> None:
    if importlib.util.find_spec("numba") is None:
        raise UserError(
            "level exact needs numba, which is not installed; pip install 'refsim[numerics]' or take level fast."
        )


def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sign (1 or -1), 11-bit mantissa (0 for a zero) and biased exponent of float32 values, as int16."""
    bits = bits_of(x)
    exponent = (bits >> 23 & 0xFF).to(torch.int16)
    mantissa = (bits >> 13 & 0x3FF | 0x400).to(torch.int16) * (exponent > 0)
    sign = (bits >> 31).to(torch.int16) * 2 + 1
    return sign, mantissa, exponent.masked_fill_(exponent == 0, loops().NOTHING)


def src_b(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return what the 7-bit port sees: biased exponent; twice the signed high and low part."""
    sign, mantissa, exponent = parts(x)
    return exponent.numpy(), torch.stack([2 * sign * (mantissa >> 4), sign * (mantissa & 15) << 4]).numpy()


def src_a(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return what the 5-bit port sees: biased exponent; signed high and low part."""
    sign, mantissa, exponent = parts(x)
    return exponent.numpy(), torch.stack([sign * (mantissa >> 6), sign * (mantissa >> 1 & 31)]).numpy()
