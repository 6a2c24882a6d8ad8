"""Which operands of an operation may be parts of a sum: told by a table, and by what numbers make of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("ttnn")

from tests.harness.programs.events import call, use
from tt_impl.harness.checks.linear import _TERMS, Effect, effect, number_of, operands

FORMULAS: dict[str, Callable[..., float]] = {
    "add addalpha rsub subalpha subtract bcast": lambda a, b: a - 2 * b,
    "div divide div_no_nan": lambda a, b: a / b,
    "linear mac matmul multiply experimental.minimal_matmul experimental.minimal_matmul_split "
    "experimental.attn_matmul experimental.group_attn_matmul": lambda a, b, c: a * b + c,
    "sparse_matmul": lambda a, b, sparsity: a * b if sparsity == 13 else 99.0,
    "addcmul addmm": lambda a, b, c: a + b * c,
    "addcdiv": lambda a, b, c: a + b / c,
    "experimental.dit_minimal_matmul_addcmul_fused": lambda x, w, bias, base, gate, c: base + gate * (x * w + bias + c),
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "where": lambda condition, a, b: a + b / 9 if condition == 7 else 99.0,
}
"""What operations make of their operands, by number."""
ALL = [(name, formula) for names, formula in FORMULAS.items() for name in names.split()]


def by_numbers(formula: Callable[..., float], parts: tuple[int, ...]) -> Effect:
    """Two devices: what do their results add up to, beside the result of the sums?"""
    count = formula.__code__.co_argcount

    def at(share: float) -> float:
        return formula(*((7.0 + 3 * place) * (share if place in parts else 1.0) for place in range(count)))

    try:
        too_much = at(0.25) + at(0.75) - at(1.0)
        again = at(0.5) + at(0.5) - at(1.0)
        of_wholes = at(0.0)
    except ZeroDivisionError:
        return Effect.SPOILS
    if abs(too_much - again) > 1e-9 or abs(too_much - of_wholes) > 1e-9:
        return Effect.SPOILS
    return Effect.ADDS if abs(of_wholes) > 1e-9 else Effect.KEEPS


def test_every_operation_of_the_table_has_a_formula() -> None:
    assert {name for name, _ in ALL} == _TERMS.keys()


@pytest.mark.parametrize(("name", "formula"), ALL, ids=[name for name, _ in ALL])
def test_what_becomes_of_parts(name: str, formula: Callable[..., float]) -> None:
    places = range(formula.__code__.co_argcount)
    operands = [use(place + 1, str(place)) for place in places]
    told, counted = {}, {}
    for size in places:
        for parts in itertools.combinations(places, size + 1):
            wholes = [operands[place] for place in places if place not in parts]
            told[parts] = effect(call(name, operands), [operands[place] for place in parts], wholes)
            counted[parts] = by_numbers(formula, parts)
    assert told == counted


@pytest.mark.parametrize(
    "names",
    [
        "input_tensor_a input_tensor_b bias",
        "input_tensor_a input_tensor_b sparsity",
        "input_tensor weight_tensor bias_tensor",
        "input_a input_b input_c",
        "input_tensor_a input_tensor_b input_tensor_c",
        "input_tensor mat1_tensor mat2_tensor",
        "predicate true_value false_value",
        "input end weight",
        "0 1 weight",
        "matmul_input_tensor matmul_weight_tensor bias_tensor addcmul_input_tensor1 addcmul_input_tensor2",
        "matmul_input_tensor matmul_weight_tensor - addcmul_input_tensor1 addcmul_input_tensor2",
    ],
)
def test_operands_by_keyword(names: str) -> None:
    """As ttnn calls them; what is memory for a result is none."""
    uses = [use(number, name) for number, name in enumerate(names.split()) if name != "-"]
    given = uses[::-1] if {"input", "weight", "sparsity"}.isdisjoint(names.split()) else uses
    found = operands(call("linear", [*given, use(9, "output_tensor")]))
    assert {place: use.buffer for place, use in found.items()} == {use.buffer: use.buffer for use in uses}


@pytest.mark.parametrize(
    ("options", "number"),
    [
        *(({name: 0.25}, 0.25) for name in ("0", "1", "value", "scalar", "input_tensor_a", "input_tensor_b", "other")),
        ({"dim": 3, "scalar": 2}, 2.0),
        *(({name: value}, None) for name, value in (("2", 0.25), ("bias", 0.25), ("1", True), ("value", "a"))),
    ],
)
def test_numbers_that_are_operands(options: dict[str, Any], number: float | None) -> None:
    assert number_of(call("multiply", [1], [2], options=options)) == number
