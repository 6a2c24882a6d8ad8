"""Programs that end out of memory: which call, who owned it, what to free; figures are counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.harness.measured import __name__ as MEASURED
from tt_impl.harness.reports.exhausted import _size, advice, as_json, cheapest, lines, unused

KIB = 1024
MIB = 1024 * KIB
FILE = MEASURED.replace(".", "/") + ".py"
needs_ttnn = pytest.mark.skipif(not HAS_TTNN, reason=REASON)


def only(measured: dict[str, Any], program: str) -> dict[str, Any]:
    (record,) = measured[program]["exhausted"]
    return record


def test_owners_by_line_and_what_is_left_of_a_cache(measured: dict[str, Any]) -> None:
    """Buffers of 32768 rows and 1024 more each: ten fit into the 1023 MiB of a bank."""
    record = only(measured, "too_many_buffers")
    assert (record["op"], record["memory"], record["mesh"]) == ("ttnn.zeros", "DRAM", [2, 4])
    rows = 32768 + 10 * 1024
    assert record["asked_bytes"] == rows * 16384 * 2
    dram = record["memories"]["DRAM"]
    assert dram["free_per_bank"] < record["asked_per_bank"] and dram["largest_free_per_bank"] <= dram["free_per_bank"]
    largest = dram["owners"][0]
    assert (largest["op"], largest["where"], largest["count"]) == ("ttnn.zeros", record["where"], 10)
    assert largest["shapes"][0] == [1, 1, 32768, 16384] and len(largest["shapes"]) == 10
    assert largest["left"]["count"] == 9 and largest["never"]["count"] == 0
    text = lines(record)
    assert text[0].startswith(f"this run ended out of memory, in ttnn.zeros at {FILE}:")
    assert "1344.0 MiB of DRAM, 112.0 MiB in each bank of every device of the 2x4 mesh (12 banks)" in text[0]
    assert any("free 9 tensors of ttnn.zeros" in line and "the oldest 2 would be enough" in line for line in text)


def test_memory_in_pieces(measured: dict[str, Any]) -> None:
    """Ten tensors of 64 KiB stand between free pieces of as much; one of them joins two to 128 KiB and more."""
    record = only(measured, "too_many_pieces")
    core = record["memories"]["L1"]
    assert record["asked_per_bank"] == 128 * KIB and core["allocated_per_bank"] == 10 * 64 * KIB
    assert core["free_per_bank"] > 128 * KIB > core["largest_free_per_bank"]
    assert "pieces" in record["advice"][0] and "free 1 tensor between them: ttnn.empty at" in record["advice"][0]
    assert "DRAM_MEMORY_CONFIG" in record["advice"][-1]


def test_circular_buffers_beside_tensors(measured: dict[str, Any]) -> None:
    record = only(measured, "too_large_a_program")
    assert (record["op"], record["memory"], record["asked_per_bank"]) == ("ttnn.softmax", "L1", 0)
    assert "the circular buffers of its program end at" in record["sentence"]
    assert record["memories"]["L1"]["owners"][0]["bytes_per_bank"] == 20 * 64 * KIB


def test_records_word_for_word(measured: dict[str, Any]) -> None:
    records = [record for name in sorted(measured) if name != "folder" for record in measured[name]["exhausted"]]
    text = "\n".join(["\n".join(lines(record)) + "\n" + json.dumps(record, indent=1) for record in records])
    words.check("exhausted.txt", words.by_source(text))


@needs_ttnn
def test_the_cheapest_window() -> None:
    from tt_impl.harness.watch.exhausted import Block, Holder

    def taken(size: int) -> Block:
        return Block(size, Holder(0, size, "op", "line", 0, 0))

    def free(size: int) -> Block:
        return Block(size, None)

    blocks = [free(5), taken(4), free(3), taken(1), free(4), taken(9)]
    assert cheapest(blocks, 8) == blocks[2:5]
    assert cheapest(blocks, 12) == blocks[:3]
    assert cheapest(blocks, 27) == []
    alike = [free(2), taken(1), free(3), taken(1), free(2)]
    assert cheapest(alike, 5) == alike[:3]  # of equal ones the first


@needs_ttnn
def test_what_a_line_no_longer_uses() -> None:
    """Used and then replaced by the line's next tensor, never used at all, and still in use."""
    from tt_impl.harness.watch.exhausted import Holder

    replaced, idle, current = (Holder(0, 1, "op", "line", event, used) for event, used in ((1, 2), (4, 4), (7, 9)))
    again = Holder(0, 1, "op", "line", 5, 9)
    assert unused([replaced, idle, again, current]) == ([replaced], [idle])
    with_the_next = Holder(0, 1, "op", "line", 2, 5)
    assert unused([with_the_next, again]) == ([], [])
    at_once = Holder(0, 1, "op", "line", 0, 0)
    assert unused([at_once]) == ([], [at_once])
    nobody = Holder(0, 1, "(no tensor)", "", -1, -1)
    assert unused([nobody, nobody]) == ([], [])


