"""Captured programs: their region, and what their replays overwrite."""

from __future__ import annotations

from typing import Any

from tests.harness.programs.events import (
    RELEASE,
    REPLAY,
    call,
    captured,
    collective,
    into,
    made,
    read,
    row,
    use,
)
from tt_impl.mock.log.events import Event


def regions() -> None:
    steps = [call("exp", [1], [2]), call("add", [2, 1], [3]), call("exp_", [3], [3], written=(3,))]
    need = 3 * 12 * 1024
    small = "trace-region"
    for region, said in (
        (need, ()),
        (need - 1, (f"{small} note 0",)),
        (3 * 2000, (f"{small} note 0",)),
        (3 * 2000 - 1, (f"{small} error 0",)),
        (1, (f"{small} error 0",)),
        (0, ()),  # then commands go to the rest of DRAM
    ):
        row(f"region of {region}", captured(steps, trace_region_bytes=region), *said)
    row("region that nobody knows", captured(steps))
    exact = {"trace_region_bytes": need}
    no_programs = [
        call("empty", (), [4]),
        call("deallocate", [2]),
        call("reshape", [1], [1]),
        call("exp", [1], error="RuntimeError"),
    ]
    row("what is no program", captured([*steps, *no_programs], **exact))
    row("a program more", captured([*steps, call("exp", [1], [5])], **exact), f"{small} note 0")
    row(
        "an exchange more",
        captured([*steps, collective("barrier", 1, made(1)), call("exp", [1], [1])], **exact),
        f"{small} note 0",
    )
    row("without outputs", captured([*steps, call("generic_op", [1])], **exact), f"{small} note 0")
    second = captured(steps, 2, **exact)
    row("two traces", [*captured(steps, **exact), *second], f"{small} note 5")
    row("one released", [*captured(steps, **exact), call(RELEASE, options={"1": 1}), *second])
    row("one released by keyword", [*captured(steps, **exact), call(RELEASE, options={"trace_id": 1}), *second])
    row("another released", [*captured(steps, **exact), call(RELEASE, options={"1": 7}), *second], f"{small} note 6")
    zero = captured(steps, 0, **exact)
    row("released without a number", [*zero, call(RELEASE), *second], f"{small} note 6")
    row("released later", [*captured(steps, **exact), *second, call(RELEASE, options={"1": 1})], f"{small} note 5")
    row("calls outside", [*steps, *captured(steps, **exact), *steps])


def replays() -> None:
    replay = call(REPLAY, options={"trace_id": 1})
    twice = [replay, replay]
    lost = "lost-under-trace error"
    stale = "trace-overwrites-input error"
    steps = [call("exp", [1], [2]), call("add", [2, 1], [3]), call("deallocate", [2])]
    host = call("from_torch", (), [1])
    trace = [host, *captured(steps)]

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
    unnamed = [host, *captured(steps, 0), guest(), write]
    row("a replay of no trace", [*unnamed, call(REPLAY), look])
    row("a replay of the trace of number 0", [*unnamed, call(REPLAY, options={"1": 0}), look], f"{lost} 6")
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
    row("an heir within the capture", [host, *captured([*steps, call("clone", [1], [heir])]), replay])
    unlike = made(10, address=4096, dtype="FLOAT32")
    row(
        "another tensor within the capture",
        [host, *captured([*steps, call("clone", [1], [unlike])]), replay],
        f"{lost} 7",
    )

    row("an input that nobody made", [*captured(steps), replay])
    row(
        "an input that nobody made is gone",
        [*captured(steps), call(REPLAY, options={"1": 1}, allocated=gone)],
        f"{lost} 5",
    )

    double = call("multiply_", [1], [1], written=(1,))
    loop = [host, *captured([double])]
    fill = call("copy", [9, 1], written=(1,))
    row("written in place", [*loop, *twice], f"{stale} 2")
    row("written in place, once", [*loop, replay])
    row("written in place and anew", [*loop, replay, fill, replay])
    row("written in place and read", [*loop, replay, call("exp", [1], [5]), replay], "trace-overwrites-input note 2")
    row("written in place and read before the first replay", [*loop, call("exp", [1], [5]), *twice], f"{stale} 2")
    row("written in place and read at the end", [*loop, *twice, read(1)], "trace-overwrites-input note 2")
    row(
        "read before it is written",
        [host, *captured([call("exp", [1], [2]), call("copy", [2, 1], written=(1,))]), *twice],
        f"{stale} 3",
    )
    row(
        "written before it is read",
        [host, *captured([call("copy", [9, 1], written=(1,)), call("exp", [1], [2])]), *twice],
    )
    for op in ("plus_one", "update_cache", "experimental.slice_write", "experimental.paged_fill_cache"):
        row(
            f"{op} in a trace",
            [host, *captured([call(op, [1], written=(1,))]), *twice],
            "trace-overwrites-input note 2",
        )
    output = call("multiply", [9, use(1, "output_tensor")], [1], written=(1,))
    row("an output that is read after", [host, *captured([output, call("exp", [1], [2])]), *twice])
    row("an output that is read before", [host, *captured([call("exp", [1], [2]), output]), *twice], f"{stale} 3")
    row("memory taken in the capture", [*captured([call("empty", (), [1]), double]), *twice], "never-written error 2")
    gathers = collective("all_gather", 9, 1, buffers=[into(1)], options={"barrier_semaphore": 8})
    row(
        "gathered after it is read",
        [host, *captured([call("exp", [1], [2]), gathers]), *twice],
        "unused-result note 3",
        f"{stale} 3",
    )
    other = captured([call("copy", [9, 1], written=(1,))], 2)
    second = call(REPLAY, options={"trace_id": 2})
    row("written by another trace", [*loop, *other, replay, second, replay])
    reader = captured([call("exp", [1], [5])], 2)
    row("read by another trace", [*loop, *reader, replay, second, replay], "trace-overwrites-input note 2")
