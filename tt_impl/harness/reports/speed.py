"""What values cost: the same ttnn operations on a mock mesh with and without them, in turn, in one process.

``refsim bench values [--mesh t3k] [--rounds 15] [--json]``

Seconds are those of the process's CPU on one thread, which a busy machine disturbs least. Tensors are bfloat16; ``cut``
ones differ on every device, ``replicated`` ones are computed once. Printed are medians over the rounds, in ms per
operation, and the median of their differences, round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refsim.files.keys import Document

SIDE = 256
CALLS = 20
"""Of one operation in a round."""

Operation = Callable[[], Any]


def operations(device: Any) -> dict[str, Operation]:
    """Make operations on SIDE x SIDE tensors, by name."""
    import torch
    import ttnn

    def put(dims: Any) -> Any:
        rows, columns = device.shape
        value = torch.randn(1, 1, SIDE * (rows if dims else 1), SIDE * (columns if dims else 1))
        mapper = ttnn.ShardTensor2dMesh(device, mesh_shape=(rows, columns), dims=dims or (None, None))
        return ttnn.from_torch(value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=mapper)

    table: dict[str, Operation] = {}
    for kind, dims in (("cut", (2, 3)), ("replicated", None)):
        a = put(dims)
        b = put(dims)
        part = ttnn.get_device_tensors(a)[0]
        calls: dict[str, Operation] = {
            "add": lambda a=a, b=b: ttnn.add(a, b),
            "gelu": lambda a=a: ttnn.gelu(a),
            "linear": lambda a=a, b=b: ttnn.linear(a, b),
            "reshape": lambda a=a: ttnn.reshape(a, (SIDE, SIDE)),
            "to_torch": lambda part=part: ttnn.to_torch(part),
        }
        table |= {f"{name} {kind}": call for name, call in calls.items()}
    return table


def milliseconds(call: Operation) -> float:
    """Measure the CPU time of one call."""
    before = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - before) / CALLS * 1e3


@dataclass
class ValueCost:
    """Of one operation."""

    operation: str
    with_values_ms: float
    without_ms: float
    extra_ms: float


@dataclass
class ValueCosts(Document):
    """Of all operations that were measured."""

    mesh: str
    records: list[ValueCost]


def measure(mesh: str, rounds: int) -> list[ValueCost]:
    """Measure every operation: ms with values, without, and their difference."""
    import torch

    from tt_impl.mock import ttnn_mock
    from tt_impl.trace.intercept import uncaught

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ttnn_mock(mesh) as device:
            return [_record(name, call, rounds, uncaught) for name, call in operations(device).items()]
    finally:
        torch.set_num_threads(threads)


def _record(name: str, call: Operation, rounds: int, uncaught: Callable[[], Any]) -> ValueCost:
    with_values = []
    without = []
    milliseconds(call)  # builds the program
    for _ in range(rounds):
        with_values.append(milliseconds(call))
        with uncaught():
            without.append(milliseconds(call))
    extra = [a - b for a, b in zip(with_values, without, strict=True)]
    return ValueCost(name, *(round(statistics.median(values), 3) for values in (with_values, without, extra)))


def text(record: ValueCost) -> str:
    """Format one line of the table."""
    numbers = (record.with_values_ms, record.without_ms, record.extra_ms)
    return f"{record.operation:20}" + "".join(f"{number:10.3f}" for number in numbers)


HEADER = f"{'ms per operation':20}{'with':>10}{'without':>10}{'extra':>10}"
