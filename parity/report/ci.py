"""What GitHub's runner shows of a run: a summary of the step, and an annotation for every case that failed.

Source: workflow commands of GitHub Actions. Annotations go to stderr, which the runner reads as well: stdout belongs
to ``--json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from parity.measure.records import Record, SuiteRun
from parity.report.results import explained, number
from refsim.files import tables

MOST_ANNOTATIONS = 10
"""GitHub shows ten of a step."""


def tell(run: SuiteRun) -> None:
    """Append to the file that ``GITHUB_STEP_SUMMARY`` names, and annotate under ``GITHUB_ACTIONS``; else do nothing."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(summary(run))
        except OSError as e:  # a summary that cannot be written must not cost the verdict
            sys.stderr.write(f"refsim: GITHUB_STEP_SUMMARY '{path}' cannot be written ({e.strerror}).\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stderr.write("".join(f"{line}\n" for line in error_commands(run)))


def summary(run: SuiteRun) -> str:
    """Write as markdown the counts, what did not pass with explanations, and the worst of what did."""
    counts = run.counts
    lines = [
        f"## Parity, suite {run.suite}, backend {run.backend}, seed {run.seed}",
        "",
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped in {run.wall_s:.0f} s.",
        "",
    ]
    for record in run.records:
        if record.verdict == "failed":
            lines += [f"### `{record.id}` failed", "", record.reason, "", "```text", explained(record), "```", ""]
    passed = [r for r in run.records if r.verdict == "passed"]
    if passed:
        near = sorted(passed, key=lambda r: -_nearness(r))[:5]
        rows = (
            (r.id, *(number(r.metrics.get(name)) for name in ("rel_rmse", "one_minus_pcc")), f"{_nearness(r):.0%}")
            for r in near
        )
        table = tables.as_markdown(rows, ("case", "rel RMSE", "1 - PCC", "of its limit"))
        lines += ["Nearest to a limit of those that passed:", "", table, ""]
    return "\n".join(lines) + "\n"


def _nearness(record: Record) -> float:
    """Return the largest metric in units of its limit; counts, whose limit is 0 or 1, are left out."""
    limits = record.thresholds.items()
    metrics = record.metrics
    parts = [metrics[n] / limit for n, limit in limits if isinstance(metrics.get(n), float) and 0 < limit != 1]
    return max(parts, default=0.0)


def error_commands(run: SuiteRun) -> list[str]:
    """Return workflow commands, one for every failed case, at most :data:`MOST_ANNOTATIONS`."""
    failed = [record for record in run.records if record.verdict == "failed"]
    commands = []
    for record in failed[:MOST_ANNOTATIONS]:
        message = "\n".join(filter(None, [record.reason, explained(record)]))
        commands.append(f"::error title={_escaped(record.id, ':,')}::{_escaped(message)}")
    return commands


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
