"""What the model-check of the buffer policies found, as sentences and as the tables of ``docs/buffers.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parity.policies.clock import Clock, critical_lag, seeded_stalls, simulate
from parity.policies.operations import Fabric, Program
from parity.policies.program import POLICIES, program
from parity.policies.proof import prove
from parity.policies.search import explore
from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.files.tables import as_markdown

Cells = tuple[Any, ...]
RING = Fabric()
FABRICS = (
    Fabric(links=2),
    Fabric(workers=True),
    Fabric(Topology.LINEAR),
    Fabric(Topology.LINEAR, workers=True),
    Fabric(split=True),
    Fabric(links=2, split=True, workers=True),
)
_OF_RING = ("upstream", "barrier", "alternate", "slots", "credit")  # in the first tables, which are of one ring
_EXHAUSTIVE = ((2, "KV"), (3, "K"))
_EXHAUSTIVE_LAYERS = 3
_RANKS = (2, 4, 8)
_RESTS = (0.0, 1.0, 4.0)
_SEEDS = 300
_FABRIC_RANKS = 4
_FABRIC_SEEDS = 60
_FABRIC_STATES = 30_000
MARKS = "<!-- refsim schedules policy --markdown -->", "<!-- end -->"


def longest_stall(ranks: int) -> float:
    """Return the longest seeded stall in attention steps: four calls' worth."""
    return 4.0 * ranks


@dataclass
class Verdict:
    """What became of one policy on one fabric of one size."""

    policy: str
    ranks: int
    fabric: str
    hazards: list[str]
    explored: str
    states: int
    seeds: int
    wrong_seeds: list[int]
    first_wrong: str
    lag: float | None

    @property
    def safe(self) -> bool:
        return not (self.hazards or self.explored or self.wrong_seeds)

    def __str__(self) -> str:
        lines = [
            f"{self.policy}, {self.ranks} ranks, {self.fabric}: {'safe under every delay' if self.safe else 'UNSAFE'}"
        ]
        lines.append(f"  happens-before: {len(self.hazards)} pairs of uses that nothing orders")
        lines += [f"    for example {self.hazards[0]}"] if self.hazards else []
        ranks, _, tensors = _small(self.ranks)
        outcome = self.explored or "none goes wrong"
        lines.append(f"  all interleavings of {ranks} ranks ({' and '.join(tensors)}): {self.states} states; {outcome}")
        lines.append(f"  {self.seeds} seeded schedules: {len(self.wrong_seeds)} give a read the wrong bytes")
        if self.wrong_seeds:
            lines.append(f"    {self.first_wrong}")
            lines.append(f"    replay: the same command with --replay {self.wrong_seeds[0]}")
        if self.lag is not None:
            lines.append(f"  unsafe once a rank is {self.lag:.2f} attention steps late after its first sends")
        return "\n".join(lines)


def judge(policy: str, ranks: int, seeds: int = _SEEDS, fabric: Fabric = RING) -> Verdict:
    """Judge a policy in all three readings.

    Raises:
        UserError: there is no such policy, it is not made for the fabric, or the fabric has too many states to search.
    """
    programs = program(policy, ranks, fabric=fabric)
    size, layers, tensors = _small(ranks if fabric == RING else 2)
    small = explore(program(policy, size, layers, tensors if fabric == RING else "K", fabric))
    wrong = _wrong_seeds(programs, ranks, seeds)
    return Verdict(
        policy,
        ranks,
        str(fabric),
        [str(hazard) for hazard in prove(programs)],
        small.wrong,
        small.states,
        seeds,
        list(wrong),
        next(iter(wrong.values()), ""),
        critical_lag(policy, ranks, Clock(), fabric=fabric),
    )


def _wrong_seeds(threads: Program, ranks: int, seeds: int) -> dict[int, str]:
    """Return the seeds under whose schedule something goes wrong, and what does."""
    runs = ((seed, simulate(threads, seeded_stalls(threads, seed, longest_stall(ranks)))) for seed in range(seeds))
    return {seed: run.wrong for seed, run in runs if run.wrong}


def _small(ranks: int) -> tuple[int, int, str]:
    """Return ranks, layers and tensors of the ring that is searched exhaustively."""
    size, tensors = next(case for case in reversed(_EXHAUSTIVE) if case[0] <= ranks)
    return size, _EXHAUSTIVE_LAYERS, tensors


