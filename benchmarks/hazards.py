"""What it costs to look for hazards: the same run with and without, in turn, in one process.

    cpu      seconds of CPU of all ranks (from the kernel's scheduler, all threads), which a busy machine disturbs least
    wall     seconds from handing out the job to the last rank's reply
    counted  on every rank: uses logged and buffers looked up, times what one of each takes there, plus the screening of
             the log, over the rank's CPU seconds; free of the noise of the two above, but leaves out the one small
             message per rank that says whether anybody is in doubt

Every pair gives one ratio with / without; printed are the medians over the pairs and their quartiles. The order inside
a pair alternates. ``counted`` is the largest share of any rank. A run that takes a moment is disturbed most: there are
as many pairs of it as fit in half a minute.

``refsim bench hazards [--pairs 12] [--json]``
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor

from benchmarks.sim import cpu_s
from parity.cases import AttentionShape, Case, Layout, make_case
from parity.cases.suites import suite_cases
from parity.run.cpu import CpuRunner
from refsim.base.jobs import named
from refsim.files.keys import Document
from refsim.runtime import launch
from refsim.runtime.buffers import BufferPool
from refsim.runtime.device import Device
from refsim.runtime.watch.hazards import UseLog

FULL_LENGTH = make_case(
    "attention", "attention", Layout("t3k-1x8", "sp8"), AttentionShape(heads=38, n=4096, text=333), tag="1024px"
)
ENOUGH_S = 30.0
SAY_S = 5.0
SMOKE = ("sd35_medium-t3k-cfg2_sp2_tp2-ring-fp32", "sd35_tiny-t3k-cfg2_sp2_tp2-ring-fp32")


@dataclass
class WithHazards:
    """``ratio``: with the search for hazards over without, the median over pairs."""

    ratio: float
    quartiles: list[float]
    without_s: float


@dataclass
class HazardCost:
    """One case."""

    case: str
    pairs: int
    counted: dict[str, float]
    cpu: WithHazards
    wall: WithHazards


@dataclass
class HazardCosts(Document):
    """All cases."""

    records: list[HazardCost]


def measure(runner: CpuRunner, case: Case, detect: bool) -> tuple[float, float]:
    """Run a case; return its (CPU seconds, wall seconds)."""
    before = cpu_s()
    result = runner.simulate(case, 0, detect_hazards=detect)
    assert not result.hazards
    return cpu_s() - before, result.wall_s


def accounted(device: Device, *, program: str, arguments: dict) -> tuple[dict, dict]:
    """Run ``program`` on a rank, and add to its value what its uses of buffers cost there."""
    looked_up = 0
    of = device.buffers.of

    def counting(tensor: Tensor):
        nonlocal looked_up
        looked_up += 1
        return of(tensor)

    device.buffers.of = counting
    began = time.process_time()
    result, tensors = named(program)(device, **arguments)
    spent = time.process_time() - began
    began = time.thread_time()
    device.uses.suspicious()
    screening = time.thread_time() - began

    tries = 2000
    log = UseLog()
    pool = BufferPool()
    buffer = pool.persistent("probe", (2, 4, 8, 16), torch.float32)
    began = time.thread_time()
    for _ in range(tries):
        log.end(log.begin(buffer.tensor, buffer, writes=False, op="probe", step=0, path="probe"))
    per_use = (time.thread_time() - began) / tries
    began = time.thread_time()
    for _ in range(tries):
        pool.of(buffer.tensor)
    per_look = (time.thread_time() - began) / tries
    uses = len(device.uses._uses)
    share = (uses * per_use + looked_up * per_look + screening) / spent
    return dict(result) | {"uses": uses, "share": share}, tensors


def counted(runner: CpuRunner, case: Case) -> dict:
    """Return the largest share of CPU that logging and screening take on any rank, and how many uses it logged."""
    original = launch.execute

    def execute(program, options, arguments, **more):
        wrapped = {"program": program, "arguments": arguments}
        return original("benchmarks.hazards:accounted", options, wrapped, **more)

    with mock.patch.object(launch, "execute", execute):
        values = runner.simulate(case, 0).values
    worst = max(values, key=lambda value: value["share"])
    return {"share": worst["share"], "uses": worst["uses"]}


def compare(runner: CpuRunner, case: Case, pairs: int, say: Callable[[str], None] = lambda line: None) -> HazardCost:
    """Return ratios with / without over at least ``pairs`` pairs of runs; ``say`` gets a line every few seconds."""
    measure(runner, case, True)
    _, wall = measure(runner, case, False)
    pairs = max(pairs, int(ENOUGH_S / (2 * wall)))
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    spoke = time.monotonic()
    for pair in range(pairs):
        if time.monotonic() - spoke > SAY_S:
            spoke = time.monotonic()
            say(f"  {pair} of {pairs} pairs")
        for detect in (True, False) if pair % 2 else (False, True):
            seconds[detect].append(measure(runner, case, detect))
    costs = {}
    for i, name in enumerate(("cpu", "wall")):
        ratios = [on[i] / off[i] for on, off in zip(seconds[True], seconds[False], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        costs[name] = WithHazards(middle, [low, high], statistics.median(off[i] for off in seconds[False]))
    return HazardCost(case.id, pairs, counted(runner, case), **costs)


def compare_all(pairs: int, *, say: Callable[[str], None]) -> list[HazardCost]:
    """Return the records of the full-length attention and of two models; ``say`` gets a line now and then."""
    smoke = {case.id: case for case in suite_cases("smoke")}
    records = []
    with CpuRunner() as runner:
        for case in (replace(FULL_LENGTH, needs_gb=4), *(smoke[id] for id in SMOKE)):
            say(f"{case.id} ...")
            records.append(compare(runner, case, pairs, say))
    return records


def text(record: HazardCost) -> str:
    """Return a record in three lines for people."""
    share = record.counted["share"]
    uses = record.counted["uses"]
    lines = [f"{record.case}: counted {share:.2%} of the CPU of a rank ({uses} uses)"]
    for name, cost in (("cpu", record.cpu), ("wall", record.wall)):
        low, high = cost.quartiles
        lines.append(
            f"{record.case}: {name} with / without {cost.ratio:.3f} (quartiles {low:.3f} to {high:.3f}, "
            f"{cost.without_s:.2f} s without, {record.pairs} pairs)"
        )
    return "\n".join(lines)
