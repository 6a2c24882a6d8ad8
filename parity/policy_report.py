"""What the model-check of the buffer policies found, as sentences and as the tables of ``docs/buffers.md``."""

from __future__ import annotations

from dataclasses import dataclass

from parity.policies import POLICIES, Clock, critical_lag, explore, program, prove, seeded_stalls, simulate

__all__ = ["POLICIES", "Verdict", "judge", "markdown", "replayed"]
_EXHAUSTIVE = ((2, "KV"), (3, "K"))
_EXHAUSTIVE_LAYERS = 3
_RANKS = (2, 4, 8)
_RESTS = (0.0, 1.0, 4.0)
_SEEDS = 300
MARKS = "<!-- refsim schedules policy --markdown -->", "<!-- end -->"


def longest_stall(ranks: int) -> float:
    """Longest seeded stall in attention steps: four calls' worth."""
    return 4.0 * ranks


@dataclass
class Verdict:
    """What became of one policy on one ring size."""

    policy: str
    ranks: int
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
        lines = [f"{self.policy}, {self.ranks} ranks: {'safe under every delay' if self.safe else 'UNSAFE'}"]
        lines.append(f"  happens-before: {len(self.hazards)} pairs of uses that nothing orders")
        lines += [f"    for example {self.hazards[0]}"] if self.hazards else []
        ranks, _, tensors = _small(self.ranks)
        outcome = self.explored or "none goes wrong"
        lines.append(f"  all interleavings of {ranks} ranks ({' and '.join(tensors)}): {self.states} states; {outcome}")
        lines.append(f"  {self.seeds} seeded schedules: {len(self.wrong_seeds)} give a read the wrong bytes")
        if self.wrong_seeds:
            lines.append(f"    {self.first_wrong}")
            seed, more = self.wrong_seeds[0], f" --ranks {self.ranks}" if self.ranks != 4 else ""
            lines.append(f"    replay: refsim schedules policy {self.policy} --replay {seed}{more}")
        if self.lag is not None:
            lines.append(f"  unsafe once a rank is {self.lag:.2f} attention steps late after its first sends")
        return "\n".join(lines)


def judge(policy: str, ranks: int, seeds: int = _SEEDS) -> Verdict:
    """All three readings of a policy.

    Raises:
        UserError: there is no such policy.
    """
    programs = program(policy, ranks)
    small = explore(program(policy, *_small(ranks)))
    simulated = {seed: simulate(programs, seeded_stalls(programs, seed, longest_stall(ranks))) for seed in range(seeds)}
    wrong = [seed for seed, run in simulated.items() if run.wrong]
    return Verdict(
        policy,
        ranks,
        [str(hazard) for hazard in prove(programs)],
        small.wrong,
        small.states,
        seeds,
        wrong,
        simulated[wrong[0]].wrong if wrong else "",
        critical_lag(policy, ranks, Clock()),
    )


def _small(ranks: int) -> tuple[int, int, str]:
    """Ranks, layers and tensors of the ring that is searched exhaustively."""
    size, tensors = next(case for case in reversed(_EXHAUSTIVE) if case[0] <= ranks)
    return size, _EXHAUSTIVE_LAYERS, tensors


def replayed(policy: str, ranks: int, seed: int) -> tuple[list[str], bool]:
    """The schedule of a seed: its stalls, one line per operation, and what goes wrong."""
    programs = program(policy, ranks)
    stalls = seeded_stalls(programs, seed, longest_stall(ranks))
    run = simulate(programs, stalls)
    lines = [f"rank {r} is {by:.2f} late before: {programs[r][i]}" for (r, i), by in sorted(stalls.items())]
    lines += [f"{when:8.2f}  {line}" for when, line in run.lines]
    lines.append(f"WRONG: {run.wrong}" if run.wrong else "every read gets the bytes it wants")
    return lines, bool(run.wrong)


def markdown() -> str:
    """The generated part of ``docs/buffers.md``; the same text every time."""
    sampled = [sampled_row(policy, ranks) for policy in POLICIES for ranks in _RANKS]
    explored = [explored_row(policy, ranks, tensors) for policy in POLICIES for ranks, tensors in _EXHAUSTIVE]
    lags = [lag_row(policy, ranks) for policy in ("upstream", "slots") for ranks in _RANKS]
    return "\n".join(
        [
            f"| policy | ranks | unordered pairs | wrong of {_SEEDS} seeded schedules | first seed | verdict |",
            "|---|---:|---:|---:|---:|---|",
            *sampled,
            "",
            "| policy | ring searched | states | shortest way to go wrong |",
            "|---|---|---:|---|",
            *explored,
            "",
            f"| policy | ranks | {' | '.join(f'rest {rest:g}' for rest in _RESTS)} |",
            "|---|---:|---:|---:|---:|",
            *lags,
            "",
        ]
    )


def sampled_row(policy: str, ranks: int) -> str:
    programs = program(policy, ranks)
    pairs = len(prove(programs))
    stalls = (seeded_stalls(programs, seed, longest_stall(ranks)) for seed in range(_SEEDS))
    wrong = [seed for seed, stall in enumerate(stalls) if simulate(programs, stall).wrong]
    verdict = "unsafe" if pairs or wrong else "safe"
    return f"| {policy} | {ranks} | {pairs} | {len(wrong)} | {wrong[0] if wrong else '-'} | {verdict} |"


def explored_row(policy: str, ranks: int, tensors: str) -> str:
    found = explore(program(policy, ranks, _EXHAUSTIVE_LAYERS, tensors))
    how = f"{len(found.schedule)} events: {found.wrong}" if found.wrong else "none, all states seen"
    return f"| {policy} | {ranks} ranks, {' and '.join(tensors)} | {found.states} | {how} |"


def lag_row(policy: str, ranks: int) -> str:
    lags = [critical_lag(policy, ranks, Clock(rest=rest)) for rest in _RESTS]
    return f"| {policy} | {ranks} | {' | '.join('none' if lag is None else f'{lag:.2f}' for lag in lags)} |"
