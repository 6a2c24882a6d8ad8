"""Which of two calls' differences one cached program cannot be right for, on device operations made up for it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ttnn")

from tt_impl.harness.watch.programs import REWRITTEN, Programs, _Cache, _Launch
from tt_impl.mock.log.events import Event, EventLog
from tt_impl.trace.graph import DeviceOp, Operand

OPAQUE = "<SomeParams>"
FUSED = "AllGatherMinimalMatmulAsyncOp"


def launched(texts: dict[str, str], attributes: str = OPAQUE, dtype: str = "BFLOAT16", **more: Any) -> _Launch:
    """A device operation whose program was built, unless ``cached``, of a call ``ttnn.some``."""
    name, cached = more.get("name", "SomeDeviceOperation"), more.get("cached", False)
    kinds = {"dtype": "BFLOAT16", "layout": "TILE", "memory": "DRAM_INTERLEAVED"}
    read = Operand((32, 32), **kinds | more.get("read", {}), number=7)
    made = Operand((32, 32), **kinds | {"dtype": dtype} | more.get("made", {}), number=8)
    program = DeviceOp("ttnn::some", name, attributes, None, None, (read, *more.get("others", ())), cached, (made,))
    event = Event(0, more.get("op", "ttnn.some"), f"program.py:{1 + cached}", [])
    return _Launch(event, program, texts, frozenset(more.get("results", ())))


def reused(built: _Launch, now: _Launch, cache: _Cache | None = None) -> list[tuple[str, str, str]]:
    """What is noted of a second call that runs the first one's program."""
    programs, cache = Programs(EventLog()), cache or _Cache()
    programs._note(cache, [built])
    programs._note(cache, [now])
    return [difference for reuse in now.event.reused for difference in reuse.differs]


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ({"chunks": "2"}, {"chunks": "3"}, [("chunks", "2", "3")]),
        ({"chunks": "2"}, {"chunks": "2"}, []),
        ({}, {"activation": "'gelu'"}, [("activation", "None", "'gelu'")]),
        ({}, {"chunks": "3"}, []),  # the default may be three
    ],
)
def test_arguments_of_an_operation_that_hides_its_attributes(old: dict, new: dict, differs: list) -> None:
    assert reused(launched(old), launched(new, cached=True)) == differs


def test_what_is_written_into_the_program_at_each_call_may_differ() -> None:
    assert reused(launched({"scalar": "1.0"}, name=FUSED), launched({"scalar": "2.0"}, name=FUSED, cached=True)) == []
    for name in " ".join(REWRITTEN.values()).split():
        built, now = (launched({}, f"Params(a, {n}, b)", name=name, cached=n > 1) for n in (1, 2))
        assert reused(built, now) == []
    built, now = (launched({}, f"Params(a, {n}, b)", cached=n > 1) for n in (1, 2))
    assert reused(built, now) == [("an attribute", "1", "2")]


def test_attributes_and_results() -> None:
    shown = launched({}, "Params(ADD, Shape([1, 32]))")
    assert reused(shown, launched({}, "Params(ADD, Shape([2, 64]))", cached=True)) == []
    assert reused(shown, launched({}, "Params(MUL, Shape([1, 32]))", cached=True)) == [
        ("an attribute", "Params(ADD", "Params(MUL")
    ]
    of_another = launched({}, "Params(SUB, Shape([1, 32]))", cached=True, op="ttnn.other")
    assert reused(shown, of_another) == [("an attribute", "Params(ADD", "Params(SUB")]
    assert reused(shown, launched({}, "Params(ADD, Shape([1, 32]))", dtype="FLOAT32", cached=True)) == [
        ("the dtype of its result", "BFLOAT16", "FLOAT32")
    ]


def test_how_parts_make_one_tensor_is_for_no_program() -> None:
    """ttnn.rand of a whole cut over two devices, and of one part on both, with the same program of a device."""
    whole = "TensorTopology(shape=MeshShape([2, 1]), placements=SmallVector([PlacementShard(0)]), at=Coordinate([0]))"
    built = launched({"shape": "[512, 256]"}, f"Params(Shape([256, 256]), {whole}, TILE)")
    now = launched({"shape": "[256, 256]"}, "Params(Shape([256, 256]), std::nullopt, TILE)", cached=True)
    assert reused(built, now) == []


@pytest.mark.parametrize("what", ["dtype", "layout", "memory"])
def test_operands_of_another_kind(what: str) -> None:
    """Kinds of what is read and of what is made tell, sizes do not, nor does memory that was given for results."""
    for name, side in (("read", "input"), ("made", "result")):
        for attributes in (OPAQUE, "Params(a)"):
            now = launched({}, attributes, cached=True, **{name: {what: "OTHER"}})
            before = {"dtype": "BFLOAT16", "layout": "TILE", "memory": "DRAM_INTERLEAVED"}[what]
            assert reused(launched({}, attributes), now) == [(f"the {what} of its {side}", before, "OTHER")]
    output = Operand((32, 32), "FLOAT32", "TILE", "L1_INTERLEAVED", 9)
    now = launched({}, cached=True, others=(output,), results=(9,))
    other = Operand((32, 32), "BFLOAT16", "TILE", "L1_INTERLEAVED", 9)
    assert reused(launched({}, others=(other,), results=(9,)), now) == []
    assert reused(launched({}, others=(other,)), launched({}, cached=True, others=(output,))) != []


def test_the_program_that_is_most_alike_is_named() -> None:
    programs, cache = Programs(EventLog()), _Cache()
    programs._note(cache, [launched({"a": "1", "b": "1"})])
    programs._note(cache, [launched({"a": "2", "b": "1"}, op="ttnn.some")])
    now = launched({"a": "2", "b": "2"}, cached=True)
    programs._note(cache, [now])
    (reuse,) = now.event.reused
    assert reuse.differs == (("b", "1", "2"),) and reuse.where == "program.py:1"
    of_another = launched({"a": "9"}, cached=True, op="ttnn.other")
    programs._note(cache, [of_another])  # whose arguments are not those of the first
    assert of_another.event.reused == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (1.5, "1.5"), (False, "False"), ("gelu", "'gelu'"), ([], ""), ([None, None], ""),
        ([1, None], "[1, ]"), ((1, 2), "[1, 2]"),
    ],
)  # fmt: skip
def test_options_as_text(value: Any, text: str) -> None:
    from tt_impl.harness.watch.programs import _text

    assert _text(value) == text


def test_options_without_a_text_of_their_own() -> None:
    """ttnn's objects without one are told by what they hold, not by where they lie."""
    from tt_impl.harness.watch.programs import _text

    class Config:
        width = 3
        inner = object()

    assert _text(Config()) == _text(Config()) == "Config(width=3)"


def test_a_program_built_unseen_may_be_the_right_one() -> None:
    built, now = launched({"chunks": "2"}), launched({"chunks": "3"}, cached=True)
    assert reused(built, now, _Cache(complete=False)) == []


def test_of_several_programs_one_that_fits_is_enough() -> None:
    programs, cache, now = Programs(EventLog()), _Cache(), launched({"chunks": "3"}, cached=True)
    programs._note(cache, [launched({"chunks": "2"})])
    programs._note(cache, [launched({"chunks": "3"})])
    programs._note(cache, [now])
    assert now.event.reused == ()
