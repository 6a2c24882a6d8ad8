"""What a run of upstream's tests showed: lines of the plugin read, put in classes, counted.

Every case falls in one class. ``passed on own rules``, ``passed with golden fallback`` and ``passed without device``
are successes; ``failed`` is the project's to explain; the others leave the count, each with its reason: upstream
skipped the case itself, its module cannot be imported, it is made for another version of ttnn, or it needs a download.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.upstream.causes import Cause, cause_of
from benchmarks.upstream.jobs import AGAIN, JOBS, killed

RULES = "own"
FALLBACK = "fallback"
NO_DEVICE = "no_device"
FAILED = "failed"
SKIPPED = "skipped"
MODULE = "module"
SKEW = "skew"
DOWNLOAD = "download"
MEMORY = "memory"
COUNTED = (RULES, FALLBACK, NO_DEVICE, FAILED)
LEFT_OUT = {
    SKIPPED: "skipped by upstream itself",
    MODULE: "module not importable here",
    SKEW: "version skew between the tree and the libraries here",
    DOWNLOAD: "needs a download",
    MEMORY: "takes more memory than the machine has (killed, by itself, too)",
}
_PASSED = {"own": RULES, "fallback": FALLBACK, "no-device": NO_DEVICE}
"""A test that passed because it met an error of the mock's own (``caught``) is none: it counts as failed."""
_NO_VERDICT = ("timeout", "crash")
NOTHING_COLLECTED = 5
"""Exit status of pytest where every case was left out before the sample was drawn."""
UNKNOWN = "refsim at a commit that was not noted"


@dataclass(frozen=True)
class Case:
    """One case of the run: the plugin's line, and what is said of it here."""

    id: str
    suite: str
    directory: str
    kind: str
    category: str
    seconds: float
    mesh: str
    message: str
    fallbacks: tuple[str, ...]
    emulated: tuple[str, ...]
    findings: tuple[str, ...]
    cause: Cause | None = None

    @property
    def verdict(self) -> bool:
        """Whether the case came to an end by itself, and not with its process or its time."""
        return self.category not in _NO_VERDICT


@dataclass
class Run:
    """All cases of a folder of jobs, and what could not be collected.

    Attributes:
        modules: file of the tree to the error of its import.
        cut: names of jobs that were ended because of their time.
        silent: names of jobs that ended without a single case, with the exit status of pytest.
        jobs: how many have ended; whole files are a job each.
        missing: names of jobs that are yet to be run.
        alone: how many cases were run once more by themselves, and count as they ended there.
        not_alone: how many were killed or out of time, and were not.
        by: what ran the jobs: versions and commits of this project.
        not_drawn: cases that were left out before the sample was drawn, by reason.
    """

    cases: list[Case] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    silent: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    missing: list[str] = field(default_factory=list)
    alone: int = 0
    not_alone: int = 0
    by: set[str] = field(default_factory=set)
    not_drawn: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def read(folder: Path) -> Run:
    """Return the cases of all jobs of a folder; one that a job ran twice counts once."""
    run = Run()
    some = set[str]()
    seen: set[str] = set()
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: (not path.stem.endswith(AGAIN), path.name)):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "::" not in line["id"] and line["outcome"] == "failed":
                run.modules[line["id"]] = line.get("message") or ""
                continue
            some.add(path.stem)
            if line["id"] not in seen:
                seen.add(line["id"])
                alone = path.stem.endswith(AGAIN)
                case = classified(line)
                run.cases.append(replace(case, kind=MEMORY) if alone and killed(line) else case)
                run.alone += alone
                run.not_alone += not alone and not case.verdict and (line["category"] == "timeout" or killed(line))
    for path in sorted(folder.glob("*.left")):
        run.not_drawn.update(json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(folder.glob("*.done")):
        end = json.loads(path.read_text(encoding="utf-8"))
        run.seconds += end["seconds"]
        by = end.get("by") or UNKNOWN
        run.by |= {by} if isinstance(by, str) else set(by)
        if end["cut"]:
            run.cut.append(end["name"])
        elif end["name"] not in some and end["code"] != NOTHING_COLLECTED:
            run.silent[end["name"]] = end["code"]
    if (folder / JOBS).exists():
        names = json.loads((folder / JOBS).read_text(encoding="utf-8"))
        run.missing = [name for name in names if not (folder / f"{name}.done").exists()]
        run.jobs = len(names) - len(run.missing)
    return run


def classified(line: dict[str, Any]) -> Case:
    """Return a line of the plugin as a case."""
    path = line["id"].partition("::")[0]
    suite, directory = _place(path)
    category = line["category"]
    message = line.get("message") or ""
    cause = None
    if line["outcome"] == "skipped":
        kind = DOWNLOAD if re.search(r"checkpoint|HF|hugging|weights|not set", message, re.IGNORECASE) else SKIPPED
    elif line["outcome"] == "passed":
        kind = _PASSED.get(category, FAILED)
        cause = None if kind != FAILED else cause_of(line["id"], category, message)
    else:
        cause = cause_of(line["id"], category, message)
        kind = cause.left_out if cause and cause.left_out else FAILED
    return Case(
        line["id"],
        suite,
        directory,
        kind,
        category,
        float(line.get("seconds", 0.0)),
        line.get("mesh", ""),
        message,
        tuple(sorted(line.get("fallbacks", {}))),
        tuple(sorted(line.get("emulated", {}))),
        tuple(line.get("findings", [])),
        cause,
    )


def _place(path: str) -> tuple[str, str]:
    """Suite and directory of a file of the tree."""
    parts = path.split("/")[:-1]
    if "tt_dit" in parts:
        return "tt_dit", "/".join(parts[parts.index("tests") + 1 :]) or "."
    inside = parts[parts.index("unit_tests") + 1 :] if "unit_tests" in parts else parts
    return "unit", "/".join(inside[:2]) or "."


def counts(cases: Iterable[Case]) -> Counter[str]:
    """Cases by kind."""
    return Counter(case.kind for case in cases)


def rates(cases: Iterable[Case]) -> dict[str, float]:
    """Numbers of the acceptance: counted cases, and percentages of them.

    ``own_of_called_percent`` is of the cases that call an operation of a device, for which alone there is a rule;
    ``pass_without_theirs_percent`` leaves out what fails whatever runs it.
    """
    counted = [case for case in cases if case.kind in COUNTED]
    many = max(1, len(counted))
    passed = [case for case in counted if case.kind != FAILED]
    by_rules = [case for case in passed if case.kind == RULES]
    called = max(1, sum(case.kind != NO_DEVICE for case in counted))
    theirs = sum(case.kind == FAILED and case.cause is not None and case.cause.who == "theirs" for case in counted)
    return {
        "counted": len(counted),
        "verdict_percent": round(100 * sum(case.verdict for case in counted) / many, 1),
        "pass_percent": round(100 * len(passed) / many, 1),
        "own_percent": round(100 * len(by_rules) / many, 1),
        "own_of_called_percent": round(100 * len(by_rules) / called, 1),
        "theirs": theirs,
        "pass_without_theirs_percent": round(100 * len(passed) / max(1, len(counted) - theirs), 1),
        "own_emulated": sum(bool(case.emulated) for case in by_rules),
    }
