"""What it costs to hand a tensor to the next rank: by gloo, out of its memory (shared), and a plain copy, in turn.

    gloo, shared    every rank sends a tensor to the next one and receives one, in one piece and by turns between two
                    persistent buffers, as ring attention does
    copy            every rank copies one of these buffers to the other, all at the same time: what the memory gives

Every round measures the three, each first in turn, after a round that does not count. A ratio is the median over
rounds, since what else the machine does changes all three; bytes are those that arrive on all ranks.

``refsim bench shift --ranks 8 --mib 16``
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.sim import Machine, Ratio, elapsed_s, machine, row_of_devices
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.ccl import all_gather
from refsim.ccl.exchange import exchange
from refsim.files.keys import Beside, Document
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.host_memory import check_fits

WAYS = ("gloo", "shared", "copy")
TIMES = 20
"""Shifts of one measurement."""


def program(device: Device, *, size: int, copy: bool, times: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Shift ``size`` bytes around the ring ``times`` times, or copy them, on every rank; when it began and ended."""
    group = device.groups["sp"]
    to = (group.index + 1) % group.size
    source = (group.index - 1) % group.size
    numbers = torch.arange(size // 4, dtype=torch.int32)
    slots = device.buffers.ping_pong("shift", (size // 4,), torch.int32)
    for slot in (slots[0], slots[1]) if copy else (slots[0],):  # a plain copy is no op that the device logs
        with device.writing("what is shifted", slot.tensor):
            torch.add(numbers, group.index, out=slot.tensor)

    def move(step: int) -> None:
        here = slots[step].tensor
        there = slots[step + 1].tensor
        if copy:
            there.copy_(here)
        else:
            exchange(device, group, step, sends=[(here, to)], recvs=[(there, source)], chunk_bytes=size)

    move(0)
    all_gather(device, torch.ones(1), group, dim=0)  # all begin together
    began = time.monotonic()
    for step in range(1, times + 1):
        move(step)
    ended = time.monotonic()
    last = slots[times + 1].tensor
    first = group.index if copy else (group.index - times - 1) % group.size
    with device.reading("comparison", last):
        right = torch.equal(last, numbers + first)
    return {"began": began, "ended": ended, "right": right}, {}


@dataclass
class Shifted:
    """One size.

    Attributes:
        seconds: Of one shift, by transport, and of a plain copy.
    """

    ranks: int
    rounds: int
    seconds: dict[str, float]
    gb_per_s: dict[str, float]
    times_gloo: Ratio
    of_copy: Ratio
    right: bool


@dataclass
class Shift(Document):
    """A shift of ``mib`` MiB a rank."""

    machine: Machine
    mib: int
    shifted: Beside[Shifted]


def measure(ranks: int, mib: int, rounds: int, *, say: Callable[[str], None] = print) -> Shift:
    """Return the record of a shift of ``mib`` MiB a rank; ``seconds`` of one shift are medians over rounds.

    Raises:
        UserError: a number that is too small, or more than this machine holds.
    """
    if not (2 <= ranks <= 1024 and mib >= 1 and rounds >= 1):
        raise UserError(f"ranks are 2 to 1024, MiB and rounds 1 or more, not {ranks}, {mib} and {rounds}.")
    return Shift(machine(), mib, compare(ranks, mib << 20, rounds, say=say))


def compare(ranks: int, size: int, rounds: int, *, times: int = TIMES, say: Callable[[str], None] = print) -> Shifted:
    """Return what a shift of ``size`` bytes a rank takes, ``times`` of them in a measurement.

    Raises:
        UserError: more than this machine holds.
        RankFailure: a rank died, raised or hung.
    """
    mib = f"{size / 2**20:g} MiB"
    check_fits(f"a shift of {mib}", {"tensors": 4 * ranks * size}, instead="choose fewer --mib or --ranks")
    options = RunOptions.of(mesh=row_of_devices(ranks), parallel=f"sp{ranks}")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    right = True
    for number in range(rounds + 1):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            used = options.but(transport="gloo" if way == "gloo" else "shared")
            arguments = {"size": size, "copy": way == "copy", "times": times}
            result = launch.execute("benchmarks.shift:program", used, arguments)
            assert result is not None  # the command refuses torchrun
            right = right and all(value["right"] for value in result.values) and not result.hazards
            if number:
                seconds[way].append(elapsed_s(result) / times)
        if number:
            say(f"{mib}, round {number}: " + ", ".join(f"{way} {1e3 * seconds[way][-1]:.3g} ms" for way in WAYS))
    middle = {way: statistics.median(taken) for way, taken in seconds.items()}
    speeds = {way: ranks * size / taken / 1e9 for way, taken in middle.items()}
    gloo, copy = (Ratio.of(zip(seconds[way], seconds["shared"], strict=True)) for way in ("gloo", "copy"))
    return Shifted(ranks, rounds, middle, speeds, gloo, copy, right)


def text(shift: Shift) -> str:
    """Return a record in a few lines for people."""
    record = shift.shifted
    gloo = record.times_gloo
    copy = record.of_copy
    return "\n".join(
        [
            f"{record.ranks} ranks, {shift.mib} MiB each{'' if record.right else ': WRONG'}",
            *(f"{way:6} {1e3 * record.seconds[way]:8.1f} ms {record.gb_per_s[way]:6.2f} GB/s" for way in WAYS),
            f"shared is {gloo.ratio:.2f} times as fast as gloo ({gloo.range[0]:.2f} to {gloo.range[1]:.2f}), "
            f"{copy.ratio:.0%} of a plain copy ({copy.range[0]:.0%} to {copy.range[1]:.0%})",
        ]
    )
