"""Figures of reports from a few lines of history: leaks, peaks, owners, and what results are like."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ttnn")

from tests.harness.programs.events import call, made
from tt_impl.harness.reports import peaks, visualizer
from tt_impl.harness.watch.exhausted import _owners, asked_for
from tt_impl.harness.watch.meter import BEFORE, UNSEEN, Allocation, Level, Meter
from tt_impl.harness.watch.programs import _cache_of
from tt_impl.harness.watch.results import described
from tt_impl.mock.log.events import Event, EventLog
from tt_impl.trace.graph import Change, Graph

Step = tuple[int, int]
"""Taken (1) or given back (-1), and the number of the allocation."""


def allocated(number: int, size: int = 64, **more: Any) -> Allocation:
    about = {"mesh": 0, "memory": "DRAM", "op": "ttnn.exp", "where": "a.py:1", "event": number, "dtype": "BFLOAT16"}
    return Allocation(address=32 * number, bytes=size, **about | more)


def metered(history: list[tuple[int, Allocation]], marks: list[int]) -> Meter:
    meter = Meter(EventLog())
    meter.history = [(sign, allocation.event, allocation) for sign, allocation in history]
    meter.marks = marks
    return meter


def in_loops(*iterations: list[tuple[int, Allocation]]) -> Meter:
    """A history of iterations, with a mark behind each."""
    ends = [sum(map(len, iterations[: i + 1])) for i in range(len(iterations))]
    return metered([step for iteration in iterations for step in iteration], ends)


def taking(numbers: range, **more: Any) -> list[list[tuple[int, Allocation]]]:
    return [[(1, allocated(number, **more))] for number in numbers]


def joined(*loops: list[list[tuple[int, Allocation]]]) -> list[list[tuple[int, Allocation]]]:
    return [[step for loop in same for step in loop] for same in zip(*loops, strict=True)]


A, B = taking(range(5)), taking(range(10, 15), size=128, where="a.py:2")
GIVEN_BACK = [[*iteration, *[(-1, step) for _, step in before]] for iteration, before in zip(A, [[], *A], strict=False)]
TWO_LATER = [
    [*iteration, *[(-1, step) for _, step in before]] for iteration, before in zip(A, [[], [], *A], strict=False)
]

FREED_FIRST = [
    [*[(-1, step) for _, step in before], *iteration] for iteration, before in zip(A, [[], [], *A], strict=False)
]


@pytest.mark.parametrize(
    ("iterations", "lost"),
    [
        (A, [("a.py:1", 64, 1)]),
        (joined(A, B), [("a.py:2", 128, 1), ("a.py:1", 64, 1)]),
        (joined(A, taking(range(20, 25))), [("a.py:1", 128, 2)]),
        (joined(A, taking(range(20, 25), memory="L1")), [("a.py:1", 64, 1), ("a.py:1", 64, 1)]),
        (joined(A, taking(range(20, 25), mesh=1)), [("a.py:1", 64, 1)]),  # of a bank of each of two submeshes
        (joined(A, taking(range(20, 25), mesh=1), taking(range(30, 35), mesh=1)), [("a.py:1", 128, 2)]),
        ([A[0], *[[]] * 4], []),
        ([A[0], [], *A[2:]], []),
        ([*A[:4], []], [("a.py:1", 64, 1)]),  # what the last one took may still be in use
        (GIVEN_BACK, []),
        (TWO_LATER, [("a.py:1", 64, 1)]),
        (FREED_FIRST, [("a.py:1", 64, 1)]),
        (A[:2], []),
        (A[:3], [("a.py:1", 64, 1)]),
    ],
)
def test_what_iterations_leave_behind(iterations: list, lost: list[tuple[str, int, int]]) -> None:
    leaks = peaks.leaks(in_loops(*iterations))
    assert [(leak.allocation.where, leak.bytes, leak.count) for leak in leaks] == lost
    assert {leak.iterations for leak in leaks} <= {len(iterations) - 1} and all(leak.marked for leak in leaks)


def test_a_mark_that_no_call_has_placed() -> None:
    meter = in_loops(*A[:3])
    meter.marks.pop()
    assert peaks.leaks(meter) == []
    meter.iteration()
    (leak,) = peaks.leaks(meter)
    assert leak.iterations == 2 and meter.marks == [1, 2, 3]


@pytest.mark.parametrize(
    ("calls", "launches", "places"),
    [
        ("abcabcabcabc", {1}, [3, 6, 9]),
        ("xabcabcabcabcy", {2}, [4, 7, 10]),
        ("xabcabcabcabcy", {5}, [6, 9, 12]),
        ("abcabcabcabcabc", {1}, [3, 6, 9, 12]),
        ("abcabcabc", {1}, []),  # three
        ("abababab", {0, 1, 2, 3, 4, 5, 6, 7}, []),  # a list that is filled
        ("abcabcabcabc", set(), []),  # nothing runs
        ("abcabcabcabc", {4}, [5, 8, 11]),
        ("abcabcabcabc", {9, 10, 11}, []),
        ("abcabcabcabcabxabx", {1}, []),  # what ends the program does not repeat itself
        ("abcxabcdabcdabcdabcd", {5}, [8, 12, 16]),
        ("abcdabcdabcdabcdxyzxyzxyzxyz", {1, 17}, [4, 8, 12]),  # the longest
        ("xyzxyzxyzxyzabcdabcdabcdabcd", {1, 13}, [16, 20, 24]),
    ],
)
def test_sequences_that_repeat_themselves(calls: str, launches: set[int], places: list[int]) -> None:
    meter = Meter(EventLog())
    meter.calls = [(number, (name,), number) for number, name in enumerate(calls)]
    meter.launches = [SimpleNamespace(event=event) for event in launches]
    assert peaks.repetitions(meter) == places


@pytest.mark.parametrize(("most", "places"), [(12, [6, 9, 12]), (11, [7, 10, 13]), (9, []), (15, [3, 6, 9, 12])])
def test_sequences_of_the_last_calls(most: int, places: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_LONGEST", most)
    meter = Meter(EventLog())
    meter.calls = [(number, (name,), number) for number, name in enumerate("abcabcabcabcabc")]
    meter.launches = [SimpleNamespace(event=number) for number in (0, 3, 6, 9)]
    assert peaks.repetitions(meter) == places


def test_memory_that_was_given_back_unseen() -> None:
    """Taken twice at one place it was given back in between; what nobody took is not given back."""
    meter = Meter(EventLog())
    for sign, address in ((1, 0), (1, 32), (1, 0), (-1, 64), (-1, 32), (-1, 32)):
        change = Change(sign, 0, "DRAM", address, 64)
        meter._change(change, address, "ttnn.exp", "a.py:1")
    assert [(sign, one.address) for sign, _, one in meter.history] == [(1, 0), (1, 32), (-1, 0), (1, 0), (-1, 32)]
    assert meter._sums == {(0, "DRAM"): 64}


def test_memory_that_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on a mesh at the first look was taken before; what comes unseen later, where it is seen."""
    there = [SimpleNamespace(device_id=3, buffer_type=SimpleNamespace(name="DRAM"), address=0, max_size_per_bank=64)]

    def come(address: int) -> None:
        there.append(SimpleNamespace(**{**vars(there[0]), "address": address}))

    def taken(mesh: Any, kind: str) -> SimpleNamespace:
        view = dict.fromkeys(("total_bytes_free_per_bank", "largest_contiguous_bytes_free_per_bank"), 0)
        return SimpleNamespace(**view, total_bytes_allocated_per_bank=64 * len(there) if kind == "DRAM" else 0)

    reports = SimpleNamespace(get_buffers=lambda mesh: there)
    ttnn = SimpleNamespace(get_memory_view=taken, _ttnn=SimpleNamespace(reports=reports))
    monkeypatch.setattr("tt_impl.harness.watch.meter.ttnn", ttnn)
    monkeypatch.setattr("tt_impl.harness.watch.meter._VIEWS", {"DRAM": "DRAM", "L1": "L1"})
    monkeypatch.setattr("tt_impl.harness.watch.meter._described", lambda mesh: {})
    monkeypatch.setattr("tt_impl.harness.watch.meter.capturing", lambda dispatch: nullcontext())
    monkeypatch.setattr("tt_impl.harness.watch.meter.read", lambda nodes, settings: Graph())
    mesh = SimpleNamespace(id=lambda: 3, num_program_cache_entries=lambda: 0)
    meter = Meter(log_of(call("exp")))
    meter._agree(mesh, 0, "a.py:1")
    come(64)
    meter._agree(mesh, 1, "a.py:2")
    meter(SimpleNamespace(name="exp", args=(), kwargs={}, meshes=[mesh], inputs=[], proceed=lambda: come(128)))
    assert [(one.address, one.op, one.where) for _, _, one in meter.history] == [
        (0, BEFORE, ""),
        (64, UNSEEN, "a.py:2"),
        (128, UNSEEN, "a.py:0"),
    ]
    del there[1]
    meter._agree(mesh, 2, "a.py:3")
    assert [(sign, number, one.address) for sign, number, one in meter.history[3:]] == [(-1, 2, 64)]
    assert meter._sums == {(3, "DRAM"): 128}


