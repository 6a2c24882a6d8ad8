"""Events of programs that nobody has to run, made by hand, and the table of their logs."""

from __future__ import annotations

from typing import Any

from tt_impl.mock.log.events import Event, TensorUse

EIGHT = tuple(range(8))
LINKS = {frozenset(pair): 2 for row in (0, 4) for pair in ((row, row + 1), (row + 1, row + 2), (row + 2, row + 3))} | {
    frozenset((i, i + 4)): 1 for i in range(4)
}
"""Two rows of four devices as lines; one link between the rows."""
HALVES = ((0, 1, 4, 5), (2, 3, 6, 7))
GATHER = "ttnn.experimental.all_gather_async"
SCATTER = "ttnn.experimental.reduce_scatter_minimal_async"
MATMUL = "ttnn.matmul"
PRE = "ttnn.rms_norm_pre_all_gather"
POST = "ttnn.rms_norm_post_all_gather"


BEGIN, END, REPLAY, RELEASE = (
    f"ttnn.{name}" for name in ("begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace")
)


def use(buffer: int, argument: str = "0", **more: Any) -> TensorUse:
    """A tensor of one tile by two on all eight devices, in memory of its own."""
    fields = dict(
        address=4096 * buffer,
        shape=(1, 1, 32, 64),
        dtype="BFLOAT16",
        layout="TILE",
        memory="DRAM",
        sharding=None,
        bytes=4096,
        devices=EIGHT,
        tensor=buffer,
        mesh=(2, 4),
        placements=(None, None),
        bank_bytes=2048,
    )
    return TensorUse(argument, buffer, **fields | more)


def into(buffer: int, argument: str = "persistent_output_buffer") -> TensorUse:
    """Memory for what four devices gather."""
    return use(buffer, argument, shape=(1, 1, 32, 256), bytes=4 * 4096)


def made(buffer: int, **more: Any) -> TensorUse:
    return use(buffer, "result", **more)


def call(op: str, inputs: Any = (), outputs: Any = (), **more: Any) -> Event:
    """A call of ttnn; the log numbers it. Inputs are buffers or uses."""
    uses = [i if isinstance(i, TensorUse) else use(i, str(place)) for place, i in enumerate(inputs)]
    results = [o if isinstance(o, TensorUse) else made(o) for o in outputs]
    return Event(-1, op if op.startswith("ttnn.") else f"ttnn.{op}", "", uses, results, **more)


def crossing(collective: str, axis: int | None = 1) -> dict[str, Any]:
    return {"collective": collective, "axis": axis, "bytes": 4096, "topology": "Linear", "links": None}


def collective(op: str, x: Any, y: Any, kind: str = "all_gather", axis: int | None = 1, **more: Any) -> Event:
    """A collective of one tensor; options of the crossing by ``over``."""
    over = more.pop("over", {})
    return call(op, [x, *more.pop("buffers", [])], [y], collectives=[crossing(kind, axis) | over], **more)


def read(buffer: Any) -> Event:
    return call("from_device", [buffer])


def captured(steps: list[Event], number: int = 1, **options: Any) -> list[Event]:
    return [call(BEGIN, options={"result": number} | options), *steps, call(END)]


LOGS: dict[str, tuple[list[Event], list[str]]] = {}
"""By name the events, and what is found in them."""


def row(name: str, events: list[Event], *findings: str) -> None:
    LOGS[name] = events, list(findings)
