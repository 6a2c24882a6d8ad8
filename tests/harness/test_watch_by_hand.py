"""Handlers of calls on calls made by hand: what each notes, in which order they stand, and what ttnn is asked."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ttnn")

import ttnn

from tests.harness.programs.events import call, made, use
from tests.harness.test_by_hand import log_of
from tt_impl.harness.watch import exhausted, meter, programs, results, session
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.trace.graph import DeviceOp, Graph

DRAM, L1 = ttnn.BufferType.DRAM, ttnn.BufferType.L1


def invocation(name: str = "ttnn.exp", result: Any = "result", **more: Any) -> Any:
    empty = {"args": (), "kwargs": {}, "inputs": [], "meshes": []}
    return SimpleNamespace(name=name, proceed=lambda: result, **empty | more)


def mesh(number: int, entries: int = 0) -> Any:
    return SimpleNamespace(id=lambda: number, shape=(1, 2), num_program_cache_entries=lambda: entries)


def tensor(on: Any = None, allocated: bool = True, shape: tuple[int, ...] = (32, 32)) -> Any:
    return SimpleNamespace(device=lambda: on, is_allocated=lambda: allocated, shape=shape)


def test_meshes_of_a_call() -> None:
    """Those among its arguments and of its tensors, each once; a tensor that is gone has none."""
    one, same, two, three = mesh(1), mesh(1), mesh(2), mesh(3)
    asked = invocation(meshes=[two], inputs=[tensor(one), tensor(same), tensor(three, allocated=False)])
    assert [found.id() for found in meter.meshes_of(asked)] == [2, 1]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"program_config": 3, "config": 4}, {"config": "3"}),
        ({"config": "a"}, {"config": "'a'"}),
        ({"topology": ttnn.Topology.Ring, "num_links": 2}, {"ring": True, "links": 2}),
        ({"topology": ttnn.Topology.Linear, "cluster_axis": 0}, {"ring": False, "axis": 0}),
        ({"is_causal": False}, {"causal": False}),
    ],
)
def test_options_that_decide_a_price(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert meter._options(invocation(kwargs=options)) == dict.fromkeys(
        ("config", "axis", "links", "ring", "causal")
    ) | wanted  # fmt: skip


def test_layouts_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """None where a call ends its input's life, its input is gone, ttnn does not build it, or builds other ones."""
    op = DeviceOp("ttnn.exp", "Unary", "", None, None, ())
    built: list[Any] = []

    def build(asked: Any) -> Graph:
        built.append(asked)
        if asked.name == "ttnn.refused":
            raise RuntimeError
        return Graph(ops=[op] * asked.count)

    monkeypatch.setattr(meter, "build", build)
    assert meter._built(invocation(count=2), 2) == [op, op]
    assert meter._built(invocation(count=2), 1) is None and meter._built(invocation("ttnn.refused"), 1) is None
    assert meter._built(invocation("ttnn.move"), 1) is None
    assert meter._built(invocation(inputs=[tensor(allocated=False)]), 1) is None and len(built) == 3
    of = meter.Meter(EventLog())
    for _ in range(2):
        assert of._layouts_of(invocation(count=1), [op]) == [op]
        assert of._layouts_of(invocation(count=1), [op, op]) == [None, None]
    assert len(built) == 5


