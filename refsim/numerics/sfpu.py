"""Functions of the vector unit (SFPU) by name, accurate and approximate.

    destination (16 or 32 bits) --> float32 in a vector register --> the function's multiply-adds --> destination

A 16-bit destination has cheaper algorithms than one of 32 bits; which one ran is the destination's choice, not the
dtype's of the tensor. Errors that were measured: docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from refsim.numerics import sfpu_exponentials, sfpu_gelu, sfpu_roots, sfpu_trigonometry
from refsim.numerics.formats import truncate
from refsim.numerics.matrix_unit import ARCHES, LEVELS, check_choices
from refsim.numerics.vector_unit import VectorUnit


def _relu(unit: VectorUnit, x: Tensor) -> Tensor:
    return x.clamp(min=0.0)


def _square(unit: VectorUnit, x: Tensor) -> Tensor:
    return unit.stored_to_even(unit.mul(x, x))


_FUNCTIONS: dict[str, tuple[Callable, Callable | None]] = {
    "cos": (sfpu_trigonometry.cosine, None),
    "erf": (sfpu_gelu.erf, partial(sfpu_gelu.erf, approximate=True)),
    "exp": (sfpu_exponentials.exp, sfpu_exponentials.exp_approximate),
    "gelu": (sfpu_gelu.gelu, sfpu_gelu.gelu_approximate),
    "gelu_tanh": (sfpu_gelu.gelu_tanh, None),
    "log": (sfpu_roots.log, None),
    "mish": (sfpu_exponentials.mish, partial(sfpu_exponentials.mish, approximate=True)),
    "reciprocal": (sfpu_roots.reciprocal, partial(sfpu_roots.reciprocal, approximate=True)),
    "relu": (_relu, None),
    "rsqrt": (sfpu_roots.reciprocal_root, partial(sfpu_roots.reciprocal_root, approximate=True)),
    "sigmoid": (sfpu_exponentials.sigmoid, sfpu_exponentials.sigmoid_approximate),
    "silu": (sfpu_exponentials.silu, None),
    "sin": (sfpu_trigonometry.sine, None),
    "sqrt": (sfpu_roots.root, partial(sfpu_roots.root, approximate=True)),
    "square": (_square, None),
    "tanh": (sfpu_exponentials.tanh, sfpu_exponentials.tanh_approximate),
}
FUNCTIONS = tuple(_FUNCTIONS)


def sfpu(
    function: str,
    x: Tensor,
    *,
    approximate: bool = False,
    fp32_dest_acc_en: bool = True,
    arch: str = "wormhole_b0",
    level: str = "exact",
) -> Tensor:
    """Return what the destination holds after a function of the vector unit.

    Args:
        function: one of ``FUNCTIONS``.
        x: float32 of any shape, the values that the destination holds before; a 16-bit one cuts them to bf16.
        approximate: the cheap variant; functions that have none run the accurate one, as on the device.
        fp32_dest_acc_en: the destination has 32 bits, otherwise it holds bf16.
        arch: ``wormhole_b0`` or ``blackhole``; they differ in reciprocals.
        level: ``exact`` has the unit's multiply-add, ``fast`` the same algorithm in float32.

    Returns:
        float32 of the same shape.

    Raises:
        UserError: an unknown choice.
    """
    check_choices(function=(function, FUNCTIONS), arch=(arch, ARCHES), level=(level, LEVELS))
    accurate, cheap = _FUNCTIONS[function]
    unit = VectorUnit(arch, level, fp32_dest_acc_en)
    chosen = cheap if approximate and cheap else accurate
    return chosen(unit, x if fp32_dest_acc_en else truncate(x, 7))
