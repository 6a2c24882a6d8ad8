"""Runs the seeded bugs: each test once as it is, then once for every bug in the code it runs.

One pytest process per run, because a module is imported once. What a run showed is a line of ``bugs.jsonl``; runs that
have a line are not repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.upstream.bugs import BUGS
from benchmarks.upstream.cases import Case
from benchmarks.upstream.jobs import ROOT, Job, command, environment, own_version

LIMIT_S = 400.0
HOW = {
    "error": "upstream's assert",
    "assertion": "upstream's assert",
    "refused": "refused by ttnn",
}
"""How a bug was caught, by the category of the failed test. A process that died or took too long caught nothing, and
neither did the mock where it has no rule, option or value for what the bug makes of the program."""


def run(tree: Path, out: Path, names: list[str], workers: int) -> None:
    """Run ``names`` (all, if empty) and the tests without a bug; append a line each to ``out/bugs.jsonl``."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "bugs.jsonl"
    done = {(row["bug"], row["case"]) for row in read(path)}
    bugs = {name: BUGS[name] for name in names or BUGS}
    todo: list[tuple[str, Case]] = [("", case) for case in dict.fromkeys(bug.case for bug in bugs.values())]
    todo += [(name, bug.case) for name, bug in bugs.items()]
    todo = [(name, case) for name, case in todo if (name, case.path) not in done]
    with ThreadPoolExecutor(workers) as pool:
        for row in pool.map(lambda pair: _run_one(tree, out, *pair), todo):
            with open(path, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{row['bug'] or 'no bug'}: {row['how']} ({row['seconds']:.0f} s)", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of former runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _run_one(tree: Path, out: Path, name: str, case: Case) -> dict[str, Any]:
    job = Job(
        f"bug-{name or 'none'}",
        (case.path,),
        (f"--ttnn-mock={case.mesh}", "-p", "benchmarks.upstream.weights", "-p", "benchmarks.upstream.mutant"),
        {"UPSTREAM_BUG": name, "UPSTREAM_SMALLER": json.dumps(case.smaller), "DIT_UNIT_TEST": "1"},
    )
    lines = out / f"{job.name}-{os.getpid()}-{abs(hash(case.path))}.line"
    lines.unlink(missing_ok=True)
    begin = time.monotonic()
    by = own_version()
    done = subprocess.run(
        command(job, lines, LIMIT_S), cwd=tree, env=environment(tree, job), capture_output=True, text=True, check=False
    )
    verdicts = read(lines)
    lines.unlink(missing_ok=True)
    seconds = round(time.monotonic() - begin, 1)
    if not verdicts:
        tail = " ".join((done.stdout + done.stderr).split())[-300:]
        verdicts = [{"outcome": "none", "category": "none", "message": f"no verdict: {tail}", "findings": []}]
    row = {"bug": name, "case": case.path, "seconds": seconds, "by": by, **judged(verdicts[-1])}
    return row | {"said": row["said"].replace(f"{ROOT}/", "")}


def judged(verdict: dict[str, Any]) -> dict[str, Any]:
    """Whether a run noticed something, and how: a failed test first, then the errors that the checks of it found."""
    findings = [finding for finding in verdict.get("findings") or [] if ": error: " in finding]
    message = verdict.get("message") or ""
    how = HOW.get(verdict["category"], "")
    if verdict["outcome"] == "failed" and (how or not findings):
        return {"caught": bool(how), "how": how or verdict["category"], "said": message}
    if verdict["outcome"] in ("passed", "failed") and findings:
        return {"caught": True, "how": "a finding", "said": findings[0]}
    how = "passed" if verdict["outcome"] == "passed" else verdict["outcome"]
    return {"caught": False, "how": how, "said": message}
