"""Logs of programs that nobody has to run: events by hand, each with what the checks must say of them.

A row of ``LOGS`` is the events and the findings, as ``"kind severity number"`` in the order of the program. Beside a
log that is wrong stand those that differ from it in one thing and are right.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.harness import words
from tt_impl.harness.checks.find import find
from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import Event, EventLog, TensorUse
from tt_impl.mock.storage.values import ProgramValues

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


def findings(name: str) -> list[Finding]:
    """Return what the checks find in a log."""
    log = EventLog(ProgramValues())
    for number, event in enumerate(LOGS[name][0]):
        log.events.append(replace(event, number=number, where=f"program.py:{number}"))
    return find(log, LINKS)


def check() -> None:
    """Hold what is found in every log against what its row says, and its sentences against the approved ones."""
    different = {}
    sentences = {}
    for name, (_, expected) in LOGS.items():
        found = findings(name)
        said = [f"{finding.kind} {finding.severity} {finding.number}" for finding in found]
        if said != expected:
            different[name] = said, expected
        if found:
            sentences[name] = [f"{finding} {finding.op} {finding.devices}" for finding in found]
    assert different == {}
    words.check("logs.json", json.dumps(sentences, indent=1) + "\n")


LOGS: dict[str, tuple[list[Event], list[str]]] = {}


def row(name: str, events: list[Event], *findings: str) -> None:
    LOGS[name] = events, list(findings)


def _wires() -> None:
    for axis, links, said in (
        (1, 2, ()),
        (1, 3, ("too-many-links error 0",)),
        (0, 1, ()),
        (0, 2, ("too-many-links error 0",)),
    ):
        events = [collective("all_gather", 1, 2, axis=axis, over={"links": links}), read(2)]
        row(f"links {links} of axis {axis}", events, *said)
    ring = {"topology": "Ring"}
    row("ring of four", [collective("all_gather", 1, 2, over=ring), read(2)], "ring-without-link error 0")
    row("ring of two", [collective("all_gather", 1, 2, axis=0, over=ring), read(2)])
    row(
        "ring this ttnn makes a line",
        [collective("all_gather", 1, 2, over=ring | {"runs_as": "Linear"}), read(2)],
        "ring-without-link error 0",
    )
    by_default = {"topology": None, "runs_as": "Linear"}
    row("ring by default", [collective(GATHER, 1, 2, over=by_default), read(2)], "ring-without-link note 0")
    row(
        "ring by default, hangs",
        [collective(GATHER, 1, 2, over={"topology": None}), read(2)],
        "ring-without-link error 0",
    )
    row("no ring by default", [collective("all_gather", 1, 2, over={"topology": None}), read(2)])
    three = {"devices": (0, 1, 2), "mesh": (1, 3)}
    row(
        "ring of three without a wire",
        [collective("all_gather", use(1, **three), made(2, **three), over=ring), read(2)],
        "ring-without-link error 0",
    )
    square = {"devices": (0, 1, 5, 4), "mesh": (1, 4)}
    row("ring of four that closes", [collective("all_gather", use(1, **square), made(2, **square), over=ring), read(2)])
    apart = {"devices": (0, 2, 1, 3), "mesh": (1, 4)}
    row(
        "no neighbours", [collective("all_gather", use(1, **apart), made(2, **apart)), read(2)], "not-neighbours note 0"
    )
    upright = {"devices": (0, 4, 5, 1), "mesh": (4, 1)}
    row(
        "down a column",
        [collective("all_gather", use(1, **upright), made(2, **upright), axis=0, over={"links": 2}), read(2)],
        "too-many-links error 0",
    )
    row(
        "over all of a row",
        [collective("all_gather", use(1, **apart), made(2, **apart), axis=None), read(2)],
        "not-neighbours note 0",
    )
    row("over all of two rows", [collective("all_gather", 1, 2, axis=None, over=ring | {"links": 9}), read(2)])
    row(
        "along an axis of one",
        [collective("all_gather", use(1, **apart), made(2, **apart), axis=0, over=ring), read(2)],
    )
    for axis, links, said in (
        (-1, 2, ()),
        (-1, 3, ("too-many-links error 0",)),
        (-2, 1, ()),
        (-2, 2, ("too-many-links error 0",)),
    ):
        events = [collective("all_gather", 1, 2, axis=axis, over={"links": links}), read(2)]
        row(f"links {links} of axis {axis}, counted from the end", events, *said)
    bent = {"devices": (4, 5, 1, 2), "mesh": (1, 4)}
    for links, said in ((1, ()), (2, ("too-many-links error 0",))):
        events = [
            collective("all_gather", use(1, **bent), made(2, **bent), over={"links": links}),
            read(use(2, **bent)),
        ]
        row(f"links {links} where one pair has one", events, *said)
    for kind in ("point_to_point", "broadcast"):
        row(f"{kind} apart", [collective(kind, use(1, **apart), made(2, **apart), kind), read(2)])


def _small_buffers() -> None:
    def gather(error: str | None = None, op: str = GATHER, kind: str = "all_gather", **buffer: Any) -> list[Event]:
        argument = buffer.pop("argument", "persistent_output_buffer")
        event = collective(
            op, 1, 2, kind, buffers=[use(2, argument, **buffer)], error=error, options={"barrier_semaphore": 9}
        )
        return [event, *([] if error else [read(2)])]

    whole = {"shape": (1, 1, 32, 256), "bytes": 4 * 4096}
    short = {"shape": (1, 1, 32, 224), "bytes": 4 * 4096 - 2048}
    small = "small-buffer error 0"
    row("buffer of the whole", gather(**whole))
    row("buffer of less", gather(**short), small)
    row("buffer of less, refused by the mock", gather("ShadowError", **short), small)
    row("buffer of less, refused by ttnn", gather("RuntimeError", **short))
    row("buffer of less, in shards", gather(**short, sharding="WIDTH_SHARDED"))
    row("buffer of less, for statistics", gather(op="ttnn.experimental.dit_fused_distributed_rmsnorm", **short))
    for argument in ("persistent_output_tensor", "persistent_output_buffer_k", "persistent_output_buffer_joint_v"):
        row(f"{argument} of less", gather(argument=argument, **short), small)
    row("buffer of less, of something else", gather(argument="buffer_tensor", **short))
    row("whole without the padding of parts", gather(shape=(1, 1, 32, 256), bytes=3 * 4096))
    row("whole in another dtype", gather(shape=(1, 1, 32, 256), bytes=2 * 4096, dtype="BFLOAT8_B"), small)

    def scatter(place: int, size: int, axis: int = 1, **over: Any) -> list[Event]:
        buffer = use(2, f"persistent_output_buffers[{place}]", bytes=size)
        event = collective(
            SCATTER, 1, 2, "reduce_scatter", axis, buffers=[buffer], over=over, options={"barrier_semaphore": 9}
        )
        return [event, read(2)]

    ring, line = {"runs_as": "Ring"}, {"runs_as": "Linear"}
    for name, place, size, axis, over in (
        ("part of a sum", 1, 1024, 1, line),
        ("sums of a line", 0, 2 * 4096, 1, line),
        ("sums of a ring", 0, 4096, 1, ring),
        ("sums of two devices", 0, 2 * 4096, 0, ring),
    ):
        row(name, scatter(place, size, axis, **over))
        row(f"{name}, a byte less", scatter(place, size - 1, axis, **over), small)
    row("sums within a matmul", scatter(0, 1, **line, within="ttnn.matmul"))
    row(
        "sum of an all_reduce",
        [collective("all_reduce", 1, 2, "all_reduce", buffers=[use(2, "persistent_output_buffer", bytes=1)]), read(2)],
    )
    two = [into(2, "persistent_output_buffer_k"), into(2, "persistent_output_buffer_v")]
    row("one buffer for two", [collective("all_gather", 1, 2, buffers=two), read(2)], "buffer-twice error 0")
    other = [into(2, "persistent_output_buffer_k"), into(3, "persistent_output_buffer_v")]
    row("a buffer for each", [collective("all_gather", 1, 2, buffers=other), read(2)])
    row("one buffer for two of no collective", [call("linear", [1, *two], [2]), read(2)])


def _memory() -> None:
    empty, write = call("empty", (), [1]), call("copy", [2, 1], written=(1,))
    row("read unwritten", [empty, call("exp", [1], [3])], "never-written error 1")
    row("read unwritten by the host", [empty, read(1)], "never-written note 1")
    row("written before", [empty, write, call("exp", [1], [3])])
    row("allocated again", [empty, write, call("empty", (), [1]), call("exp", [1], [3])], "never-written error 3")
    row("made by another call since", [empty, call("add", [2, 2], [1]), call("exp", [1], [3])])
    whole = call("exp", [1], [3], passes_nan_on=True)
    row("written in part", [empty, write, whole], "never-written error 2")
    row("written in part, then made by another call", [empty, write, call("add", [2, 2], [1]), whole])
    row(
        "a view of what is unwritten",
        [empty, call("reshape", [1], [1]), call("exp", [1], [3])],
        "never-written error 2",
    )
    row("received", [empty, call("experimental.recv_async", [1]), call("exp", [1], [3])])
    row("statistics of a fused norm", [empty, call("experimental.dit_fused_distributed_rmsnorm", [2, 1], [3])])
    row("unwritten as an output", [empty, call("exp", [2, use(1, "output_tensor")], [1], written=(1,)), read(1)])
    row("unwritten in place", [empty, call("exp_", [1], [1], written=(1,)), read(1)], "never-written error 1")
    for op in ("softmax_in_place", "scale_mask_softmax_in_place", "transformer.attention_softmax_"):
        row(f"{op} of what is unwritten", [empty, call(op, [1], [1], written=(1,)), read(1)], "never-written error 1")
    for op in ("squeeze", "unsqueeze", "view", "Tensor.reshape", "reshape_on_device", "fill", "full_like"):
        row(f"{op} of what is unwritten looks at no value", [empty, call(op, [1], [3])])
    compiles = call("exp", [1], [3])
    row("a run that compiles", [empty, compiles, write, call("exp", [1], [4]), read(4)])
    row("whose result the host reads", [empty, compiles, write, read(3)], "never-written error 1")
    adds = call("add_", [5, 3], [5], written=(5,))
    row("whose sum the host reads", [empty, compiles, adds, write, read(5)], "never-written error 1")
    anew = call("copy", [9, 5], written=(5,))
    row("whose sum is written anew", [empty, compiles, adds, anew, write, read(5)])
    row("made anew before it is read", [empty, compiles, write, compiles, read(3)])
    traced = [*_captured([call("exp", [1], [4])]), write, call("execute_trace", options={"trace_id": 1}), read(4)]
    row("a trace whose input is written before it runs", [empty, compiles, *traced])
    row("only its shape", [empty, call("zeros_like", [1], [3]), read(3)])
    row("refused", [empty, call("exp", [1], error="RuntimeError")])
    row("freed", [call("deallocate", [1]), call("add", [2], dead=[use(1, "1")])], "freed error 1")

    def gather(x: int) -> Event:
        return collective("all_gather", x, 2, buffers=[into(2)], options={"barrier_semaphore": 9})

    def gathers(count: int, made_by: int, reads_at: str = "exp") -> list[Event]:
        return [*(gather(10 + number) for number in range(count)), call(reads_at, [use(2, made=made_by)], [3])]

    row("result of the last", gathers(3, 2), "unused-result note 0", "unused-result note 1")
    row("result of the first of two", gathers(2, 0), "unused-result note 0", "stale-read error 2")
    row(
        "result of the first of three",
        gathers(3, 0),
        "unused-result note 0",
        "unused-result note 1",
        "stale-read error 3",
    )
    row(
        "result of the second of three",
        gathers(3, 1),
        "unused-result note 0",
        "unused-result note 1",
        "stale-read error 3",
    )
    late = call("exp", [use(2, made=0)], [3])
    row("the same gathered again", [gather(1), gather(1), late], "unused-result note 0")
    again = [gather(1), call("exp_", [1], [1], written=(1,)), gather(1), late]
    row("the same, written in between", again, "unused-result note 0", "stale-read error 3")
    row("a tensor that nobody made", gathers(2, -1), "unused-result note 0")
    row("the shape of the first", gathers(2, 0, "zeros_like"), "unused-result note 0")
    row("freed unread", [collective("all_gather", 1, 2), call("deallocate", [2])], "unused-result note 0")
    row("read by a view", [collective("all_gather", 1, 2), call("reshape", [2], [2])])
    row(
        "written over",
        [
            collective("all_gather", 1, 2),
            collective("all_gather", 1, 2, buffers=[into(2)], options={"barrier_semaphore": 9}),
            read(2),
        ],
        "unused-result note 0",
    )
    row("a collective that failed", [collective("all_gather", 1, 2, error="RuntimeError")])


def _sums() -> None:
    def product(x: Any = (None, 3), w: Any = (None, 0), op: str = MATMUL, more: Any = (), **how: Any) -> list[Event]:
        weight = use(2, "1", placements=w, shape=(64, 64))
        host = call("from_torch", (), [made(2, placements=w, shape=(64, 64))])
        return [host, call(op, [use(1, placements=x), weight, *more], [3], **how)]

    part = "partial-sum error"
    add = collective("all_reduce", 3, 4, "all_reduce")
    for reader in (
        "gelu",
        "silu",
        "softmax",
        "rms_norm",
        "layer_norm",
        "exp",
        "sqrt",
        "experimental.wan_fused_rmsnorm_pre_allgather",
    ):
        row(f"{reader} of a part", [*product(), call(reader, [3], [4])], f"{part} 2")
        row(f"{reader} of a sum", [*product(), add, call(reader, [4], [5])])
    row(
        "part of minimal_matmul", [*product(op="ttnn.experimental.minimal_matmul"), call("gelu", [3], [4])], f"{part} 2"
    )
    row("part of no matmul", [*product(op="ttnn.experimental.attn_matmul"), call("gelu", [3], [4])])
    row("weight of a row of heads", [*product(w=(None, 1)), call("gelu", [3], [4])])
    row(
        "transposed weight", [*product(w=(None, 1), options={"transpose_b": True}), call("gelu", [3], [4])], f"{part} 2"
    )
    row("transposed weight of rows", [*product(options={"transpose_b": True}), call("gelu", [3], [4])])
    row("x whole on every device", [*product(x=(None, None)), call("gelu", [3], [4])])
    row("x cut along the other axis", [*product(x=(3, None)), call("gelu", [3], [4])])
    row("cut along axis 0", [*product((3, None), (0, None)), call("gelu", [3], [4])], f"{part} 2")
    row(
        "summed along axis 0",
        [*product((3, None), (0, None)), collective("all_reduce", 3, 4, "all_reduce", 0), call("gelu", [4], [5])],
    )
    row("summed along the other axis", [*product((3, None), (0, None)), add, call("gelu", [4], [5])], f"{part} 3")
    row(
        "summed over all devices",
        [*product(), collective("all_reduce", 3, 4, "all_reduce", None), call("gelu", [4], [5])],
    )
    row_mesh = {"mesh": (1, 8)}
    x = use(1, placements=(3, None), **row_mesh)
    weight = made(2, placements=(0, None), shape=(64, 64), **row_mesh)
    alone = [call("from_torch", (), [weight]), call(MATMUL, [x, replace(weight, argument="1")], [made(3, **row_mesh)])]
    row("cut along an axis of one device", [*alone, call("gelu", [use(3, **row_mesh)], [4])])
    tokens = call("from_torch", (), [made(1, placements=(None, 3))])
    mean = call("mean", [1], [2], options={"dim": 3})
    row("mean of columns", [tokens, mean, call("rsqrt", [2], [3])], f"{part} 2")
    row("mean of rows", [tokens, call("mean", [1], [2], options={"dim": 2}), call("rsqrt", [2], [3])])
    row("mean of columns from them", [tokens, mean, call("subtract", [1, 2], [3])], f"{part} 2")
    merged = [collective("all_gather", 2, 4), call("mean", [4], [5], options={"dim": 3}), read(5)]
    row("means that are merged later", [tokens, mean, call("subtract", [1, 2], [3]), *merged, read(3)])
    row("counted from the end", [*product(w=(None, -2)), call("gelu", [3], [4])], f"{part} 2")
    row("a weight from elsewhere", [product()[1], call("gelu", [3], [4])])
    row(
        "a weight that was changed",
        [
            product()[0],
            call(MATMUL, [use(1, placements=(None, 3)), use(2, "1", tensor=9, placements=(None, 0))], [3]),
            call("gelu", [3], [4]),
        ],
    )
    row(
        "a weight of one row",
        [
            call("from_torch", (), [made(2, placements=(None, 0), shape=(64,))]),
            call(MATMUL, [use(1, placements=(None, 3)), use(2, "1", placements=(None, 0), shape=(64,))], [3]),
            call("gelu", [3], [4]),
        ],
    )
    row("activated at once", product(options={"activation": "gelu"}), f"{part} 1")
    row("activated by its own argument", product(options={"fused_activation": "gelu"}), f"{part} 1")
    row("activated by an add", [*product(), call("add", [3, 5], [4], options={"activations": ["gelu"]})], f"{part} 2")
    row("times itself", [*product(), call("multiply", [3, 3], [4])], f"{part} 2")
    row("times itself in place", [*product(), call("multiply_", [3, 3], [3], written=(3,))], f"{part} 2")
    row("times a scale", [*product(), call("multiply", [3, 5], [4]), call("gelu", [4], [6])], f"{part} 3")
    row("written over", [*product(), call("copy", [5, 3], written=(3,)), call("gelu", [3], [4])], f"{part} 3")
    row("made anew", [*product(), call("add", [5, 5], [3]), call("gelu", [3], [4])])
    row(
        "as an output",
        [*product(), call("gelu", [5, use(3, "output_tensor")], [3], written=(3,)), call("silu", [3], [4])],
    )
    one = {"devices": (0,), "mesh": (2, 4)}
    row("one part read", [*product(), read(use(3, **one))], f"{part} 2")
    row("parts of a row read", [*product(), read(use(3, devices=(0, 1, 2, 3)))], "partial-sum note 2")
    row("parts of a column read", [*product(), read(use(3, devices=(0, 4)))], f"{part} 2")
    row("all parts read", [*product(), read(3)], "partial-sum note 2")
    row("all parts read one by one", [*product(), *(read(use(3, devices=(i,))) for i in EIGHT)], "partial-sum note 2")
    column = [*product((3, None), (0, None))]
    row("parts of a column of axis 0", [*column, read(use(3, devices=(0, 4)))], "partial-sum note 2")
    flat = {"placements": (0,), "mesh": (1, 8)}
    row(
        "a mesh of one row",
        [
            call("from_torch", (), [made(2, shape=(64, 64), **flat)]),
            call(
                MATMUL,
                [use(1, placements=(3,), mesh=(1, 8)), use(2, "1", shape=(64, 64), **flat)],
                [made(3, mesh=(1, 8))],
            ),
            call("gelu", [use(3, mesh=(1, 8))], [4]),
        ],
        f"{part} 2",
    )
    bias = use(7, "bias", placements=(None, None))
    twice = "bias-summed error"
    row("bias of every device", [*product(more=[bias]), add, read(4)], f"{twice} 1")
    row("bias of one device", [*product(more=[use(7, "bias", placements=(None, 0))]), add, read(4)])
    row("bias by position", [*product(more=[use(7, "2")]), add, read(4)], f"{twice} 1")
    row(
        "bias of a minimal matmul",
        [*product(op="ttnn.experimental.minimal_matmul", more=[use(7, "bias_tensor")]), add, read(4)],
        f"{twice} 1",
    )
    row("another argument", [*product(more=[use(7, "optional_output_tensor")]), add, read(4)])
    row(
        "bias and a scatter",
        [*product(more=[bias]), collective("reduce_scatter", 3, 4, "reduce_scatter"), read(4)],
        f"{twice} 1",
    )
    row(
        "bias and a sum over all",
        [*product(more=[bias]), collective("all_reduce", 3, 4, "all_reduce", None), read(4)],
        f"{twice} 1",
    )
    row("bias and a gather", [*product(more=[bias]), collective("all_gather", 3, 4), read(4)])
    for op in ("add", "add_", "subtract", "subtract_"):
        row(
            f"{op} before the sum",
            [*product(), call(op, [3, use(7, "1")], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
            f"{twice} 2",
        )
        cut = use(7, "1", placements=(None, 0))
        row(
            f"{op} of parts before the sum",
            [*product(), call(op, [3, cut], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
        )
    row(
        "a number before the sum",
        [*product(), call("add", [3], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
    )
    row(
        "two parts before the sum",
        [*product(), call("add", [3, 3], [4]), collective("all_reduce", 4, 5, "all_reduce"), read(5)],
    )
    row(
        "two biases before the sum",
        [
            *product(more=[bias]),
            call("add", [3, use(7, "1")], [4]),
            collective("all_reduce", 4, 5, "all_reduce"),
            read(5),
        ],
        f"{twice} 1",
    )


def _statistics() -> None:
    x = use(1, placements=(None, 3))
    for pre, post in (
        (PRE, POST),
        ("ttnn.layer_norm_pre_all_gather", "ttnn.layer_norm_post_all_gather"),
        ("ttnn.experimental.dit_layernorm_pre_allgather", "ttnn.experimental.dit_layernorm_post_allgather"),
        ("ttnn.experimental.wan_fused_rmsnorm_pre_allgather", "ttnn.experimental.wan_fused_rmsnorm_post_allgather"),
    ):
        row(f"{pre} alone", [call(pre, [x], [2]), call(post, [x, use(2, "1")], [3])], "local-statistics error 1")
        row(f"{pre} gathered", [call(pre, [x], [2]), collective("all_gather", 2, 3), call(post, [x, use(3, "1")], [4])])
    wrong = "local-statistics error 2"
    row(
        "gathered along the other axis",
        [call(PRE, [x], [2]), collective("all_gather", 2, 3, axis=0), call(POST, [x, use(3, "1")], [4])],
        wrong,
    )
    alone = use(1, placements=(3, None), mesh=(1, 8))
    row("of an axis of one device", [call(PRE, [alone], [2]), call(POST, [alone, use(2, "1", mesh=(1, 8))], [3])])
    columns = call("from_torch", (), [made(1, placements=(None, 3))])
    row("norm of columns", [columns, call("rms_norm", [1], [2])], "local-statistics error 1")
    row("norm of heads that share a weight", [columns, call("rms_norm", [1, use(5, "weight")], [2])])
    row(
        "norm of columns of rows", [call("from_torch", (), [made(1, placements=(None, 2))]), call("rms_norm", [1], [2])]
    )
    row("softmax of columns", [columns, call("softmax", [1], [2], options={"dim": -1})], "local-statistics error 1")
    row("softmax of rows", [columns, call("softmax", [1], [2], options={"dim": -2})])
    row(
        "norm of scaled columns",
        [columns, call("silu", [1], [2]), call("rms_norm", [2], [3])],
        "local-statistics error 2",
    )
    row(
        "norm of gathered columns",
        [columns, collective("all_gather", 1, 2, options={"dim": 3}), call("rms_norm", [2], [3])],
    )
    row("norm of a product", [columns, call("matmul", [1, 5], [2]), call("rms_norm", [2], [3])])
    row(
        "gathered over all",
        [call(PRE, [x], [2]), collective("all_gather", 2, 3, axis=None), call(POST, [x, use(3, "1")], [4])],
    )
    row("through a reshape", [call(PRE, [x], [2]), call("reshape", [2], [3]), call(POST, [x, use(3, "1")], [4])], wrong)
    row("of rows", [call(PRE, [use(1, placements=(None, 2))], [2]), call(POST, [x, use(2, "1")], [3])])
    both = use(1, placements=(3, 3))
    row(
        "cut along both axes",
        [call(PRE, [both], [2]), collective("all_gather", 2, 3), call(POST, [both, use(3, "1")], [4])],
        wrong,
    )
    row(
        "from memory written anew",
        [
            call(PRE, [x], [2]),
            call("exp", [5, use(2, "output_tensor")], [2], written=(2,)),
            call(POST, [x, use(2, "1")], [3]),
        ],
    )
    row(
        "gathered into a buffer",
        [
            call(PRE, [x], [2]),
            collective("all_gather", 2, 6, buffers=[into(6)], written=(6,), options={"barrier_semaphore": 9}),
            call(POST, [x, use(6, "1")], [4]),
        ],
    )


def _devices() -> None:
    for axes, said in (((0,), ("uneven-replicas error 0",)), ((1,), ("uneven-replicas error 0",)), ((), ())):
        row(f"uneven along {axes}", [call("to_torch", [1], uneven=axes)], *said)
    for kind, said in (
        ("all_to_all_dispatch", ()),
        ("point_to_point", ()),
        ("all_gather", ("uneven-replicas error 1",)),
    ):
        sent = collective("moved", 1, 2, kind)
        row(f"uneven after {kind}", [sent, call("to_torch", [use(2, made=0)], uneven=(0,))], *said)

    copy = call("copy_host_to_device_tensor", [1], written=(1,), uneven=(0,))
    ends = call("to_torch", [3], uneven=(0,))
    wrong = ("uneven-replicas error 2",)
    row("parts of the program's own", [copy, call("exp", [1], [3]), ends])
    row("parts copied to where a trace reads", [call("exp", [1], [3]), copy, ends])
    row("parts along another axis", [copy, call("exp", [1], [3]), call("to_torch", [3], uneven=(1,))], *wrong)
    row("parts elsewhere", [copy, call("exp", [2], [3]), ends], *wrong)
    row("parts after a collective", [copy, collective("all_gather", 1, 3, axis=0), ends], *wrong)

    def half(place: int, buffer: int, **over: Any) -> list[Event]:
        mine = {"devices": HALVES[place], "mesh": (2, 2)}
        op = over.pop("op", "all_gather")
        shape = over.pop("shape", (1, 1, 32, 64))
        events = [collective(op, use(buffer, shape=shape, **mine), made(buffer + 1, **mine), axis=0, over=over)]
        return [*events, read(use(buffer + 1, **mine))]

    start = [*half(0, 1), *half(1, 11)]
    note = "submeshes-differ note"
    row("submeshes alike", [*start, *half(0, 3), *half(1, 13)])
    row("one more in the first", [*start, *half(0, 3)], f"{note} 4")
    row("one more in the second", [*start, *half(1, 13)], f"{note} 4")
    row("two more in the first", [*start, *half(0, 3), *half(0, 5)], f"{note} 4")
    row("other bytes", [*start, *half(0, 3), *half(1, 13, bytes=1)], f"{note} 4")
    row("another axis", [*start, *half(0, 3), *half(1, 13, axis=1)], f"{note} 4")
    row("another shape", [*start, *half(0, 3), *half(1, 13, shape=(1, 1, 64, 64))], f"{note} 4")
    row("another operation", [*start, *half(0, 3), *half(1, 13, op="experimental.all_gather_async")], f"{note} 4")
    row("another collective", [*start, *half(0, 3), *half(1, 13, collective="all_reduce")], f"{note} 4")
    row("other branches from the start", [*half(0, 1), *half(1, 11, bytes=1), *half(0, 3)])
    row("only one submesh", [*half(0, 1), *half(0, 3)])
    whole = [collective("all_gather", 21, 22), read(22)]
    row("the whole mesh between", [*start, *whole, *half(0, 3), *half(1, 13)])
    failed = collective("all_gather", use(3, devices=HALVES[0], mesh=(2, 2)), 4, axis=0, error="RuntimeError")
    row("one that failed", [*start, failed])


def _numbers() -> None:
    row("NaN", [call("log", [1], [2], not_finite=("NaN",))], "not-finite error 0")
    row("infinity", [call("exp", [1], [2], not_finite=("infinity",))], "not-finite note 0")
    row("both", [call("exp", [1], [2], not_finite=("NaN", "infinity"))], "not-finite error 0", "not-finite note 0")
    row("NaN that is given", [call("where", [1], [2], not_finite=("NaN", "infinity"), options={"other": float("nan")})])
    given = {"other": float("inf")}
    row("infinity that is given", [call("where", [1], [2], not_finite=("infinity",), options=given)])
    row("NaN of infinity", [call("add", [1], [2], not_finite=("NaN",), options=given)], "not-finite error 0")
    row("bits of NaN", [call("bitcast", [1], [2], not_finite=("NaN",))])
    few, many = ("buffers of 65 KiB", True), ("buffers of 66 KiB", False)
    row(
        "kernels",
        [call("generic_op", [1], kernel_warnings=(few, many))],
        "kernel-resources note 0",
        "kernel-resources error 0",
    )
    twice = {"options": {"semaphores": [5, 5, 6], "barrier_semaphore": 6}}
    row("semaphore twice", [collective("all_gather", 1, 2, **twice), read(2)], "semaphore-twice error 0")
    row("semaphore twice of no collective", [call("exp", [1], [2], **twice), read(2)])
    row("refused and dead", [call("exp", [], refused="no", dead=[use(1)])], "freed error 0")
    row("refused and gone on", [call("exp", [1], refused="no.")], "refused error 0")


def _order() -> None:
    """Two gathers into one place: with and without what keeps a device that lags from the second."""

    def gather(buffer: int, x: int = 1, axis: int = 1, semaphores: tuple[int, ...] = (), **options: Any) -> Event:
        options = {"semaphores": list(semaphores)} | options
        return collective(GATHER, x, made(buffer), axis=axis, buffers=[into(buffer)], options=options)

    sync, look = call("synchronize_device"), call("add", [2, 2], [9])
    host = read(9)
    used = "buffer-in-use error"
    waits = "semaphore-in-flight error"
    fill = call("zeros", (), [2])
    row("filled on the way", [fill, gather(2, semaphores=(5,)), look, host], "buffer-in-use note 1")
    row("filled and synchronised", [fill, sync, gather(2, semaphores=(5,)), look, host])
    row("filled and read", [fill, read(2), gather(2, semaphores=(5,)), look, host])
    row(
        "filled and read without waiting",
        [fill, call("from_device", [2], options={"blocking": False}), gather(2, semaphores=(5,)), look, host],
        "buffer-in-use note 2",
        f"{used} 2",
    )
    row("written by an operation", [call("exp", [7], [2]), gather(2, semaphores=(5,)), look, host], f"{used} 1")
    row("with a barrier", [fill, gather(2, semaphores=(5,), barrier_semaphore=8), look, host])
    row("with barriers", [fill, gather(2, semaphores=(5,), barrier_semaphores=[8, 9]), look, host])
    row("without semaphores", [fill, gather(2), look, host])
    again = [gather(2, semaphores=(5,)), look, gather(2, semaphores=(6,)), look, host]
    row("read and gathered again", [sync, *again], f"{used} 3")
    other = [gather(2, semaphores=(5,)), look, gather(3, semaphores=(6,)), call("add", [3, 3], [9]), host]
    row("another buffer", [sync, *other])
    third = [
        gather(2, semaphores=(5,)),
        look,
        gather(3, semaphores=(6,)),
        call("add", [3, 3], [9]),
        gather(2, semaphores=(5,)),
        look,
        host,
    ]
    row("two in turn", [sync, *third])
    late = [
        gather(2, semaphores=(5,)),
        gather(3, semaphores=(6,)),
        look,
        call("add", [3, 3], [9]),
        gather(2, semaphores=(5,)),
        look,
        host,
    ]
    row("two in turn, read late", [sync, *late], f"{used} 5")
    one = [gather(2, semaphores=(5,)), look, gather(3, semaphores=(5,)), call("add", [3, 3], [9]), host]
    row("one set of semaphores", [sync, *one], f"{waits} 3")
    row("one set, synchronised", [sync, *one[:2], sync, *one[2:]])
    for name, options, said in (
        ("", {}, ()),
        (" blocking", {"blocking": True}, ()),
        (" without waiting", {"blocking": False}, (f"{waits} 4",)),
    ):
        row(
            f"one set, a trace replayed{name} between", [sync, *one[:2], call(REPLAY, options=options), *one[2:]], *said
        )
    row("one set, a capture begun between", [sync, *one[:2], call(BEGIN), *one[2:]])
    row("one set, read between", [sync, *one[:2], read(9), *one[2:]])
    row(
        "one set, along the other axis",
        [sync, gather(2, semaphores=(5,)), look, gather(3, axis=0, semaphores=(5,)), call("add", [3, 3], [9]), host],
        f"{waits} 3",
    )
    barrier = {"barrier_semaphore": 8}
    row(
        "one set with barriers",
        [
            sync,
            gather(2, semaphores=(5, 8), **barrier),
            look,
            gather(3, semaphores=(5, 8), **barrier),
            call("add", [3, 3], [9]),
            host,
        ],
    )


def _captured(steps: list[Event], number: int = 1, **options: Any) -> list[Event]:
    return [call(BEGIN, options={"result": number} | options), *steps, call(END)]


def _regions() -> None:
    steps = [call("exp", [1], [2]), call("add", [2, 1], [3]), call("exp_", [3], [3], written=(3,))]
    need = 3 * 12 * 1024
    small = "trace-region"
    for region, said in (
        (need, ()),
        (need - 1, (f"{small} note 0",)),
        (3 * 2000, (f"{small} note 0",)),
        (3 * 2000 - 1, (f"{small} error 0",)),
    ):
        row(f"region of {region}", _captured(steps, trace_region_bytes=region), *said)
    row("region that nobody knows", _captured(steps))
    exact = {"trace_region_bytes": need}
    no_programs = [
        call("empty", (), [4]),
        call("deallocate", [2]),
        call("reshape", [1], [1]),
        call("exp", [1], error="RuntimeError"),
    ]
    row("what is no program", _captured([*steps, *no_programs], **exact))
    row("a program more", _captured([*steps, call("exp", [1], [5])], **exact), f"{small} note 0")
    row(
        "an exchange more",
        _captured([*steps, collective("barrier", 1, made(1)), call("exp", [1], [1])], **exact),
        f"{small} note 0",
    )
    row("without outputs", _captured([*steps, call("generic_op", [1])], **exact), f"{small} note 0")
    second = _captured(steps, 2, **exact)
    row("two traces", [*_captured(steps, **exact), *second], f"{small} note 5")
    row("one released", [*_captured(steps, **exact), call(RELEASE, options={"1": 1}), *second])
    row("one released by keyword", [*_captured(steps, **exact), call(RELEASE, options={"trace_id": 1}), *second])
    row("another released", [*_captured(steps, **exact), call(RELEASE, options={"1": 7}), *second], f"{small} note 6")
    row("released later", [*_captured(steps, **exact), *second, call(RELEASE, options={"1": 1})], f"{small} note 5")
    row("calls outside", [*steps, *_captured(steps, **exact), *steps])


def _replays() -> None:
    replay = call(REPLAY, options={"trace_id": 1})
    twice = [replay, replay]
    lost = "lost-under-trace error"
    stale = "trace-overwrites-input error"
    steps = [call("exp", [1], [2]), call("add", [2, 1], [3]), call("deallocate", [2])]
    host = call("from_torch", (), [1])
    trace = [host, *_captured(steps)]

    def guest(**more: Any) -> Event:
        return call("empty_like", [9], [made(10, **{"address": 4096 * 2} | more)])

    look = call("exp", [10], [11])
    write = call("copy", [9, 10], written=(10,))
    row("nobody is there", [*trace, *twice, read(3)])
    row("a guest", [*trace, guest(), write, replay, look], f"{lost} 6")
    row("a guest before the capture", [host, guest(), write, *trace[1:], replay, look])
    row("a guest of the last bytes", [*trace, guest(address=4096 * 2 + 2047), write, replay, look], f"{lost} 6")
    row("a guest behind", [*trace, guest(address=4096 * 2 + 2048), write, replay, look])
    row("a guest in L1", [*trace, guest(memory="L1"), write, replay, look])
    row("a guest on other devices", [*trace, guest(devices=(8, 9)), write, replay, look])
    row("a guest that nobody reads", [*trace, guest(), write, replay])
    row("a guest that is written after", [*trace, guest(), replay, write, look])
    row("a guest that is freed", [*trace, guest(), call("deallocate", [10]), replay])
    row("a guest read before", [*trace, guest(), write, look, replay])
    row("a guest after the release", [*trace, call(RELEASE, options={"1": 1}), guest(), write, replay, look])
    row("another trace is replayed", [*trace, guest(), write, call(REPLAY, options={"trace_id": 2}), look])
    row("unseen values are read", [*trace, guest(), replay, call("exp", [10], error="UnseenValue")], f"{lost} 6")
    taken = frozenset({("DRAM", 4096)})
    gone = frozenset({("DRAM", 8192)})
    row("the input is there", [*trace, call(REPLAY, options={"1": 1}, allocated=taken)])
    row(
        "the input is gone",
        [*trace, call("deallocate", [1]), call(REPLAY, options={"1": 1}, allocated=gone)],
        f"{lost} 7",
    )
    row(
        "the input is another's",
        [*trace, call("deallocate", [1]), call("empty", (), [made(10, address=4096)]), replay],
        f"{lost} 8",
    )
    row(
        "the input was another's",
        [call("empty", (), [made(10, address=4096)]), call("deallocate", [10]), *trace, replay],
    )
    heir = made(10, address=4096)
    row("an heir within the capture", [host, *_captured([*steps, call("clone", [1], [heir])]), replay])
    unlike = made(10, address=4096, dtype="FLOAT32")
    row(
        "another tensor within the capture",
        [host, *_captured([*steps, call("clone", [1], [unlike])]), replay],
        f"{lost} 7",
    )

    double = call("multiply_", [1], [1], written=(1,))
    loop = [host, *_captured([double])]
    fill = call("copy", [9, 1], written=(1,))
    row("written in place", [*loop, *twice], f"{stale} 2")
    row("written in place, once", [*loop, replay])
    row("written in place and anew", [*loop, replay, fill, replay])
    row("written in place and read", [*loop, replay, call("exp", [1], [5]), replay], "trace-overwrites-input note 2")
    row("written in place and read at the end", [*loop, *twice, read(1)], "trace-overwrites-input note 2")
    row(
        "read before it is written",
        [host, *_captured([call("exp", [1], [2]), call("copy", [2, 1], written=(1,))]), *twice],
        f"{stale} 3",
    )
    row(
        "written before it is read",
        [host, *_captured([call("copy", [9, 1], written=(1,)), call("exp", [1], [2])]), *twice],
    )
    for op in ("plus_one", "update_cache", "experimental.slice_write", "experimental.paged_fill_cache"):
        row(
            f"{op} in a trace",
            [host, *_captured([call(op, [1], written=(1,))]), *twice],
            "trace-overwrites-input note 2",
        )
    output = call("multiply", [9, use(1, "output_tensor")], [1], written=(1,))
    row("an output that is read after", [host, *_captured([output, call("exp", [1], [2])]), *twice])
    row("an output that is read before", [host, *_captured([call("exp", [1], [2]), output]), *twice], f"{stale} 3")
    row("memory taken in the capture", [*_captured([call("empty", (), [1]), double]), *twice], "never-written error 2")
    gathers = collective("all_gather", 9, 1, buffers=[into(1)], options={"barrier_semaphore": 8})
    row(
        "gathered after it is read",
        [host, *_captured([call("exp", [1], [2]), gathers]), *twice],
        "unused-result note 3",
        f"{stale} 3",
    )
    other = _captured([call("copy", [9, 1], written=(1,))], 2)
    second = call(REPLAY, options={"trace_id": 2})
    row("written by another trace", [*loop, *other, replay, second, replay])
    reader = _captured([call("exp", [1], [5])], 2)
    row("read by another trace", [*loop, *reader, replay, second, replay], "trace-overwrites-input note 2")


for _rows in (_wires, _small_buffers, _memory, _sums, _statistics, _devices, _numbers, _order, _regions, _replays):
    _rows()
