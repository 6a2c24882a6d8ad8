"""The -k expression selects as its words say, and a malformed one is one sentence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.cases.kinds import entry
from parity.cases.selection import compile_expression, part_of, select
from refsim.base.errors import UserError

ID = "sd35_large-t3k_1x8-sp8-ring-bf16"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (None, True),
        ("  ", True),
        ("ring", True),
        ("RING", True),
        ("ulysses", False),
        ("t3k_1x8-sp8", True),
        ("not ulysses", True),
        ("not not ring", True),
        ("ring and bf16", True),
        ("ring and fp32", False),
        ("fp32 or bf16", True),
        ("fp32 or ulysses and ring", False),
        ("bf16 or ulysses and fp32", True),
        ("(bf16 or ulysses) and fp32", False),
        ("not (ulysses or fp32)", True),
        ("not ulysses and not ring", False),
        ("((ring))", True),
        ("ring and(bf16)", True),
    ],
)
def test_selects(expression, expected):
    assert compile_expression(expression)(ID) is expected


@pytest.mark.parametrize(
    "expression",
    ["and", "ring and", "or ring", "not", "(ring", "ring)", "()", "ring bf16", "ring not bf16", "(" * 2000, "(" * 60],
)
def test_malformed_is_the_users_mistake_in_one_sentence(expression):
    with pytest.raises(UserError) as e:
        compile_expression(expression)
    assert e.value.exit_code == 2
    assert "\n" not in str(e.value) and str(e.value).endswith(".")


@pytest.mark.parametrize("text", ["0/3", "4/3", "-1/3", "1", "1/", "1/0", "a/b", "/", "1/2/3", ""])
def test_a_part_that_there_is_not_is_refused(text):
    with pytest.raises(UserError, match="such as 1/3"):
        part_of(text)


@pytest.mark.parametrize("backend", ["cpu", "ttnn-mock"])
def test_parts_of_a_suite_are_the_whole_and_no_model_is_in_two(backend):
    whole = select("smoke", None, backend)
    parts = [select("smoke", None, backend, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(case.id for part in parts for case in part) == sorted(case.id for case in whole)
    assert max(map(len, parts)) < len(whole) / 2
    models = [{(case.kind, case.model) for case in part if entry(case.kind).checkpoint} for part in parts]
    assert sum(map(len, models)) == len(set.union(*models))
    with pytest.raises(UserError, match=r"part 9/9 has no case"):
        select("smoke", "n300 and sp2 and ring and fp32 and normal", "cpu", "9/9")


words = st.sampled_from(["ring", "bf16", "fp32", "t3k", "sp8", "usp", "LARGE"])
trees = st.recursive(
    words.map(lambda w: (w, w.lower() in ID)),
    lambda sub: st.one_of(
        sub.map(lambda x: (f"not ({x[0]})", not x[1])),
        st.tuples(sub, sub).map(lambda p: (f"({p[0][0]}) and ({p[1][0]})", p[0][1] and p[1][1])),
        st.tuples(sub, sub).map(lambda p: (f"({p[0][0]}) or ({p[1][0]})", p[0][1] or p[1][1])),
    ),
    max_leaves=12,
)


@given(trees)
@settings(deadline=None)
def test_agrees_with_boolean_logic(tree):
    text, expected = tree
    assert compile_expression(text)(ID) is expected


@given(st.text(alphabet="ab ()\nnotrd", max_size=40))
@settings(deadline=None)
def test_any_text_is_a_predicate_or_one_sentence(text):
    try:
        assert compile_expression(text)(ID) in (True, False)
    except UserError as e:
        assert str(e)


@given(words, words, words)
@settings(deadline=None)
def test_and_binds_closer_than_or(a, b, c):
    plain = compile_expression(f"{a} or {b} and {c}")
    assert plain(ID) == compile_expression(f"{a} or ({b} and {c})")(ID)
