"""``refsim schedules``: run cases under seeded schedules, replay one, model-check buffer policies."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from parity.cli.options import Expr, Suite
from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import answer, say

app = typer.Typer(no_args_is_help=True, add_completion=False)
Longest = Annotated[float, typer.Option("--longest", min=0, max=1000, help="Longest pause in milliseconds.")]


@app.command("run")
def run_schedules(
    suite: Suite = "smoke",
    expr: Expr = None,
    schedules: Annotated[int, typer.Option(min=1, max=100_000, help="Schedules per case.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first schedule; the next ones count up.")] = 0,
    longest: Longest = 2.0,
    as_json: opt.AsJson = False,
) -> None:
    """Run every case under N seeded schedules: same bits, no hazard; exit code 1 if not, with commands to replay."""
    from parity.cases.selection import select
    from parity.run.backends import check_environment
    from parity.run.case import in_turn
    from parity.run.cpu import CpuRunner
    from parity.run.schedules import explore

    cases = select(suite, expr)
    check_environment(cases)
    outcomes = []
    with CpuRunner() as runner:
        for case, _ in in_turn(runner, [(case, case.seed) for case in cases]):
            outcome = explore(runner, case, list(range(seed, seed + schedules)), longest / 1e3, suite)
            outcomes.append(outcome)
            why = outcome.reason or f"{outcome.schedules} schedules"
            say(f"[{len(outcomes)}/{len(cases)}] {outcome.verdict} {case.id} ({why})")
            for failure in outcome.failures:
                which = "undisturbed" if failure.seed is None else f"seed {failure.seed}"
                say(f"  {which}: {'; '.join(failure.reasons[:3])}")
            for command in outcome.replay:
                say(f"  replay: {command}")
    count = Counter(outcome.verdict for outcome in outcomes)
    counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in ("passed", "failed", "skipped"))
    text = f"{counts}; a case passes if it keeps its bits under {schedules} schedules, without a hazard"
    answer(outcomes, lambda _: text, as_json=as_json, passed=bool(count["passed"] and not count["failed"]))


@app.command("replay")
def replay(
    case: Annotated[str, typer.Argument(help="Id of the case.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the schedule.")],
    suite: Suite = "smoke",
    longest: Longest = 2.0,
    as_json: opt.AsJson = False,
) -> None:
    """Run one case under one schedule, and compare it with its undisturbed run."""
    from parity.cases.suites import suite_cases

    chosen = next((known for known in suite_cases(suite) if known.id == case), None)
    if chosen is None:
        raise UserError(f"suite '{suite}' has no case '{case}'; `refsim parity list` prints the ids.")
    from parity.run.backends import check_environment
    from parity.run.cpu import CpuRunner
    from parity.run.schedules import explore

    check_environment([chosen])
    with CpuRunner() as runner:
        outcome = explore(runner, chosen, [seed], longest / 1e3, suite)
    lines = [reason for failure in outcome.failures for reason in failure.reasons]
    if outcome.verdict == "passed":
        lines.append(f"{case} keeps its bits under the schedule of seed {seed}, without a hazard")
    elif outcome.reason:
        lines.append(f"{case} was not run: it {outcome.reason}")
    answer(outcome, lambda _: "\n".join(lines), as_json=as_json, passed=outcome.verdict == "passed")


@app.command("policy")
def policy(
    name: Annotated[
        str | None,
        typer.Argument(help="upstream, barrier, alternate, slots, credit, fused, fused_synced or no_wait; none: all."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Members of the ring.")] = 4,
    fabric: Annotated[
        str, typer.Option(help="ring, line or split ring; then, with commas, 2 links (or more), workers.")
    ] = "ring",
    replay: Annotated[int | None, typer.Option(min=0, help="Print the schedule of this seed, step by step.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Seeded schedules to sample.")] = 1000,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of docs/buffers.md.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Model-check how a ring reuses its buffers over layers; exit code 1 if a policy asked for by name is unsafe."""
    from parity.policies import verdicts as report
    from parity.policies.operations import Fabric
    from parity.policies.program import POLICIES

    over = Fabric.of(fabric)
    if markdown:
        typer.echo(report.markdown(), nl=False)
        return
    if replay is not None:
        if name is None:
            raise UserError("--replay needs the name of a policy, for example: refsim schedules policy upstream.")
        lines, wrong = report.replayed(name, ranks, replay, over)
        typer.echo("\n".join(lines))
        if wrong:
            raise typer.Exit(1)
        return
    names = [name] if name else [one for one in POLICIES if report.suits(one, over)]
    verdicts = [report.judge(one, ranks, seeds, over) for one in names]
    passed = not name or verdicts[0].safe
    answer(verdicts, lambda judged: "\n\n".join(map(str, judged)), as_json=as_json, passed=passed)