def test_programs_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a cache is forgotten when it has fewer entries, and incomplete when it has more."""
    monkeypatch.setattr("tt_impl.harness.watch.programs._CACHES", {})

    def cache(entries: int) -> Any:
        return _cache_of(SimpleNamespace(id=lambda: 3, num_program_cache_entries=lambda: entries))

    first = cache(0)
    assert cache(0) is first and first.complete
    first.entries = 2  # built while somebody looked
    assert cache(2) is first and first.complete
    assert cache(3) is first and not first.complete
    assert cache(1) is not first and not cache(1).complete


def test_owners_and_holes() -> None:
    several = [allocated(0), allocated(1), allocated(2, where="b.py:1"), allocated(3, size=256, where="b.py:1")]
    told = [(owner["where"], owner["count"], owner["bytes_per_bank"]) for owner in peaks.owners(several)]
    assert told == [("b.py:1", 1, 256), ("a.py:1", 2, 128), ("b.py:1", 1, 64)]
    levels = [
        Level(event, 0, "L1", 0, free, largest) for event, free, largest in ((0, 90, 90), (1, 80, 60), (2, 50, 40))
    ]
    holes = peaks._fragmentation(levels)
    assert holes == {
        "share": 0.25, "event": 1, "free_per_bank": 80, "largest_free_per_bank": 60,
        "smallest_largest_free_per_bank": 40,
    }  # fmt: skip
    assert peaks._fragmentation([Level(0, 0, "L1", 90, 0, 0)])["share"] == 0.0


def test_what_is_there_at_the_peak() -> None:
    """Of one memory of one mesh, when most of it is taken for the first time."""
    a, b, c, d = (allocated(number, size) for number, size in ((0, 64), (1, 256), (3, 32), (4, 32)))
    elsewhere = [(1, allocated(5, 999, memory="L1")), (1, allocated(6, 999, mesh=1))]
    meter = metered([(1, a), (1, b), (-1, a), (1, c), (1, d), *elsewhere], [])
    assert peaks._live_at_peak(meter, 0, "DRAM") == ([a, b], 1)
    assert peaks._live_at_peak(meter, 2, "DRAM") == ([], 0)


def test_tensors_beside_circular_buffers() -> None:
    """The fullest core is that of the program whose buffers and tensors together are the most, not of the peak."""
    steps = [
        (1, allocated(0, 64, memory="L1")),
        (1, allocated(1, 64, memory="L1")),
        (-1, allocated(1, 64, memory="L1")),
    ]
    meter = metered([*steps, (1, allocated(3, 1024)), (1, allocated(4, 512, memory="L1", mesh=1))], [])
    meter.history[2] = (-1, 2, meter.history[2][2])
    meter.levels = [Level(event, 0, "L1", 64, 0, 0) for event in range(4)]

    def launch(event: int, size: int | None) -> Any:
        layout = None if size is None else SimpleNamespace(cb_bytes=size)
        return SimpleNamespace(layout=layout, event=event, op=f"ttnn.op{event}", where=f"a.py:{event}")

    meter.launches = [launch(0, 20), launch(1, None), launch(2, 30), launch(3, 90), launch(9, 999)]
    peak = {"bytes_per_bank": 128, "event": 1, "op": "ttnn.exp", "where": "a.py:1"}
    found = peaks._with_programs(meter, 0, peak)
    assert (found["bytes"], found["cb_bytes"], found["op"]) == (158, 30, "ttnn.op2")  # 128 in the beginning of event 2
    meter.launches[2] = launch(2, 20)
    assert peaks._with_programs(meter, 0, peak)["op"] == "ttnn.op3"


def log_of(*events: Event) -> EventLog:
    log = EventLog()
    for number, event in enumerate(events):
        event.number = number
        event.where = f"a.py:{number}"
        log.events.append(event)
    return log


@pytest.mark.parametrize(("most", "rows"), [(9, [(0, 0), (1, 0), (1, 32), (2, 32)]), (3, [(1, 0), (1, 32), (2, 32)])])
def test_buffers_of_the_visualizer(
    most: int, rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that are allocated after each operation, by its number and their address; of too many the last ones."""
    monkeypatch.setattr(visualizer, "MOST_BUFFERS", most)
    first, second = allocated(0, memory="L1"), allocated(1)
    meter = metered([(1, first), (1, second)], [])
    meter.history.append((-1, 2, first))
    meter.meshes = {0: {"devices": [5, 6], "info": defaultdict(int)}}
    session: Any = SimpleNamespace(meter=meter, log=log_of(call("exp"), call("exp"), call("exp")))
    visualizer.write(tmp_path / "x", "x", session)
    with closing(sqlite3.connect(tmp_path / "x" / "db.sqlite")) as database:
        found = database.execute("SELECT * FROM buffers ORDER BY operation_id, address").fetchall()
    assert [(number, address) for number, _, address, *_ in found] == rows
    assert {row[1:] for row in found} == {(5, 0, 64, 1, None), (5, 32, 64, 0, None)}


