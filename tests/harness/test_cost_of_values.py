"""What values cost: which operations are measured, on what, and how figures come of a clock; no device is opened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ttnn")

from tt_impl.harness.reports import speed


def clock(monkeypatch: pytest.MonkeyPatch, ticks: Callable[[], float]) -> Callable[[], None]:
    """Replace the clock of the process by one that a call of the result moves on by ``ticks()`` seconds."""
    now = [100.0]
    monkeypatch.setattr(speed.time, "process_time", lambda: now[0])

    def work() -> None:
        now[0] += ticks()

    return work


def test_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tensors are as large on each device as replicated ones are; the host reads the first device's part."""
    made: list[tuple[str, Any]] = []

    def from_torch(value: torch.Tensor, *, mesh_mapper: Any, **how: Any) -> tuple:
        made.append(("tensor", (tuple(value.shape), mesh_mapper, how)))
        return ("tensor", len(made), *mesh_mapper)

    def mapper(device: Any, *, mesh_shape: Any, dims: Any) -> tuple:
        return device, mesh_shape, dims

    ttnn = SimpleNamespace(bfloat16="bf16", TILE_LAYOUT="tile", from_torch=from_torch, ShardTensor2dMesh=mapper)
    ttnn.get_device_tensors = lambda x: [(x, "first"), (x, "second")]
    for name in ("add", "gelu", "linear", "reshape", "to_torch"):
        setattr(ttnn, name, lambda *arguments, name=name: (name, *arguments))
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    device = SimpleNamespace(shape=(2, 4))
    called = {name: call() for name, call in speed.operations(device).items()}
    how = {"dtype": "bf16", "layout": "tile", "device": device}
    for kind, number, shape, dims in (("cut", 1, (512, 1024), (2, 3)), ("replicated", 3, (256, 256), (None, None))):
        a, b = (("tensor", number + i, device, (2, 4), dims) for i in (0, 1))
        assert made[number - 1 : number + 1] == [("tensor", ((1, 1, *shape), (device, (2, 4), dims), how))] * 2
        assert {name.split()[0]: result for name, result in called.items() if name.endswith(f" {kind}")} == {
            "add": ("add", a, b),
            "gelu": ("gelu", a),
            "linear": ("linear", a, b),
            "reshape": ("reshape", a, (256, 256)),
            "to_torch": ("to_torch", (a, "first")),
        }
    assert len(called) == 10


def test_milliseconds_of_one_of_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5] * 100)
    assert speed.milliseconds(clock(monkeypatch, lambda: next(seconds))) == 500.0
    assert len(list(seconds)) == 100 - speed.CALLS == 80


def test_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round builds programs and does not count; then rounds with and without values take turns."""
    caught = [True]
    rounds: list[tuple[bool, int]] = []
    seconds = iter((9.0, 0.003, 0.001, 0.005, 0.002, 0.0045, 0.0039))

    @contextmanager
    def uncaught() -> Iterator[None]:
        caught[0] = False
        yield
        caught[0] = True

    @contextmanager
    def mesh(name: str) -> Iterator[str]:
        yield f"device of {name}"

    def work() -> None:
        rounds.append((caught[0], torch.get_num_threads()))
        move()

    move = clock(monkeypatch, lambda: next(seconds))
    monkeypatch.setattr(speed, "CALLS", 1)
    monkeypatch.setattr(speed, "operations", lambda device: {f"add on {device}": work})
    monkeypatch.setattr("tt_impl.mock.ttnn_mock", mesh)
    monkeypatch.setattr("tt_impl.trace.intercept.uncaught", uncaught)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        (record,) = speed.measure("t3k", 3)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert rounds == [(values, 1) for values in (True, True, False, True, False, True, False)]
    assert record == speed.ValueCost("add on device of t3k", 4.5, 2.0, 2.0)


def test_lines_of_the_table() -> None:
    assert speed.HEADER == "ms per operation          with   without     extra"
    assert speed.text(speed.ValueCost("add cut", 4.5, 2.25, 2.125)) == (
        "add cut                  4.500     2.250     2.125"
    )