def replayed(policy: str, ranks: int, seed: int, fabric: Fabric = RING) -> tuple[list[str], bool]:
    """Write the schedule of a seed: its stalls, one line per operation, and what goes wrong."""
    programs = program(policy, ranks, fabric=fabric)
    stalls = seeded_stalls(programs, seed, longest_stall(ranks))
    run = simulate(programs, stalls)
    lines = [f"{programs[at]} is {by:.2f} late before: {programs[at].ops[i]}" for (at, i), by in sorted(stalls.items())]
    lines += [f"{when:8.2f}  {line}" for when, line in run.lines]
    lines.append(f"WRONG: {run.wrong}" if run.wrong else "every read gets the bytes it wants")
    return lines, bool(run.wrong)


def markdown() -> str:
    """Write the generated part of ``docs/buffers.md``; the same text every time."""
    sampled = [sampled_row(policy, ranks) for policy in _OF_RING for ranks in _RANKS]
    explored = [explored_row(policy, ranks, tensors) for policy in _OF_RING for ranks, tensors in _EXHAUSTIVE]
    lags = [lag_row(policy, ranks) for policy in ("upstream", "slots") for ranks in _RANKS]
    fabrics = [fabric_row(policy, fabric) for fabric in FABRICS for policy in POLICIES if suits(policy, fabric)]
    pairs = "unordered pairs"
    wrong = "wrong of {} seeded schedules"
    tables = (
        as_markdown(sampled, ("policy", "ranks", pairs, wrong.format(_SEEDS), "first seed", "verdict"), "lrrrrl"),
        as_markdown(explored, ("policy", "ring searched", "states", "shortest way to go wrong"), "llrl"),
        as_markdown(lags, ("policy", "ranks", *(f"rest {rest:g}" for rest in _RESTS)), "l" + "r" * (1 + len(_RESTS))),
        as_markdown(fabrics, ("policy", "fabric", pairs, wrong.format(_FABRIC_SEEDS), "search", "verdict"), "llrrll"),
    )
    return "\n\n".join(tables) + "\n"


def sampled_row(policy: str, ranks: int) -> Cells:
    programs = program(policy, ranks)
    pairs = len(prove(programs))
    wrong = _wrong_seeds(programs, ranks, _SEEDS)
    return policy, ranks, pairs, len(wrong), next(iter(wrong), "-"), "unsafe" if pairs or wrong else "safe"


def explored_row(policy: str, ranks: int, tensors: str) -> Cells:
    explored = explore(program(policy, ranks, _EXHAUSTIVE_LAYERS, tensors))
    how = f"{len(explored.schedule)} events: {explored.wrong}" if explored.wrong else "none, all states seen"
    return policy, f"{ranks} ranks, {' and '.join(tensors)}", explored.states, how


def lag_row(policy: str, ranks: int) -> Cells:
    lags = [critical_lag(policy, ranks, Clock(rest=rest)) for rest in _RESTS]
    return policy, ranks, *("none" if lag is None else f"{lag:.2f}" for lag in lags)


def suits(policy: str, fabric: Fabric) -> bool:
    """Whether a policy is made for a fabric."""
    return policy not in ("slots", "credit") or not (fabric.workers or fabric.split)


def fabric_row(policy: str, fabric: Fabric) -> Cells:
    """Judge four ranks by happens-before and by schedules, two ranks and one tensor by search, where feasible."""
    threads = program(policy, _FABRIC_RANKS, fabric=fabric)
    pairs = len(prove(threads))
    wrong = len(_wrong_seeds(threads, _FABRIC_RANKS, _FABRIC_SEEDS))
    explored = None
    try:
        explored = explore(program(policy, 2, _EXHAUSTIVE_LAYERS, "K", fabric), _FABRIC_STATES)
        search = (
            f"wrong after {len(explored.schedule)} events" if explored.wrong else f"all {explored.states} states right"
        )
    except UserError:
        search = f"more than {_FABRIC_STATES} states"
    unsafe = pairs or wrong or (explored is not None and explored.wrong)
    return policy, fabric, pairs, wrong, search, "unsafe" if unsafe else "safe"