@needs_ttnn
@pytest.mark.parametrize(
    ("uses", "bank", "size", "said"),
    [
        (
            [0, 10],
            1000,
            7,
            "2 tensors of op at line (0.0 KiB of a core) have not been used by any operation so far; free",
        ),
        ([0], 1000, 7, "the largest owner is op at line with 0.0 KiB of a core."),
        ([0, 10], 11_999, 7, "2 tensors of op"),
        ([0, 10], 12_000, 7, "the largest owner is"),
        (
            [5, 15],
            1000,
            7,
            "free 1 tensor of op at line (0.0 KiB of a core): they were used, but nothing has used them ",
        ),
        ([5, 15, 25, 35], 1000, 7, "free 3 tensors of op"),
        ([5, 15, 25, 35], 1000, 7, "since that line made its next one."),
        ([5, 15, 25, 35], 1000, 6, "its next one; the oldest 1 would be enough, if they lie side by side."),
    ],
)
def test_what_to_free_first(uses: list[int], bank: int, size: int, said: str) -> None:
    """Of tensors of 6 bytes, made in events 0, 10, ...; an owner of a thousandth of a bank is not spoken of."""
    from tt_impl.harness.watch.exhausted import Block, Exhausted, Holder, MemoryState

    blocks = [Block(6, Holder(0, 6, "op", "line", 10 * number, used)) for number, used in enumerate(uses)]
    state = MemoryState(1, bank, 6 * len(uses), 0, 0, blocks)
    first, *_ = advice(Exhausted(9, "op", "line", "L1", 0, size, 0, 0, (1, 1), {"L1": state}))
    assert said in first, first


@needs_ttnn
@pytest.mark.parametrize(
    ("buffers_end", "states", "said", "advised"),
    [
        (0, {}, "in op at line: it asked for 7.0 KiB of L1.", []),
        (
            900 * KIB,
            {"L1": (900 * KIB, 0, [])},
            "in op at line: the circular buffers of its program end at 900.0 KiB of a core's L1 and would have to end "
            "at 800.0 KiB, on every device of the 1x2 mesh.",
            ["smaller blocks or chunks in its program config, or more cores, make the buffers of the program smaller."],
        ),
        (
            900 * KIB,
            {"L1": (900 * KIB, 100 * KIB, [("(no tensor)", "", ()), ("add", "a.py:1", (4, 4))])},
            "in op at line: the circular buffers of its program end at 900.0 KiB of a core's L1 and would have to end "
            "at 800.0 KiB; tensors have 100.0 KiB of L1, on every device of the 1x2 mesh.",
            [
                "the largest owner is (no tensor) with 50.0 KiB of a core.",
                "tensors need not be in L1: memory_config=ttnn.DRAM_MEMORY_CONFIG places them in DRAM.",
            ],
        ),
    ],
)
def test_programs_that_do_not_fit(buffers_end: int, states: dict, said: str, advised: list[str]) -> None:
    from tt_impl.harness.watch.exhausted import Block, Exhausted, Holder, MemoryState

    made = {}
    for name, (bank, allocated, owners) in states.items():
        holders = [Holder(0, 50 * KIB, op, where, -1 if not where else 3, 5, shape) for op, where, shape in owners]
        blocks = [Block(holder.bytes, holder) for holder in holders]
        made[name] = MemoryState(64, bank, allocated, bank - allocated, bank - allocated, blocks)
    record = Exhausted(9, "op", "line", "L1", 7 * KIB, 0, buffers_end, 800 * KIB, (1, 2), made)
    told = as_json(record, [])
    assert (told["sentence"], told["advice"]) == (f"this run ended out of memory, {said}", advised)
    shapes = [owner["shapes"] for memory in told["memories"].values() for owner in memory["owners"]]
    assert shapes in ([], [[], [[4, 4]]])