def test_what_a_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels of both meshes, L1_SMALL only where it is used; programs of the first; the most entries of a cache."""
    kinds = {"DRAM": 40, "L1": 0, "L1_SMALL": 8}

    def view(on: Any, kind: str) -> Any:
        used = kinds[kind] if on.id() == 5 else 0
        figures = {"allocated": used, "free": 100 - used}
        whole = {f"total_bytes_{name}_per_bank": size for name, size in figures.items()}
        return SimpleNamespace(**whole, largest_contiguous_bytes_free_per_bank=90 - used)

    monkeypatch.setattr(meter, "_VIEWS", {name: name for name in kinds})
    reports = SimpleNamespace(get_buffers=lambda on: [])
    monkeypatch.setattr(meter, "ttnn", SimpleNamespace(get_memory_view=view, _ttnn=SimpleNamespace(reports=reports)))
    monkeypatch.setattr(meter, "_described", lambda on: {"id": on.id()})
    monkeypatch.setattr(meter, "capturing", lambda dispatch: nullcontext("nodes" if dispatch else ""))
    monkeypatch.setattr(meter, "settings_of", lambda call: "settings")
    monkeypatch.setattr(meter, "tensors_in", lambda value: [tensor(shape=(2, 3))] if "x" in value[0] else [])
    op = DeviceOp("ttnn.exp", "Unary", "", None, None, ())
    monkeypatch.setattr(meter, "read", lambda *told: Graph(ops=[op] * (told == ("nodes", "settings"))))
    monkeypatch.setattr(meter, "build", lambda call: Graph(ops=[op]))
    of = meter.Meter(log_of(call("add"), call("exp")))
    of.iteration()
    asked = invocation(args=("x",), meshes=[mesh(5, 3), mesh(7, 9)])
    assert of(asked) == "result" and of(invocation()) == "result"
    levels, launches, calls = [*of.levels], [*of.launches], [*of.calls]
    asked.meshes = [mesh(5, 8)]
    assert of(asked) == "result" and of.programs == 9
    assert levels == [
        meter.Level(1, 5, "DRAM", 40, 60, 50), meter.Level(1, 5, "L1", 0, 100, 90),
        meter.Level(1, 5, "L1_SMALL", 8, 92, 82), meter.Level(1, 7, "DRAM", 0, 100, 90),
        meter.Level(1, 7, "L1", 0, 100, 90),
    ]  # fmt: skip
    assert calls == [(1, ("ttnn.exp", "a.py:1", ((2, 3),)), 0)] and of.marks == [0] and of.programs == 9
    assert [(one.event, one.mesh, one.op, one.where) for one in launches] == [(1, 5, "ttnn.exp", "a.py:1")]
    assert of.meshes == {5: {"id": 5}, 7: {"id": 7}}


def test_uses_of_places() -> None:
    of = meter.Meter(log_of(call("add", [1, 1, 2], [3]), call("exp", [3], [made(4, address=4096)])))
    assert of.uses() == {("DRAM", 4096): [0, 1], ("DRAM", 8192): [0], ("DRAM", 3 * 4096): [0, 1]}


def test_a_mesh_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(l1_num_banks=64, l1_bank_size=1000, cb_limit=7, _hidden=0)
    kinds = {DRAM: SimpleNamespace(num_banks=12, total_bytes_per_bank=5000)}
    reports = SimpleNamespace(get_device_info=lambda on: info)
    fake = SimpleNamespace(get_memory_view=lambda on, kind: kinds[kind], _ttnn=SimpleNamespace(reports=reports))
    monkeypatch.setattr(meter, "ttnn", SimpleNamespace(BufferType=ttnn.BufferType, **vars(fake)))
    on = SimpleNamespace(
        compute_with_storage_grid_size=lambda: SimpleNamespace(x=8, y=7), get_device_ids=lambda: (3, 4),
        shape=(1, 2), arch=lambda: SimpleNamespace(name="WORMHOLE_B0"),
    )  # fmt: skip
    assert meter._described(on) == {
        "devices": [3, 4], "shape": [1, 2], "arch": "wormhole_b0", "grid": [8, 7], "dram_banks": 12,
        "dram_bank_bytes": 5000, "l1_banks": 64, "l1_bank_bytes": 1000,
        "info": {"l1_num_banks": 64, "l1_bank_size": 1000, "cb_limit": 7},
    }  # fmt: skip


def test_digests_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each result that lies on devices; None where nobody knows the value."""
    there, unknown, gone, host = (
        tensor(on, allocated) for on, allocated in ((1, True), (2, True), (3, False), (0, True))
    )
    value = [torch.ones(2, 2)]

    def values(one: Any) -> Any:
        if one is unknown:
            raise ShadowError("nobody knows.")
        return value

    monkeypatch.setattr(results, "tensors_in", lambda found: found)
    monkeypatch.setattr(results, "on_device", lambda one: bool(one.device()))
    of: Any = results.Results(SimpleNamespace(values=values), log_of(call("add"), call("exp")))
    assert of(invocation(result=[gone, host])) == [gone, host] and of.of == {}
    assert of(invocation(result=[there, gone, unknown])) == [there, gone, unknown]
    assert of.of == {1: [results.described(value), None]}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_number_in_every_place(count: int) -> None:
    """Is told by that and by how often, however it is kept; three looks tell most others apart."""
    same = torch.full((count,), 1.5)
    assert results._digest(same) == results._digest(torch.tensor(1.5).expand(count))
    assert results._is_one_number(same) and results._digest(same) != results._digest(same.bfloat16())
    for place in range(count):
        other = same.clone()
        other[place] = 2.5
        assert results._is_one_number(other) == (count == 1) and results._digest(other) != results._digest(same)
    assert not results._is_one_number(same[:0])
    assert {len(results._digest(value)) for value in (same, torch.arange(4.0), same[:0])} == {16}
    assert len(results.described([same])["digest"]) == 16
    zeros = torch.tensor([0.0, -0.0])
    assert not results._is_one_number(zeros) and results._is_one_number(zeros.abs())


def out_of_memory(size: int) -> RuntimeError:
    text = (
        f"Out of Memory: Not enough space to allocate {size} B L1 buffer across 64 banks, each bank needs to store 8 B"
    )
    return RuntimeError(text)


