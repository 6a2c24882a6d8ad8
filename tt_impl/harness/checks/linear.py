"""What operations make of parts of a sum: a part of the result's sum, or nothing that can be added up.

    part + part, part x whole, part @ whole, -part, part / whole      a part
    part + whole, addcmul(whole, part, whole)                         a part, the whole counted once per device
    gelu(part), part x part, part @ part, whole / part, max(part)     not linear

An operation of several tensors is a sum of terms, each a product of some of its operands: ``addcmul`` is 0 + 1 x 2.
An operand in no term (a divisor, a condition) must be whole, and two parts may not meet in one term.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from tt_impl.harness.checks.reads import is_output
from tt_impl.mock.log.events import Event, TensorUse
from tt_impl.mock.rules.binary import BINARY
from tt_impl.mock.rules.eltwise import UNARY

Terms = tuple[tuple[int, ...], ...]

_SUM: Terms = ((0,), (1,))
_PRODUCT: Terms = ((0, 1), (2,))
_TERMS: dict[str, Terms] = {
    **dict.fromkeys("add addalpha rsub subalpha subtract bcast".split(), _SUM),
    **dict.fromkeys("div divide div_no_nan".split(), ((0,),)),
    **dict.fromkeys("linear mac matmul multiply".split(), _PRODUCT),
    "sparse_matmul": ((0, 1),),
    **dict.fromkeys("experimental.minimal_matmul experimental.minimal_matmul_split".split(), _PRODUCT),
    **dict.fromkeys("experimental.attn_matmul experimental.group_attn_matmul".split(), _PRODUCT),
    **dict.fromkeys("addcmul addmm".split(), ((0,), (1, 2))),
    "addcdiv": ((0,), (1,)),
    "experimental.dit_minimal_matmul_addcmul_fused": ((0, 1, 4), (3,), (2, 4), (5, 4)),
    "lerp": ((0,), (0, 2), (1, 2)),
    "where": ((1,), (2,)),
}
"""Sums of products, by operands; the third of a product is its bias."""
_PLACES = {
    **dict.fromkeys("a input input_a input_tensor input_tensor_a matmul_input_tensor predicate".split(), 0),
    **dict.fromkeys("b input_b input_tensor_b mat1_tensor other tensor1 true_value weight".split(), 1),
    **dict.fromkeys("matmul_weight_tensor weight_tensor".split(), 1),
    **dict.fromkeys("bias bias_tensor c input_c input_tensor_c mat2_tensor tensor2 false_value".split(), 2),
    "addcmul_input_tensor1": 3,
    "addcmul_input_tensor2": 4,
}
"""What operands are called by keyword."""
_LINEAR = frozenset("alt_complex_rotate90 deg2rad fill identity neg rad2deg tril triu".split())
_NONLINEAR = frozenset(UNARY) - _LINEAR
_NONLINEAR |= frozenset(BINARY) - _TERMS.keys()
_NONLINEAR |= frozenset(
    "argmax cumprod geglu glu isclose max min moe nonzero polyval prod reglu sampling sort std swiglu topk unary_chain "
    "var".split()
)
_NONLINEAR_FAMILIES = re.compile("softmax|scaled_dot_product|latent_attention|_mla|norm|fused_rms")


class Effect(Enum):
    """What an operation does with the parts among its operands."""

    KEEPS = auto()
    """Its result is a part of a sum."""
    ADDS = auto()
    """The same, and it adds to each part what is whole."""
    SPOILS = auto()
    """Its result is no part of any sum."""


def bare(event: Event) -> str:
    """Return the name of an operation without ``ttnn.`` and the mark of one that works in place."""
    return event.op.removeprefix("ttnn.").removesuffix("_")


def effect(event: Event, parts: Sequence[TensorUse], wholes: Sequence[TensorUse]) -> Effect:
    """Say what ``event`` does with ``parts``; ``wholes`` are the operands that all devices hold alike."""
    name = bare(event)
    fused = any("activation" in option and value for option, value in event.options.items())
    if fused or name in _NONLINEAR or _NONLINEAR_FAMILIES.search(name):
        return Effect.SPOILS
    terms = _TERMS.get(name)
    if terms is None:
        return Effect.KEEPS
    places = operands(event)
    of_parts = {place for place, use in places.items() if any(use is part for part in parts)}
    alike = {place for place, use in places.items() if any(use is whole for whole in wholes)} | _numbers(event, places)
    spoilt = of_parts - {place for term in terms for place in term}
    if spoilt or any(len(of_parts & {*term}) > 1 for term in terms):
        return Effect.SPOILS
    return Effect.ADDS if any({*term} <= alike for term in terms) else Effect.KEEPS


def operands(event: Event) -> Mapping[int, TensorUse]:
    """Return the tensors that an operation takes values of, by their place among its operands."""
    uses = [use for use in event.inputs if not is_output(use)]
    places: dict[int, TensorUse] = {}
    for i, use in enumerate(uses):
        place = _place(use.argument, i)
        places[i if place in places else place] = use  # the weight of lerp is its third operand
    return places


def _place(argument: str, otherwise: int) -> int:
    return int(argument) if argument.isdigit() else _PLACES.get(argument, otherwise)


def _numbers(event: Event, places: Mapping[int, TensorUse]) -> set[int]:
    """Return the place of the number that a sum adds, unless it is zero."""
    if _TERMS.get(bare(event)) != _SUM:
        return set()
    number = number_of(event)
    return {0, 1} - places.keys() if number else set()


def number_of(event: Event) -> float | None:
    """Return the number that is the other operand of an operation of one tensor."""
    for name, value in event.options.items():
        is_operand = name in ("0", "1", "value", "scalar") or _PLACES.get(name) in (0, 1)
        if is_operand and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