def test_who_took_memory() -> None:
    """A view is no new owner, a later tensor at the same address is; semaphores have places in L1, too."""
    log = log_of(
        call("exp", [9], [1]),
        call("reshape", [1], [1]),
        call("add", [1, 9], [2]),
        call("zeros", (), [made(3, address=4096 * 2)]),
        call("zeros", (), [made(4, memory="L1")]),
        call("create_global_semaphore", options={"result": 7}),
        call("create_global_semaphore", options={"result": [8, 16]}),
        call("relu", options={"result": 24}),
    )
    found = _owners(log)
    places = {place: (holder.address, holder.bytes) for place, holder in found.items()}
    assert places == {place: (place[1], 0 if found[place].op.endswith("semaphore") else 2048) for place in found}
    assert (found["DRAM", 4096].shape, found["DRAM", 4096].dtype) == ((1, 1, 32, 64), "BFLOAT16")
    owners = {place: (holder.op, holder.event, holder.used) for place, holder in found.items()}
    assert owners == {
        ("DRAM", 4096): ("ttnn.exp", 0, 2), ("DRAM", 8192): ("ttnn.zeros", 3, 3), ("L1", 16384): ("ttnn.zeros", 4, 4),
        ("L1", 7): ("ttnn.create_global_semaphore", 5, 5), ("L1", 8): ("ttnn.create_global_semaphore", 6, 6),
        ("L1", 16): ("ttnn.create_global_semaphore", 6, 6),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("Out of Memory: Not enough space to allocate 960 B DRAM buffer across 12 banks, where each bank\n needs to "
         "store 80 B, but", ("DRAM", (960, 80), (0, 0))),
        ("Statically allocated circular buffers in program 3 clash with L1 buffers on core range [0-0]. "
         "L1 buffer allocated at 500 and static circular buffer region ends at 700", ("L1", (0, 0), (700, 500))),
        ("Statically allocated circular buffers on core range [0-0] grow to 900 B which is beyond max L1 size of 800 B",
         ("L1", (0, 0), (900, 800))),
        ("Statically allocated dataflow buffers on core range [0-0] grow to 900 B which is beyond max L1 size of 800 B",
         ("L1", (0, 0), (900, 800))),
        ("Input tensors must be on device", None),
    ],
)  # fmt: skip
def test_what_was_asked_for(message: str, asked: Any) -> None:
    assert asked_for(message) == asked


