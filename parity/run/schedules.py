"""Schedule exploration: a case under many seeded schedules must give the same bits and no hazard.

A schedule pauses ranks (some much more than others) before they send and before they take what has arrived, and takes
operations that do not depend on each other in another order: K before V or V before K, the directions of a Line,
receives and sends of one step, Ulysses' exchanges of q, k and v. What is computed in which order stays, as rounding
depends on it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

import torch

from parity.cases import Case
from parity.measure.digests import tensor_digest
from parity.measure.machine import missing_memory
from parity.run.cpu import CpuRunner
from refsim.base.errors import RefsimError
from refsim.runtime.launch import Result

LONGEST_S = 0.002


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
    """One case under its schedules."""

    KEYS = ("case", "schedules", "verdict", "reason", "failures", "replay", "wall_s")

    case: str
    suite: str
    longest_s: float
    schedules: int = 0
    reason: str = ""
    failures: list[ScheduleFailure] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def verdict(self) -> str:
        return "failed" if self.failures else "skipped" if self.reason else "passed"

    @property
    def replay(self) -> list[str]:
        """The command for every schedule that failed."""
        seeds = [failure.seed for failure in self.failures if failure.seed is not None]
        return [replay_command(self.case, seed, self.suite, self.longest_s) for seed in seeds]


def replay_command(case: str, seed: int, suite: str, longest_s: float) -> str:
    words = ["refsim", "schedules", "replay", case, "--seed", str(seed)]
    words += ["--suite", suite] * (suite != "smoke")
    words += ["--longest", f"{longest_s * 1e3:g}"] * (longest_s != LONGEST_S)
    return shlex.join(words)


def explore(
    runner: CpuRunner, case: Case, seeds: list[int], longest_s: float = LONGEST_S, suite: str = "smoke"
) -> ScheduleOutcome:
    """Run ``case`` undisturbed, then under the schedule of every seed, and compare; not if it lacks memory."""
    outcome = ScheduleOutcome(case.id, suite, longest_s, reason=missing_memory(case))
    plain = None
    for seed in [] if outcome.reason else [None, *seeds]:
        try:
            result = runner.simulate(case, case.seed, delay=None if seed is None else (seed, longest_s))
            reasons = [str(hazard) for hazard in result.hazards]
            outcome.wall_s += result.wall_s
        except RefsimError as e:
            result = None
            reasons = [str(e)]
        if seed is None:
            plain = result
        else:
            outcome.schedules += 1
            reasons += differences(plain, result) if plain is not None and result is not None else []
        outcome.failures += [ScheduleFailure(seed, reasons)] if reasons else []
    outcome.wall_s = round(outcome.wall_s, 3)
    return outcome


def differences(plain: Result, result: Result) -> list[str]:
    """Say in what two results differ, to the bit, on any rank."""
    differing = []
    for name in sorted(plain.tensors.keys() | result.tensors.keys()):
        a = plain.tensors.get(name)
        b = result.tensors.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            differing.append(f"{name} has another shape or dtype than undisturbed")
        elif tensor_digest(a) != tensor_digest(b):
            count = int((a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).sum())
            differing.append(f"{name} differs from the undisturbed run in {count} bytes")
    if plain.values != result.values:
        ranks = [r for r, (a, b) in enumerate(zip(plain.values, result.values, strict=True)) if a != b]
        differing.append(f"what ranks {', '.join(map(str, ranks))} report differs from the undisturbed run")
    return differing
