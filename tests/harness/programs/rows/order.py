"""What keeps devices that lag from what others write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.harness.programs.events import (
    BEGIN,
    GATHER,
    REPLAY,
    call,
    collective,
    into,
    made,
    read,
    row,
)
from tt_impl.mock.log.events import Event


def order() -> None:
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
    pairs = [replace(gather(2, semaphores=(n,)), outputs=[made(2), made(3)]) for n in (5, 6)]
    row("two results gathered again", [sync, *pairs, look, read(3), host], "unused-result note 1")
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

    def attend(op: str, buffer: int = 2, **more: Any) -> Event:
        return collective(op, 1, 7, "ring_attention", buffers=[into(buffer)], options={"semaphores": [5]}, **more)

    ring = "transformer.ring_joint_scaled_dot_product_attention"
    ends = [look, host]
    row("attention after attention", [sync, attend(ring), read(7), attend(ring, 3), read(7)])
    again = attend("transformer.ring_attention")
    notes = ("unused-result note 1", f"{waits} 2", "buffer-in-use note 2")
    row("attention into the same memory", [sync, attend(ring), again, read(7)], *notes)
    mixed = ("unused-result note 1", f"{waits} 2", f"{used} 2")
    row("a gather into the memory of attention", [sync, attend(ring), gather(2, semaphores=(5,)), *ends], *mixed)
    row("attention into memory of a gather", [sync, gather(2, semaphores=(5,)), attend(ring), read(7)], *mixed)
    row("attention into what was computed", [sync, call("exp", [8], [2]), attend(ring), read(7)], f"{used} 2")

    def given(kind: str, x: int, **over: Any) -> Event:
        return collective("moved", x, 2, kind, options={"semaphores": [5]}, over=over)

    for name, kind, over, said in (
        ("gathers", "all_gather", {}, (f"{used} 2",)),
        ("attentions", "ring_attention", {}, ()),
        ("gathers within a product", "all_gather", {"within": "ttnn.linear"}, ()),
    ):
        steps = [sync, given(kind, 1, **over), given(kind, 3, **over), *ends]
        row(f"results of two {name} in one place", steps, "unused-result note 1", f"{waits} 2", *said)

    def send(x: int) -> Event:
        options = {"semaphores": [5]}
        return collective("point_to_point", x, 2, "point_to_point", buffers=[into(2)], options=options)

    row("sent from one device to another, twice", [sync, send(1), look, send(3), *ends])