def test_refused_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a call, with every kind of memory that there is; the error goes on, whatever it is."""
    monkeypatch.setattr(exhausted, "_owners", lambda log: {"owners": 1})

    def state(on: Any, name: str, owners: Any) -> Any:
        return exhausted.MemoryState(on.id(), 0 if name == "TRACE" else 10, 0, 0, len(owners))

    monkeypatch.setattr(exhausted, "_state", state)
    log = log_of(call("add"), call("zeros"))
    of = exhausted.Exhaustion(log)

    def refused(error: RuntimeError, *on: Any) -> None:
        def proceed() -> None:
            raise error

        with pytest.raises(RuntimeError) as told:
            of(SimpleNamespace(proceed=proceed, meshes=on, inputs=[]))
        assert told.value is error

    refused(RuntimeError("no"), mesh(3))
    refused(out_of_memory(512))
    assert of.records == [] and of.ended is None
    refused(out_of_memory(512), mesh(3, 5), mesh(4, 6))
    refused(out_of_memory(1024), mesh(3, 5))
    (record,) = of.records
    assert (record.event, record.op, record.where, record.memory) == (1, "ttnn.zeros", "a.py:1", "L1")
    assert (record.asked, record.asked_per_bank, record.mesh, record.programs) == (512, 8, (1, 2), 5)
    assert [(name, one.banks, one.largest_free) for name, one in record.states.items()] == [
        (name, 3, 1) for name in ("DRAM", "L1", "L1_SMALL")
    ]
    log.events.append(call("zeros"))
    log.events[-1].number = 2
    for _ in range(2):
        refused(out_of_memory(1024), mesh(3))
    assert of.ended is None and len(of.records) == 2
    for ends in (1, 2):
        log.left_by_error.add(ends)
        assert of.ended is of.records[ends - 1]


def test_blocks_of_a_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of addresses, which ttnn counts from where a bank begins; what nobody owns has no tensor."""
    table = [
        {"address": "64", "size": "32", "allocated": "yes"}, {"address": "0", "size": "32", "allocated": "yes"},
        {"address": "32", "size": "32", "allocated": "no"}, {"address": "96", "size": "32", "allocated": "no"},
    ]  # fmt: skip
    kinds = ("allocated", "free")
    figures = {f"total_bytes_{name}_per_bank": size for name, size in zip(kinds, (64, 65), strict=True)}
    view = SimpleNamespace(
        num_banks=12, total_bytes_per_bank=128, largest_contiguous_bytes_free_per_bank=33, block_table=table, **figures
    )
    buffers = [
        SimpleNamespace(address=address, max_size_per_bank=20, buffer_type=kind, device_id=device)
        for address, kind, device in ((1000, L1, 3), (1064, L1, 3), (9000, DRAM, 3), (9500, L1, 4))
    ]
    reports = SimpleNamespace(get_buffers=lambda on: buffers)
    fake = {
        "get_memory_view": lambda on, kind: {(3, L1): view}[on.id(), kind],
        "_ttnn": SimpleNamespace(reports=reports),
    }
    monkeypatch.setattr(exhausted, "ttnn", SimpleNamespace(BufferType=ttnn.BufferType, **fake))
    owner = exhausted.Holder(1064, 20, "ttnn.exp", "a.py:1", 3, 4)
    state = exhausted._state(mesh(3), "L1", {("L1", 1064): owner, ("DRAM", 1000): owner})
    assert (state.banks, state.bank_bytes, state.allocated, state.free, state.largest_free) == (12, 128, 64, 65, 33)
    nobody = exhausted.Holder(1000, meter.bank_bytes(20), exhausted.NO_TENSOR, "", -1, -1)
    assert state.blocks == [exhausted.Block(32, held) for held in (nobody, None, owner, None)]
    assert state.holders == [nobody, owner]


def test_the_last_operation() -> None:
    last = session.LastOperation()
    assert last.read() == ""
    last.note("a longer one")
    last.note("in add")
    assert last.read() == "in add"
    last.note("x" * 5000)
    assert last.read() == "x" * 4094


