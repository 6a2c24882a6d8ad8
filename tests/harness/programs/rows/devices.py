"""Statistics of each device, replicas, submeshes, numbers and semaphores."""

from __future__ import annotations

from typing import Any

from tests.harness.programs.events import (
    HALVES,
    POST,
    PRE,
    call,
    collective,
    into,
    made,
    read,
    row,
    use,
)
from tt_impl.mock.log.events import Event, Reuse
from tt_impl.mock.storage.padding import PaddingRead


def statistics() -> None:
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
    row("softmax of columns by default", [columns, call("softmax", [1], [2])], "local-statistics error 1")
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
    row(
        "norm of columns added to cut ones of one row",
        [
            call("from_torch", (), [made(1, placements=(None, 3), shape=(1, 1, 1, 64))]),
            call("add", [5, use(1, "1", shape=(1, 1, 1, 64))], [2]),
            call("rms_norm", [2], [3]),
        ],
    )
    scattered = collective("reduce_scatter", 5, 6, "reduce_scatter", options={"dim": 3})
    row("norm of scattered columns", [scattered, call("rms_norm", [6], [7])], "local-statistics error 1")
    over_all = collective("reduce_scatter", 5, 6, "reduce_scatter", None, options={"dim": 3})
    row("norm of columns scattered over all", [over_all, call("rms_norm", [6], [7])])
    across = collective("all_gather", 1, 2, axis=0, options={"dim": 2})
    row("norm of columns of gathered rows", [columns, across, call("rms_norm", [2], [3])], "local-statistics error 2")
    moved = collective("moved", 1, 2, "all_to_all", options={"dim": 2})
    row("norm of columns that were moved", [columns, moved, call("rms_norm", [2], [3])])
    for number, said in ((3, ("local-statistics error 1",)), (2, ())):
        cut = call("mesh_partition", [5], [6], options={"1": number, "2": 1})
        row(f"norm of a partition of dim {number}", [cut, call("rms_norm", [6], [7])], *said)
    row("norm of a product", [columns, call("matmul", [1, 5], [2]), call("rms_norm", [2], [3])])
    row(
        "gathered over all",
        [call(PRE, [x], [2]), collective("all_gather", 2, 3, axis=None), call(POST, [x, use(3, "1")], [4])],
    )
    row("through a reshape", [call(PRE, [x], [2]), call("reshape", [2], [3]), call(POST, [x, use(3, "1")], [4])], wrong)
    row("of rows", [call(PRE, [use(1, placements=(None, 2))], [2]), call(POST, [x, use(2, "1")], [3])])
    row(
        "read by something else before",
        [call(PRE, [x], [2]), call("exp", [2], [5]), call(POST, [x, use(2, "1")], [3])],
        wrong,
    )
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


def devices() -> None:
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


def numbers() -> None:
    row("NaN", [call("log", [1], [2], not_finite=("NaN",))], "not-finite error 0")
    row("infinity", [call("exp", [1], [2], not_finite=("infinity",))], "not-finite note 0")
    row("both", [call("exp", [1], [2], not_finite=("NaN", "infinity"))], "not-finite error 0", "not-finite note 0")
    row("NaN that is given", [call("where", [1], [2], not_finite=("NaN", "infinity"), options={"other": float("nan")})])
    given = {"other": float("inf")}
    row("infinity that is given", [call("where", [1], [2], not_finite=("infinity",), options=given)])
    row("NaN of infinity", [call("add", [1], [2], not_finite=("NaN",), options=given)], "not-finite error 0")
    row("bits of NaN", [call("bitcast", [1], [2], not_finite=("NaN",))])
    rows = PaddingRead("0", (1, 1, 30, 64), -2, 32, 0.5, "fill it")
    columns = PaddingRead("other", (1, 1, 32, 60), -1, 64, None, "slice it")
    both = call("sum", [1], [2], padding_reads=(rows, columns))
    row("padding that is read", [both], "tile-padding error 0", "tile-padding note 0")
    reuse = Reuse("UnaryDeviceOperation", "ttnn.log", "a.py:1", (("axis", "0", "1"), ("links", "2", "3")))
    row("a program for other arguments", [call("exp", [1], [2], reused=(reuse,))], "cached-program error 0")
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