def test_what_results_are_like() -> None:
    """Replicas count once, equal values of two devices, too; numbers that are none are counted and left out."""
    x, y = torch.tensor([[3.0, -4.0], [0.0, 0.0]]), torch.tensor([[1.0, float("nan")], [float("inf"), 7.0]])
    one = described([x, x, x.clone()])
    assert (one["differ"], one["nan"], one["absmax"], one["mean"], one["rms"]) == (1, 0, 4.0, -0.25, 2.5)
    both = described([x, y])
    assert (both["differ"], both["nan"], both["absmax"], both["mean"]) == (2, 2, 7.0, pytest.approx(7 / 6, rel=1e-6))
    assert both["rms"] == pytest.approx((75 / 6) ** 0.5, rel=1e-6)
    assert one["digest"] != both["digest"] == described([x.clone(), y.clone()])["digest"] != described([y, x])["digest"]
    assert described([x.bfloat16()])["digest"] != described([x])["digest"]
    whole = torch.full((2, 600), 1.5)
    expanded = described([torch.tensor(1.5).expand(2, 600)])
    assert expanded == described([whole]) and (expanded["mean"], expanded["rms"]) == (1.5, 1.5)
    assert expanded["digest"] != described([torch.full((2, 601), 1.5)])["digest"]
    zeros = torch.zeros(2, 600, dtype=torch.bfloat16)
    signed = zeros.clone()
    signed[1, 5] = -0.0
    assert described([signed])["digest"] != described([zeros])["digest"]
    assert len(both["sample"]) == 64 and set(both["sample"]) <= {3.0, -4.0, 0.0, 1.0, 7.0}
    nothing = {"differ": 1, "nan": 0, "absmax": 0.0, "mean": 0.0, "rms": 0.0, "sample": []}
    assert described([torch.zeros(0, 4)]).items() >= nothing.items()
    assert described([]).items() >= (nothing | {"differ": 0}).items()
    places = described([torch.arange(1000.0)])["sample"]
    assert places == described([torch.arange(1000.0), torch.arange(1000.0)])["sample"][:32] + places[32:]
