"""Buffers that are too small, and memory that is read unwritten, freed or overwritten."""

from __future__ import annotations

from typing import Any

from tests.harness.programs.events import (
    GATHER,
    SCATTER,
    call,
    captured,
    collective,
    into,
    read,
    row,
    use,
)
from tt_impl.mock.log.events import Event


def small_buffers() -> None:
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
    for size, found in ((4096, ()), (4095, (small,))):  # of four batches, which a ring of the strided one takes in turn
        strided = scatter(0, size, **ring)
        strided[0].op = "ttnn.experimental.strided_reduce_scatter_async"
        strided[0].inputs[0] = use(1, shape=(4, 1, 32, 64), bytes=4 * 4096)
        row(f"sums of a strided ring in {size} bytes", strided, *found)
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


def memory() -> None:
    empty, write = call("empty", (), [1]), call("copy", [2, 1], written=(1,))
    row("read unwritten", [empty, call("exp", [1], [3])], "never-written error 1")
    row("read unwritten by the host", [empty, read(1)], "never-written note 1")
    row("written before", [empty, write, call("exp", [1], [3])])
    row("allocated again", [empty, write, call("empty", (), [1]), call("exp", [1], [3])], "never-written error 3")
    row("made by another call since", [empty, call("add", [2, 2], [1]), call("exp", [1], [3])])
    whole = call("exp", [1], [3], passes_nan_on=True)
    row("written in part", [empty, write, whole], "never-written error 2")
    copied = [call("clone", [1], [4], passes_nan_on=True), call("exp", [4], [5], passes_nan_on=True)]
    row("a copy of what is written in part", [empty, write, *copied], "never-written error 3")
    row("a copy made anew", [empty, write, copied[0], call("add", [2, 2], [4]), copied[1]])
    row("a copy of what is written", [write, *copied])
    row("a result of what is written in part", [empty, write, whole, call("exp", [3], [5])], "never-written error 2")
    row("written in part and passed on no more", [empty, write, call("exp", [1], [3]), call("exp", [3], [5])])
    row("written in part, changed in place", [empty, write, call("exp_", [1], [1], written=(1,), passes_nan_on=True)])
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
    traced = [*captured([call("exp", [1], [4])]), write, call("execute_trace", options={"trace_id": 1}), read(4)]
    row("a trace whose input is written before it runs", [empty, compiles, *traced])
    row("only its shape", [empty, call("zeros_like", [1], [3]), read(3)])
    row("refused", [empty, call("exp", [1], error="RuntimeError")])
    row("freed", [call("deallocate", [1]), call("add", [2], dead=[use(1, "1")])], "freed error 1")
    row("freed again", [call("deallocate", [1]), call("deallocate", dead=[use(1)])], "freed note 1")

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
