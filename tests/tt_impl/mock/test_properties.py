"""The machine that draws properties: every option of every argument is drawn, and none is overridden."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.tt_impl.properties import _options, each_option

CASES = sorted((Path(__file__).parents[1] / "cases").rglob("*.py"))


def test_every_option_is_drawn() -> None:
    options = {"kind": ["a", "b", "c"], "deep": [False, True], "size": [1]}
    taken = []

    def runs(drawn: dict) -> bool:
        if drawn["kind"] == "c" and drawn["deep"]:
            return False
        taken.append(drawn)
        return True

    assert each_option(options, runs) == len(taken) <= 4
    assert {row["kind"] for row in taken} == {"a", "b", "c"} and {row["deep"] for row in taken} == {False, True}


def test_an_option_that_is_always_refused_is_named() -> None:
    with pytest.raises(AssertionError, match="refuses kind='b' with all"):
        each_option({"kind": ["a", "b"], "deep": [False, True]}, lambda drawn: drawn["kind"] == "a")


def test_integers_are_options() -> None:
    given = {"few": st.integers(0, 3), "many": st.integers(-1, 127), "deep": st.booleans(), "any": st.lists(st.none())}
    options = {name: list(values) for name, values in _options(given).items()}
    assert options == {"few": [0, 1, 2, 3], "many": [-1, 63, 127], "deep": [False, True]}


def test_no_property_overrides_what_was_drawn() -> None:
    overridden = []
    properties = 0
    for path in CASES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef) or "@drawn" not in "".join(
                f"@{ast.unparse(decorator)}" for decorator in function.decorator_list
            ):
                continue
            properties += 1
            drawn = {argument.arg for argument in function.args.args}
            stored = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            overridden += [f"{path.name}: {function.name}: {name.id}" for name in stored if name.id in drawn]
    assert properties > 100
    assert overridden == []
