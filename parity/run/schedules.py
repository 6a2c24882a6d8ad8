"""Schedule exploration: a case under many seeded schedules must give the same bits and no hazard.

A schedule pauses ranks (some much more than others) before they send and before they take what has arrived, and takes
operations that do not depend on each other in another order: K before V or V before K, the directions of a Line,
receives and sends of one step, Ulysses' exchanges of q, k and v. What is computed in which order stays, as rounding
depends on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from parity.cases import Case
from parity.measure.digests import tensor_digest
from parity.measure.machine import missing_memory
from refsim.base.errors import RefsimError
from refsim.runtime.launch import Result

LONGEST_S = 0.002
Progress = Callable[["Outcome"], None]


class Simulator(Protocol):
    """What runs a case: ``parity.run.cpu_runner.CpuRunner``, or a stand-in in tests."""

    def simulate(self, case: Case, seed: int, **more: Any) -> Result: ...


@dataclass
class ScheduleFailure:
    """What was wrong under one schedule.

    Attributes:
        seed: Of the schedule; null: the undisturbed run.
    """

    seed: int | None
    reasons: list[str]


@dataclass
class ScheduleOutcome:
    """One case under its schedules.

    Attributes:
        replay: The command for every schedule that failed.
    """

    case: str
    schedules: int
    verdict: str
    reason: str
    failures: list[ScheduleFailure]
    replay: list[str]
    wall_s: float


@dataclass
class Outcome:
    """One case under its schedules.

    Attributes:
        schedules: seeds that were run, in order; the undisturbed run is not among them.
        failures: seed -> what was wrong, None for the undisturbed run.
        skipped: why nothing was run; empty if it was.
    """

    case: str
    schedules: list[int] = field(default_factory=list)
    failures: dict[int | None, list[str]] = field(default_factory=dict)
    skipped: str = ""
    wall_s: float = 0.0

    @property
    def verdict(self) -> str:
        return "failed" if self.failures else "skipped" if self.skipped else "passed"

    def replays(self, suite: str, longest_s: float) -> Iterator[str]:
        """Return the command for every schedule that failed."""
        for seed in self.failures:
            if seed is not None:
                yield replay_command(self.case, seed, suite, longest_s)

    def result(self, suite: str, longest_s: float) -> ScheduleOutcome:
        """Return the same as a result."""
        failures = [ScheduleFailure(seed, reasons) for seed, reasons in self.failures.items()]
        replays, wall_s = list(self.replays(suite, longest_s)), round(self.wall_s, 3)
        return ScheduleOutcome(self.case, len(self.schedules), self.verdict, self.skipped, failures, replays, wall_s)


def replay_command(case: str, seed: int, suite: str, longest_s: float) -> str:
    words = ["refsim", "schedules", "replay", case, "--seed", str(seed)]
    words += ["--suite", suite] * (suite != "smoke")
    words += ["--longest", f"{longest_s * 1e3:g}"] * (longest_s != LONGEST_S)
    return shlex.join(words)


def explore(runner: Simulator, case: Case, seeds: list[int], longest_s: float = LONGEST_S) -> Outcome:
    """Run ``case`` undisturbed, then under the schedule of every seed, and compare."""
    outcome = Outcome(case.id, skipped=missing_memory(case))
    if outcome.skipped:
        return outcome
    plain = _attempt(runner, case, outcome, None, None)
    for seed in seeds:
        outcome.schedules.append(seed)
        found = _attempt(runner, case, outcome, seed, (seed, longest_s))
        if plain is not None and found is not None:
            differing = differences(plain, found)
            if differing:
                outcome.failures.setdefault(seed, []).extend(differing)
    return outcome


def _attempt(
    runner: Simulator, case: Case, outcome: Outcome, seed: int | None, delay: tuple[int, float] | None
) -> Result | None:
    try:
        result = runner.simulate(case, case.seed, delay=delay)
    except RefsimError as e:
        outcome.failures[seed] = [str(e)]
        return None
    outcome.wall_s += result.wall_s
    if result.hazards:
        outcome.failures[seed] = [str(hazard) for hazard in result.hazards]
    return result


def differences(plain: Result, found: Result) -> list[str]:
    """In what two results differ, to the bit, on any rank."""
    differing = []
    for name in sorted(plain.tensors.keys() | found.tensors.keys()):
        a, b = plain.tensors.get(name), found.tensors.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            differing.append(f"{name} has another shape or dtype than undisturbed")
        elif tensor_digest(a) != tensor_digest(b):
            count = int((a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).sum())
            differing.append(f"{name} differs from the undisturbed run in {count} bytes")
    if plain.values != found.values:
        ranks = [r for r, (a, b) in enumerate(zip(plain.values, found.values, strict=True)) if a != b]
        differing.append(f"what ranks {', '.join(map(str, ranks))} report differs from the undisturbed run")
    return differing
