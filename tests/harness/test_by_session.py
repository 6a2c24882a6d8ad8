"""All files of a report of sessions made by hand, word for word: two meshes, all kinds of memory."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ttnn")

from tests.harness import words
from tests.harness.programs.events import call, captured, crossing, made, use
from tt_impl.harness.reports import index, visualizer
from tt_impl.harness.reports.write import try_to_write, write
from tt_impl.harness.watch.exhausted import NO_TENSOR, Block, Exhausted, Holder, MemoryState
from tt_impl.harness.watch.meter import Allocation, Launch, Level, Meter
from tt_impl.harness.watch.results import Results
from tt_impl.harness.watch.session import Session
from tt_impl.mock.log.events import Event, EventLog
from tt_impl.trace.graph import DeviceOp, Operand

KIB = 1024
MIB = 1024 * KIB
WORMHOLE, BLACKHOLE = 3, 9
"""Ids of two meshes, of which the second has the smaller ids of devices."""


def operand(*shape: int, dtype: str = "BFLOAT16", memory: str = "DRAM_INTERLEAVED") -> Operand:
    return Operand(shape, dtype, "TILE", memory)


def mesh(devices: list[int], shape: list[int], arch: str, grid: list[int], banks: int) -> dict[str, Any]:
    info = {name: place for place, name in enumerate(visualizer._DEVICE)}
    sizes = {"dram_banks": banks, "dram_bank_bytes": 1024 * MIB, "l1_banks": 64, "l1_bank_bytes": 1 * MIB}
    return {"devices": devices, "shape": shape, "arch": arch, "grid": grid, "info": info} | sizes


def launch(event: Event, name: str, inputs: list[Operand], on: int = WORMHOLE, **more: Any) -> Launch:
    """A device operation whose program has the given ``layouts``; None if ttnn does not tell."""
    options = dict.fromkeys(("config", "axis", "links", "ring", "causal")) | more.pop("options", {})
    layouts = more.pop("layouts", [{(0, 0): 64 * KIB, (1, 0): 96 * KIB}, {(0, 0): 80 * KIB}])
    text = more.pop("attributes", "Params(1, 2)")
    results = tuple(more.pop("results", inputs[:1]))
    fidelity = more.pop("fidelity", "HiFi2")
    program = DeviceOp(event.op, name, text, fidelity, None, tuple(inputs), results=results)
    layout = None if layouts is None else DeviceOp(event.op, name, text, None, None, (), layouts=layouts)
    return Launch(event.number, on, event.op, event.where, program, layout, options)


def allocation(event: Event, address: int, size: int, memory: str = "DRAM", on: int = WORMHOLE) -> Allocation:
    tensor = {} if memory == "L1_SMALL" else {"shape": (size // 64, 32), "dtype": "BFLOAT16"}
    return Allocation(on, memory, address, size, event.op, event.where, event.number, **tensor)


def session_of(events: list[Event]) -> Session:
    shadow: Any = SimpleNamespace(numerics=None, fallbacks={}, emulated={}, computes=True)
    session = Session(shadow, EventLog())
    for number, event in enumerate(events):
        event.number = number
        event.where = f"a.py:{number}"
        session.log.events.append(event)
    session.meter = Meter(session.log)
    return session


def priced(session: Session, events: list[Event]) -> None:
    """Give the events device operations: two of one call, one without price, collectives of one and two axes."""
    assert session.meter is not None
    x, w, wide = operand(1, 1, 512, 256), operand(256, 1024), operand(1, 1, 512, 1024)
    _, linear, gelu, gathered, _, far, strange, normed, scattered, *_ = events
    session.meter.launches = [
        launch(linear, "MatmulDeviceOperation", [x, w], results=[wide], options={"config": "Config(a, b)"}),
        launch(linear, "UnaryDeviceOperation", [wide]),
        launch(gelu, "UnaryDeviceOperation", [wide], layouts=None, fidelity=None),
        launch(gathered, "AllGatherDeviceOperation", [x], options={"axis": 1, "links": (2, 1)}, results=[wide]),
        launch(far, "UnaryDeviceOperation", [x], BLACKHOLE, layouts=[{(0, 0): 4 * KIB}]),
        launch(far, "UnaryDeviceOperation", [x], BLACKHOLE),
        launch(strange, "StrangeDeviceOperation", [operand(8, 32, 32, memory="L1_INTERLEAVED")] * 9, layouts=[{}]),
        launch(strange, "UnaryDeviceOperation", [operand(32, 32, dtype="UINT8")]),
        launch(normed, "LayerNormDeviceOperation", [x]),
        launch(scattered, "ReduceScatterDeviceOperation", [wide], BLACKHOLE, options={"ring": True}, results=[x]),
    ]
    for number, event in enumerate((linear, gelu, gathered, far, strange, normed)):
        shapes = ((1, 1, 32 * (number + 1), 64),)
        session.meter.calls.append((event.number, (event.op, event.where, shapes), 2 * number))
    session.meter.calls.insert(0, (0, ("ttnn.from_torch", "a.py:0", ()), 0))
    session.meter.calls.append((9, ("ttnn.to_torch", "a.py:9", ((1, 1, 32, 64),)), 14))


def remembered(session: Session, events: list[Event]) -> None:
    """Give the events memory: a peak, one that is reached twice, holes, what stays until the end."""
    assert session.meter is not None
    host, linear, gelu, gathered, _, far, strange, normed, *_ = events
    first, product, gelus = (allocation(e, 64 * MIB * i, 32 * MIB) for i, e in enumerate((host, linear, gelu)))
    in_l1, again = allocation(linear, 0, 100 * KIB, "L1"), allocation(normed, 256 * KIB, 100 * KIB, "L1")
    small, other = allocation(gathered, 0, 64, "L1_SMALL"), allocation(far, 0, 16 * MIB, on=BLACKHOLE)
    session.meter.history = [
        (1, 0, first), (1, 1, in_l1), (1, 1, product), (-1, 2, product), (1, 2, gelus), (-1, 3, in_l1), (1, 3, small),
        (1, 5, other), (1, 6, allocation(strange, 256 * MIB, 8 * MIB)), (1, 7, again), (-1, 9, gelus),
    ]  # fmt: skip
    session.meter.levels = [
        Level(event, WORMHOLE, memory, allocated, free, largest)
        for event, memory, allocated, free, largest in (
            (0, "DRAM", 32 * MIB, 992 * MIB, 992 * MIB), (1, "DRAM", 64 * MIB, 960 * MIB, 900 * MIB),
            (1, "L1", 100 * KIB, 900 * KIB, 900 * KIB), (2, "DRAM", 64 * MIB, 960 * MIB, 720 * MIB),
            (3, "L1", 0, 1000 * KIB, 1000 * KIB), (3, "L1_SMALL", 64, 0, 0),
            (6, "DRAM", 72 * MIB, 952 * MIB, 714 * MIB),
            (7, "L1", 100 * KIB, 900 * KIB, 800 * KIB), (9, "DRAM", 40 * MIB, 984 * MIB, 984 * MIB),
        )
    ]  # fmt: skip
    session.meter.levels.append(Level(5, BLACKHOLE, "DRAM", 16 * MIB, 1008 * MIB, 1008 * MIB))
    session.meter.levels.append(Level(5, BLACKHOLE, "L1", 0, 1000 * KIB, 1000 * KIB))
    session.meter.programs = 7


def whole() -> Session:
    """Ten calls: of two meshes, of one that ttnn refuses, of collectives; a trace that lives; golden functions."""
    x = use(1, shape=(1, 1, 512, 256))
    events = [
        call("from_torch", (), [1]),
        call("linear", [x, use(2, "1", memory="L1", sharding="WIDTH_SHARDED")], [3], options={"transpose_b": True}),
        call("gelu", [3], [4]),
        call("all_gather", [4], [5], collectives=[crossing("all_gather")]),
        call("matmul", [4], error="RuntimeError", refused="no."),
        call("exp", [use(6, devices=(0, 2), mesh=(1, 2))], [made(7, devices=(0, 2), mesh=(1, 2), layout="ROW_MAJOR")]),
        call("strange", [5], [8, 9]),
        call("layer_norm", [5], [10], written=(5,)),
        call("reduce_scatter", [7], [11], collectives=[crossing("reduce_scatter", None) | {"links": 2}]),
        call("to_torch", [10]),
        *captured([call("exp", [10], [12])]),
    ]
    session = session_of(events)
    assert session.meter is not None
    session.meter.meshes = {
        WORMHOLE: mesh([4, 5, 6, 7], [2, 2], "wormhole_b0", [8, 8], 12),
        BLACKHOLE: mesh([0, 2], [1, 2], "blackhole", [12, 10], 8),
    }
    priced(session, events)
    remembered(session, events)
    shadow: Any = session.shadow
    shadow.fallbacks = {"ttnn.strange": 2}
    shadow.numerics = SimpleNamespace(
        counts=lambda: {"level": "fast", "rounded": {"ttnn.linear": 3}, "once": {"ttnn.gelu": 1}}
    )
    session.results = Results(shadow, session.log)
    value = {"digest": "d", "differ": 1, "nan": 0, "absmax": 1.0, "mean": 0.5, "rms": 0.75, "sample": [0.5]}
    session.results.of = {1: [value], 6: [None, value | {"digest": "e"}], 7: [value, value]}
    return session


def exhausted() -> Session:
    """A loop that leaks and a line whose tensors pile up, until ttnn has no more memory; no values are computed."""
    loop = [call("exp", [1], [made(10 + number, address=number * MIB)]) for number in range(5)]
    piled = [call("add", [20 + number], [21 + number]) for number in range(4)]
    steps = [step for event in (*loop, *piled) for step in (event, call("relu", [event.outputs[0]], [50]))]
    session = session_of([*steps, call("zeros")])
    assert session.meter is not None
    session.meter.meshes = {WORMHOLE: mesh([0, 1], [1, 2], "wormhole_b0", [8, 7], 12)}
    for event in loop:
        event.where = "a.py:7"
        session.meter.history.append((1, event.number, allocation(event, event.outputs[0].address, 1 * MIB)))
        session.meter.marks.append(len(session.meter.history))
    holders = []
    for event in piled:
        event.where = "a.py:8"
        reader = session.log.events[event.number + 1]
        event.outputs[0].address = reader.inputs[0].address = (32 + event.number) * MIB
        taken = allocation(event, event.outputs[0].address, 1536 * KIB)
        session.meter.history.append((1, event.number, taken))
        holders.append(
            Holder(taken.address, taken.bytes, event.op, event.where, event.number, event.number + 1, (7, 8))
        )
    session.meter.calls = [(16, ("ttnn.add", "a.py:8", ()), 8)]
    session.meter.levels = [Level(16, WORMHOLE, "DRAM", 11 * MIB, 5 * MIB, 1 * MIB)]
    blocks = [block for holder in holders for block in (Block(holder.bytes, holder), Block(1 * MIB, None))]
    states = {
        "DRAM": MemoryState(12, 16 * MIB, 11 * MIB, 5 * MIB, 1 * MIB, blocks),
        "L1": MemoryState(64, 1 * MIB, 0, 1 * MIB, 1 * MIB, [Block(1 * MIB, None)]),
    }
    last = session.log.events[-1]
    record = Exhausted(last.number, last.op, last.where, "DRAM", 24 * MIB, 2 * MIB, 0, 0, (1, 2), states, 3)
    session.exhaustion.records = [record]
    session.log.left_by_error = {last.number}
    shadow: Any = session.shadow
    shadow.computes = False
    return session


def many() -> Session:
    """More lines than are named: of launches, of owners, of tensors between pieces of L1, which is exhausted."""
    events = [call("exp", [1], [10 + number]) for number in range(17)]
    session = session_of(events)
    assert session.meter is not None
    session.meter.meshes = {WORMHOLE: mesh([0], [1, 1], "wormhole_b0", [8, 8], 12)}
    events[3].op = events[5].op = "ttl.kernel"
    blocks = [Block(1 * KIB, None)]
    for event in events:
        size = (event.number % 9 + 1) * KIB
        session.meter.launches.append(launch(event, "UnaryDeviceOperation", [operand(32 * (20 - event.number), 64)]))
        session.meter.history.append((1, event.number, allocation(event, event.number * MIB, size, "L1")))
        session.meter.calls.append((event.number, (event.op, event.where, ()), event.number))
        holder = Holder(event.number * MIB, size, event.op, event.where, event.number, event.number, (1,), "BFLOAT16")
        if event.number == 2:
            holder = Holder(holder.address, size, NO_TENSOR, "", -1, -1)
        blocks += [Block(size, holder), Block(1 * KIB, None)]
    session.meter.levels = [Level(16, WORMHOLE, "L1", 84 * KIB, 18 * KIB, 1 * KIB)]
    states = {
        "DRAM": MemoryState(12, 1 * MIB, 6 * KIB, 1018 * KIB, 1018 * KIB, blocks[:6]),
        "L1": MemoryState(64, 144 * KIB, 84 * KIB, 60 * KIB, 1 * KIB, blocks),
        "L1_SMALL": MemoryState(64, 1 * KIB, 1 * KIB, 0, 0, blocks[1:2]),
    }
    place = 16, "ttnn.exp", "a.py:16"
    session.exhaustion.records = [Exhausted(*place, "L1", 1 * MIB, 60 * KIB, 0, 0, (1, 1), states)]
    session.log.left_by_error = {16}
    return session


SESSIONS = {"many": many, "whole": whole, "exhausted": exhausted, "nothing": lambda: session_of([])}


def text_of(path: Path) -> str:
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")]
            parts: Any = {name: [*map(list, database.execute(f"SELECT * FROM {name}"))] for name in names}
    elif path.suffix == ".json":
        parts = json.loads(path.read_text(encoding="utf-8"))
    else:
        return path.read_text(encoding="utf-8")
    rows = [(name, part if isinstance(part, list) else [part]) for name, part in parts.items()]
    return "".join(f"{name}: {json.dumps(row)}\n" for name, of_part in rows for row in of_part)


def test_all_files_of_reports(tmp_path: Path) -> None:
    for _ in range(2):  # what lies there is replaced
        for name, session in SESSIONS.items():
            write(tmp_path, name, session())
    index.index(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    text = "".join(f"== {path.relative_to(tmp_path)}\n{text_of(path)}" for path in files)
    words.check("sessions.txt", text)


def test_numbers_that_are_none_are_no_report(tmp_path: Path) -> None:
    session = whole()
    assert session.results is not None
    session.results.of[1] = [{"absmax": float("nan")}]
    said = try_to_write(tmp_path, "x", session, [])["unreported"]
    assert said.startswith("ValueError: Out of range float values") and not (tmp_path / "x.json").exists()
