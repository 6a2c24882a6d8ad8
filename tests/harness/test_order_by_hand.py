"""What devices and the host use, and whom they hear of, of a few calls: every line of it, word for word."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ttnn")

from tests.harness import words
from tests.harness.programs.events import BEGIN, GATHER, REPLAY, call, captured, collective, into, made, read, use
from tests.harness.test_by_hand import log_of
from tt_impl.harness.checks import order
from tt_impl.mock.log.events import Event

TWO: dict[str, Any] = {"mesh": (1, 2), "devices": (4, 5)}
"""A submesh, of whose devices the first is one of the four that stand for all."""


def gather(x: Any, buffer: int, *semaphores: int, **options: Any) -> Event:
    signals = {"semaphores": list(semaphores)} if semaphores else {}
    return collective(GATHER, x, into(buffer, "result"), buffers=[into(buffer)], options=signals | options)


PROGRAMS: dict[str, list[Event]] = {
    "a gather twice": [gather(1, 2, 16), call("exp", [2], [3]), gather(1, 2, 16)],
    "barriers": [
        gather(1, 2, 16, barrier_semaphore=24), gather(1, 2, 16, 24, barrier_semaphores=[24]), gather(1, 2, 16),
        gather(1, 2),
    ],
    "over an axis, over all, and none": [
        gather(1, 2, 16), collective(GATHER, 1, 3, axis=0, options={"semaphores": [16]}),
        collective(GATHER, 1, 4, axis=None, options={"semaphores": [16]}),
        collective("point_to_point", 1, 2, "point_to_point", options={"semaphores": [16]}),
    ],
    "what is used here": [
        gather(1, 2, 16), call("zeros", (), [2]), call("empty", (), [2]), call("add_", [2], [2], written=[2]),
        call("reshape", [2], [2]), call("exp", [2, 9], [1]), gather(1, 2, 16),
    ],
    "the host waits": [
        gather(1, 2, 16), read(2), call("from_device", [2], options={"blocking": False}), call("synchronize_device"),
        call(REPLAY, options={"trace_id": 1}), call(REPLAY, options={"trace_id": 1, "blocking": False}), call(BEGIN),
        read(use(7, **TWO)), gather(1, 2, 16),
    ],
    "a submesh": [
        gather(1, 2, 16), collective(GATHER, use(1, **TWO), made(2, **TWO), options={"semaphores": [16]}),
        gather(1, 2, 16),
    ],
    "attention": [
        collective(
            "ring_attention", 1, 3, "ring_attention", buffers=[into(2), into(4)], options={"semaphores": [16, 17]}
        ),
        collective("matmul", 1, 3, over={"within": "ttnn.matmul"}, options={"semaphores": [16]}),
        call("exp", [3], [2]), gather(1, 2, 16),
    ],
    "what failed, and what a trace holds": [
        collective(GATHER, 1, 2, options={"semaphores": [16]}, error="no"), *captured([gather(1, 2, 16)]),
        gather(1, 2, 16),
    ],
    "used once": [gather(1, 2, 16), call("exp", [1], [3])],
}  # fmt: skip


def line(used: list[Any]) -> str:
    """Write when, by which call, which buffer is used as what; its bytes, call and path are the same everywhere."""
    writes, buffer, low, high, op, number, path, peer, channel, begin, end = used
    assert (low, high, path) == (0, 1, "") and (op == "allocation") == (number < 0) and op
    assert peer is not None or channel == 0
    what = f"buffer {buffer}" if peer is None else f"{'-' if buffer is None else buffer}, {peer} by {channel}"
    return f"{begin}-{end} #{number} {'writes' if writes else 'reads'} {what}"


def test_what_devices_use_word_for_word() -> None:
    lines: list[str] = []
    for name, events in PROGRAMS.items():
        log = log_of(*events)
        model = order._Model(log)
        lines += [f"{name}: {model.named}, {model.devices}"]
        for rank, told in enumerate(model.logs()):
            lines += [f"  {rank}: {told['names']} {told['released']}", *(f"    {line(used)}" for used in told["uses"])]
        lines += [f"  {finding.severity} {finding.kind}: {finding.sentence}" for finding in order.in_flight(log)]
    words.check("order.txt", "\n".join(lines) + "\n")


def test_the_semaphore_that_is_given_twice_is_named() -> None:
    events = [gather(1, 2, *semaphores) for semaphores in ((16, 24, 24), (16, 24), (), (8, 8, 8))]
    found = list(order.twice(log_of(*events)))
    assert [(one.where, one.sentence.partition(":")[0]) for one in found] == [
        ("a.py:0", f"{GATHER} is given semaphore 24 twice"), ("a.py:3", f"{GATHER} is given semaphore 8 twice"),
    ]  # fmt: skip
