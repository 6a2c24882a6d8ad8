"""``python -m tests.chaos --runs 200 --seed 0``: disturb runs, check every report, count what is left behind."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.cases import SHARES, plan
from tests.chaos.run_case import Outcome, run_case
from tests.chaos.workload import Files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run the case of this index alone")
    parser.add_argument("--kinds", default=",".join(SHARES), help="comma-separated; default all")
    parser.add_argument("--transport", default="auto", help="auto, gloo or shared")
    parser.add_argument("--json", type=Path, default=Path("out/chaos.json"))
    options = parser.parse_args()
    cases = plan(options.runs, options.seed, tuple(options.kinds.split(",")))
    if options.only is not None:
        cases = [case for case in cases if case.index == options.only]
    started, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        files = Files(Path(folder), options.transport)
        for case in cases:
            outcome = run_case(case, files, Path(folder) / str(case.index))
            outcomes.append(outcome)
            verdict = "ok  " if outcome.ok else "MISS"
            line = f"[{len(outcomes)}/{len(cases)}] {verdict} {case} {outcome.seconds or 0:.2f} s  {outcome.where}"
            print(line, file=sys.stderr, flush=True)
            for problem in (*outcome.problems, *(f"left behind: {leak}" for leak in outcome.leaks)):
                print(f"      {problem}\n      {outcome.message.splitlines()[:1]}", file=sys.stderr, flush=True)
    rows = table(outcomes)
    write(rows, outcomes, options, time.monotonic() - started)
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


def table(outcomes: list[Outcome]) -> list[dict]:
    """Per kind: how many, how many on 32 ranks, misses, leaks, and the worst time from the event to the end."""
    rows = []
    for kind in [kind for kind in SHARES if any(o.case.kind == kind for o in outcomes)] + ["all"]:
        mine = [o for o in outcomes if kind in (o.case.kind, "all")]
        seconds = [o.seconds for o in mine if o.seconds is not None]
        rows.append(
            {
                "kind": kind,
                "count": len(mine),
                "on_32_ranks": sum(o.case.ranks == 32 for o in mine),
                "in_a_transfer": sum("rank " in o.where for o in mine),
                "misses": sum(bool(o.problems) for o in mine),
                "leaks": sum(len(o.leaks) for o in mine),
                "worst_s": round(max(seconds), 2) if seconds else None,
            }
        )
    return rows


def write(rows: list[dict], outcomes: list[Outcome], options: argparse.Namespace, wall_s: float) -> None:
    print(" ".join(f"{name:>14}" for name in rows[0]) if rows else "nothing ran")
    for row in rows:
        print(" ".join(f"{'-' if value is None else value:>14}" for value in row.values()))
    disks = {o.where for o in outcomes if o.case.kind == "full_disk"}
    print(f"seed {options.seed}, {wall_s:.0f} s; full disk played by {', '.join(disks) or '-'}; {options.json}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    records = [dataclasses.asdict(o) | {"ok": o.ok} for o in outcomes]
    options.json.write_text(
        json.dumps({"seed": options.seed, "wall_s": wall_s, "table": rows, "cases": records}, indent=1)
    )


if __name__ == "__main__":
    sys.exit(main())
