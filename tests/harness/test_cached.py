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
    read, made = (Operand((32, 32), kind, "TILE", "DRAM_INTERLEAVED", 7) for kind in ("BFLOAT16", dtype))
    program = DeviceOp("ttnn::some", name, attributes, None, None, (read,), cached, (made,))
    return _Launch(Event(0, "ttnn.some", f"program.py:{1 + cached}", []), program, texts, frozenset())


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
    assert reused(shown, launched({}, "Params(ADD, Shape([1, 32]))", dtype="FLOAT32", cached=True)) == [
        ("the dtype of its result", "BFLOAT16", "FLOAT32")
    ]


def test_a_program_built_unseen_may_be_the_right_one() -> None:
    built, now = launched({"chunks": "2"}), launched({"chunks": "3"}, cached=True)
    assert reused(built, now, _Cache(complete=False)) == []


def test_of_several_programs_one_that_fits_is_enough() -> None:
    programs, cache, now = Programs(EventLog()), _Cache(), launched({"chunks": "3"}, cached=True)
    programs._note(cache, [launched({"chunks": "2"})])
    programs._note(cache, [launched({"chunks": "3"})])
    programs._note(cache, [now])
    assert now.event.reused == ()