@pytest.mark.parametrize(
    ("size", "memory", "text"),
    [
        (512, "L1", "0.5 KiB"),
        (10 * MIB - 1024, "L1", "10239.0 KiB"),
        (10 * MIB, "L1", "10.0 MiB"),
        (MIB, "DRAM", "1.0 MiB"),
    ],
)
def test_sizes(size: int, memory: str, text: str) -> None:
    assert _size(size, memory) == text


def test_lines_that_pile_up_are_named_in_the_report(measured: dict[str, Any]) -> None:
    memory = measured["too_many_buffers"]["memory"]
    (line,) = memory["growing"]
    assert (line["op"], line["memory"], line["count"]) == ("ttnn.zeros", "DRAM", 9)
    assert not measured["clean_loop"]["memory"]["growing"] and not measured["leaking_loop"]["memory"]["growing"]


@needs_ttnn
def test_a_trace_region_that_is_too_small() -> None:
    """Ten programs and a view, of which two traces live at once; a region of twice as much is enough."""
    from types import SimpleNamespace

    from tt_impl.harness.checks.trace_region import LEAST_BYTES, PROGRAM_BYTES, living, trace_region
    from tt_impl.mock.log.events import Event, TensorUse

    def use(buffer: int) -> TensorUse:
        return TensorUse(
            "0", buffer, 32 * buffer, (32, 32), "BFLOAT16", "TILE", "DRAM", None, 2048, (0,), bank_bytes=3 << 19
        )

    def capture(first: int, number: int, region: int) -> list[Event]:
        begin = Event(first, "ttnn.begin_trace_capture", f"x.py:{number}", [])
        begin.options = {"result": number, "trace_region_bytes": region}
        steps = [Event(first + 1 + i, "ttnn.add", "x.py:9", [use(i)], [use(i + 1)]) for i in range(10)]
        view = Event(first + 11, "ttnn.reshape", "x.py:9", [use(1)], [use(1)])
        return [begin, *steps, view, Event(first + 12, "ttnn.end_trace_capture", "x.py:9", [])]

    def log(region: int) -> SimpleNamespace:
        return SimpleNamespace(events=[*capture(0, 1, region), *capture(13, 2, region)])

    assert [trace.programs for trace in living(log(0))] == [10, 10]
    assert living(log(0))[0].sentence == (
        "the trace captured at x.py:1 holds 10 programs (about 0.1 MiB of commands on each device, an estimate); its "
        "replays read 1.5 MiB of a bank (tensors: 1) and write 15.0 MiB (10), also where tensors were given back."
    )
    released = log(0)
    released.events.append(Event(26, "ttnn.release_trace", "x.py:9", [], options={"trace_id": 1}))
    assert [len(living(released, until)) for until in (None, 27, 26, 13, 1, 0)] == [1, 1, 2, 1, 1, 0]
    assert not list(trace_region(log(20 * PROGRAM_BYTES)))
    (note,) = trace_region(log(15 * PROGRAM_BYTES))
    assert note.severity == "note" and note.where == "x.py:2"
    first, second = trace_region(log(9 * LEAST_BYTES))
    assert first.severity == second.severity == "error" and "trace_region_size=" in first.sentence