@pytest.mark.parametrize(
    ("inputs", "meshes", "under_way", "counted"),
    [(1, 0, "ttnn.add on [[32, 32]]", 1), (0, 1, "ttnn.add", 1), (0, 0, "ttnn.add", 0)],
)
def test_what_is_under_way(
    inputs: int, meshes: int, under_way: str, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told before and after a call; what the mock does not know is noted and raised, other errors are only raised."""
    order: list[str] = []
    error: list[Exception] = []

    def refuse(asked: Any) -> str:
        order.append("refuse")
        if error:
            raise error[0]
        return "result"

    monkeypatch.setattr(session, "check_allocated", lambda asked: order.append("allocated"))
    monkeypatch.setattr(session, "refuse_crashes", refuse)
    monkeypatch.setattr(session, "shape_of", lambda one: one.shape)
    of = session.Session(SimpleNamespace(), EventLog())
    asked = invocation("ttnn.add", inputs=[tensor()] * inputs, meshes=[mesh(1)] * meshes)
    assert session._guard(of, order.append)(asked) == session._guard(of, None)(asked) == "result"
    told = ["allocated", f"in {under_way}", "refuse", f"after {under_way}"]
    assert order == [*told, "allocated", "refuse"] and of.ops["ttnn.add"] == 2 * counted
    for number, raised in enumerate((ValueError("no"), ShadowError("unknown."))):
        order.clear()
        error[:] = [raised]
        with pytest.raises(type(raised)):
            session._guard(of, order.append)(asked)
        assert order == told[:3] and of.unknown == ["unknown."] * number


@pytest.mark.parametrize(
    ("options", "handlers"),
    [
        ({}, ["Programs", "Exhaustion"]),
        ({"report": True}, ["Results", "Meter", "Programs", "Exhaustion"]),
        ({"report": True, "values": False}, ["Meter", "Programs", "Exhaustion"]),
    ],
)
def test_handlers_of_a_watched_program(
    options: dict[str, Any], handlers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log comes first, results before the guard; the others behind all that are there."""
    placed: list[tuple[str, bool]] = []
    asked: list[Any] = []

    @contextmanager
    def intercepted(handler: Any, first: bool = False) -> Any:
        placed.append((type(handler).__name__, first))
        yield

    @contextmanager
    def shadow_values(*how: Any) -> Any:
        asked.append(how)
        yield SimpleNamespace(store="new", numerics=None, fallbacks={"ttnn.x": 1}, takes_notes=False)

    monkeypatch.setattr(session, "intercepted", intercepted)
    monkeypatch.setattr(session, "shadow_values", shadow_values)
    earlier: Any = SimpleNamespace(shadow=SimpleNamespace(store="old"))
    with session.watched(**options) as of, session.watched(True, earlier=earlier, numerics="fast") as later:
        assert (str(of.shadow.store), str(later.shadow.store)) == ("new", "old")
    values = options.get("values", True)
    assert asked == [(False, "off", values), (True, "fast", True)]
    first = ["function", *["Results"] * ("Results" in handlers)]
    assert placed[: len(handlers) + 2] == [
        *((name, True) for name in first),
        *((name, False) for name in handlers if name != "Results"),
        ("EventLog", True),
    ]
    assert of.log.sees_writes == values and of.fallbacks == {"ttnn.x": 1} and of.numerics == {}
    assert (of.meter is None, of.results is None) == ("report" not in options, "Results" not in handlers)
    of.iteration()
    assert of.meter is None or of.meter._pending_marks == 1


def test_calls_whose_programs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is looked at once for what tells it apart: its name, options, tensors on devices and of the host."""
    monkeypatch.setattr(programs, "_CACHES", {})
    entries = [0]
    captures: list[bool] = []

    @contextmanager
    def capturing(dispatch: bool) -> Any:
        captures.append(dispatch)
        yield []

    op = DeviceOp("ttnn.exp", "Some", "<Params>", None, None, ())
    monkeypatch.setattr(programs, "capturing", capturing)
    monkeypatch.setattr(programs, "read", lambda nodes: Graph(ops=[op]))
    monkeypatch.setattr(programs, "tensors_in", lambda value: [SimpleNamespace(tensor_id=value)])
    on = SimpleNamespace(id=lambda: 1, num_program_cache_entries=lambda: entries[0])
    log = log_of(call("from_torch"), call("exp", [1]))
    of = programs.Programs(log)

    def calls(name: str = "ttnn.exp", meshes: Any = (on,), **options: Any) -> int:
        before = len(captures)
        assert of(invocation(name, meshes=list(meshes), kwargs=options)) == "result"
        return len(captures) - before

    host = torch.ones(2, 2)
    assert calls(meshes=()) == 0
    assert [calls(), calls(), calls("ttnn.add"), calls(dim=1), calls(dim=2), calls(dim=2)] == [1, 0, 1, 1, 1, 0]
    assert [calls(x=host), calls(x=host + 1), calls(x=host[:1]), calls(x=host.int())] == [1, 0, 1, 1]
    log.events[1].inputs[0] = use(1, shape=(64, 64))
    assert [calls(), calls()] == [1, 0] and all(captures)
    entries[0] = 3
    calls(dim=3)
    cache = programs._CACHES[1]
    assert cache.entries == 3 and not cache.complete and {one.program.name for one in cache.built["Some"]} == {"Some"}
    calls(output_tensor=7)
    assert cache.built["Some"][-1].results == {7} and cache.built["Some"][-2].results == frozenset()
    assert cache.built["Some"][-2].texts == {"dim": "3"} and cache.built["Some"][-2].event is log.events[1]
