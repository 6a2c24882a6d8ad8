"""``reports/upstream.md`` and ``.json``: what upstream's tests showed, by directory, and why failing cases fail."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.upstream import attention, memory
from benchmarks.upstream.bugs import BUGS
from benchmarks.upstream.causes import why_right
from benchmarks.upstream.seed import read as read_bugs
from benchmarks.upstream.table import (
    COUNTED,
    FAILED,
    FALLBACK,
    LEFT_OUT,
    NO_DEVICE,
    RULES,
    UNKNOWN,
    Case,
    Run,
    counts,
    rates,
    read,
)
from refsim.files.tables import as_markdown

SUITES = {
    "unit": "`tests/ttnn/unit_tests`",
    "nightly": "`tests/ttnn/nightly/unit_tests`",
    "files": "Every case of whole files of `tests/ttnn/unit_tests`",
    "tt-dit": "tt_dit, one or two layers at published widths, random weights",
    "galaxy": "tt_dit on the 32 devices of a Galaxy",
    "numerics": "tt_dit, its operations rounded as kernels round",
}
SEEDED = "Bugs seeded into tt_dit"
LONG = "Attention at the lengths of videos"
WHOLE = "Memory of whole transformers"
WEIGHTS = (
    "tt_dit's tests load models from Hugging Face. Here `from_pretrained` gives seeded random weights at the published "
    "widths with one or two layers, and tokenizers give seeded ids; nothing that a test asserts is changed. Left out "
    "before the sample is drawn: whole pipelines (their weights and prompts need a download), cases that ask for more "
    "than eight devices, and cases that take a CPU more than minutes. Where torchvision is not installed, an empty "
    "module stands in for it while conftests are imported, one of which wants it for fixtures of other models' tests; "
    "it has nothing that a test could compare with, and a test that imports torchvision itself does not get it."
)
ROUNDED = (
    "The same tests with `--ttnn-mock-numerics=fast`, at upstream's own thresholds, one case of every function, and "
    "one that passes without where that one does not (`--passing`): whose failure is `rounding` passes without, and "
    "its threshold is beyond the error that is predicted of the kernels."
)
GALAXY = (
    "The cases of the same tests that ask for more than eight devices of Wormhole, drawn from every function that has "
    "some, on the mock of a Galaxy, with values; a case has half an hour."
)
BEFORE = {"tt-dit": [WEIGHTS, ""], "galaxy": [GALAXY, ""], "numerics": [ROUNDED, ""]}
"""What is said of a suite before its numbers."""


def write(out: Path, reports: Path, facts: dict[str, str]) -> None:
    """Read the runs below ``out`` and write the two files.

    A suite that has no run there stays as the files have it, with the commit that ran it, if they are of the same tree
    and ttnn; one of which they have nothing is said not to have run.

    Args:
        facts: ``commit`` of the tree, version of ``ttnn``, ``seed`` of the samples, ``refsim``'s version and commit.
    """
    runs = {name: run for name in SUITES if (run := read(out / name)).cases}
    bugs = read_bugs(out / "bugs" / "bugs.jsonl")
    lines = {name: read_bugs(out / name / step.LINES) for name, step in (("attention", attention), ("memory", memory))}
    reports.mkdir(parents=True, exist_ok=True)
    page = reports / "upstream.md"
    numbers = reports / "upstream.json"
    former_numbers = json.loads(numbers.read_text(encoding="utf-8")) if page.exists() and numbers.exists() else {}
    if any(former_numbers.get(name) != facts[name] for name in ("commit", "ttnn")):
        former_numbers = {}
    former = page.read_text(encoding="utf-8") if former_numbers else ""
    page.write_text("\n".join(_page(runs, bugs, lines, facts, former)) + "\n", encoding="utf-8")
    seed = {"seed": facts["seed"]}
    suites = former_numbers.get("suites", {}) | {name: _data(run) | seed for name, run in runs.items()}
    everywhere = {name: fact for name, fact in facts.items() if name not in seed}
    data = {**everywhere, "suites": suites, "bugs": _caught(bugs) if bugs else former_numbers.get("bugs", _caught([]))}
    data |= {name: rows or former_numbers.get(name, []) for name, rows in lines.items()}
    data["not_run"] = [name for name in SUITES if name not in suites]
    data["not_run"] += [] if data["bugs"]["seeded"] else ["bugs"]
    data["not_run"] += [name for name in lines if not data[name]]
    (reports / "upstream.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name, run in runs.items():
        print(name, json.dumps(rates(run.cases)))
    if bugs:
        print(f"bugs: {_caught(bugs)}")


def _page(
    runs: dict[str, Run], bugs: Sequence[dict[str, Any]], steps: dict[str, list[dict[str, Any]]],
    facts: dict[str, str], former: str,
) -> list[str]:  # fmt: skip
    lines = [
        "# Upstream's own tests on the mock",
        "",
        f"Unmodified tests of tt-metal at {facts['commit']} on ttnn {facts['ttnn']} from the wheel, with no hardware "
        f"(`python -m benchmarks.upstream`); last written by {facts['refsim']} on {facts['machine']}; every part says "
        "what ran it, and the seed that drew its cases. Percentages are of the cases counted; what leaves the count is "
        "listed with its reason.",
    ]
    for name, title in SUITES.items():
        lines += ["", f"## {title}", ""]
        if name in runs:
            by = _by(runs[name].by, facts["seed"])
            by += f" Files that ran: {runs[name].jobs}." if name == "files" else ""
            lines += [*BEFORE.get(name, []), by, "", *_suite(runs[name])]
        else:
            lines += [_former(former, title) or _not_run(name)]
    for name, title, rows, section in (
        ("bugs", SEEDED, bugs, _bugs),
        ("attention", LONG, steps["attention"], attention.section),
        ("memory", WHOLE, steps["memory"], memory.section),
    ):
        lines += ["", f"## {title}", ""]
        if rows:
            lines += [_by({row.get("by") or UNKNOWN for row in rows}), "", *section(rows)]
        else:
            lines += [_former(former, title) or _not_run(name)]
    return lines


def _former(page: str, title: str) -> str:
    """Return what a former page says under a title, if it is of a run, which it then names."""
    text = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()
    return text if "\nRun by " in f"\n{text}" else ""


def _not_run(step: str) -> str:
    return f"**Not run:** there is no run of `python -m benchmarks.upstream {step}`."


def _by(versions: set[str], seed: str = "") -> str:
    """Return what ran a suite, which may be older than what counts it, and the seed of its draw."""
    return f"Run by {', '.join(sorted(versions))}{f', seed `{seed}`' if seed else ''}."


def _suite(run: Run) -> list[str]:
    rate = rates(run.cases)
    number = counts(run.cases)
    lines = [
        f"{len(run.cases)} cases started, {rate['counted']} counted: {rate['verdict_percent']} % reach a verdict, "
        f"{rate['pass_percent']} % pass, {rate['own_percent']} % on the mock's own rules alone "
        f"(in {rate['own_emulated']} of these tests with queues, traces, events and the like, which are emulated); of "
        f"those that call an operation of a device, {rate['own_of_called_percent']} %. {rate['theirs']} fail by the "
        f"tree alone; of the others {rate['pass_without_theirs_percent']} % pass. Left out: "
        + ", ".join(f"{number[kind]} {words}" for kind, words in LEFT_OUT.items())
        + f", and {len(run.modules)} files that cannot be collected.",
        "",
        _directories(run.cases),
        "",
        "A pass with golden fallback is circular evidence: ttnn's golden functions answered some operation, and many "
        "of these tests take their expectation from the same function.",
        "",
        *_failures(run.cases),
        "",
        *_findings(run.cases),
        "",
        *_left_out(run),
    ]
    if run.not_drawn:
        drawn = ", ".join(f"{n} {why}" for why, n in sorted(run.not_drawn.items()))
        lines += ["", f"Not drawn from: {drawn}."]
    if run.not_alone:
        lines += ["", f"**Killed or out of time beside others, and not run by themselves yet:** {run.not_alone} cases."]
    if run.alone:
        lines += ["", f"Killed or out of time beside others, run once more by themselves: {run.alone} cases."]
    if run.cut:
        lines += ["", f"Processes ended because of their time: {', '.join(sorted(run.cut))}."]
    if run.silent:
        ends = (f"{name} (exit status {code})" for name, code in sorted(run.silent.items()))
        lines += ["", f"**Processes that ended without a case**, whose tests are not in the tables: {', '.join(ends)}."]
    if run.missing:
        lines += ["", f"**Not run yet**, and not in the tables: {', '.join(run.missing)}."]
    return lines


def _directories(cases: Sequence[Case]) -> str:
    rows = []
    for directory in sorted({case.directory for case in cases}):
        here = [case for case in cases if case.directory == directory]
        number = counts(here)
        rate = rates(here)
        failed = Counter(case.category for case in here if case.kind == FAILED)
        words = ", ".join(f"{n} {category}" for category, n in sorted(failed.items())) or "-"
        left = sum(number[kind] for kind in LEFT_OUT)
        passed = [number[kind] for kind in (RULES, FALLBACK, NO_DEVICE)]
        percent = f"{rate['pass_percent']:g}" if rate["counted"] else "-"
        rows.append((f"`{directory}`", len(here), rate["counted"], *passed, number[FAILED], words, left, percent))
    head = ("directory", "started", "counted", "own rules", "golden fallback", "no device op")
    return as_markdown(rows, (*head, "failed", "failed by", "left out", "pass %"))


def _failures(cases: Sequence[Case]) -> list[str]:
    failed = _failed(cases)
    if not failed:
        return ["No counted case fails."]
    unexplained = sum(case.cause is None for case in failed)
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in failed:
        who = (case.cause.who, case.cause.words) if case.cause else ("", "unexplained")
        groups.setdefault((*who, _short(case.message)), []).append(case)
    rows = [
        (len(group), who or "?", words, message, f"`{_name(group[0].id)}`")
        for (who, words, message), group in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    title = f"Failing cases ({len(failed)}, of which {unexplained} unexplained):"
    return [title, "", as_markdown(rows, ("cases", "whose", "cause", "message", "one of them"))]


def _findings(cases: Sequence[Case]) -> list[str]:
    """Return what the checks found in cases that pass: each is a mistake of the test's, or a false alarm."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        for finding in case.findings if case.kind in (RULES, FALLBACK, NO_DEVICE) else ():
            if severe := re.search(r": error: ([\w-]+): ", finding):
                groups.setdefault((severe[1], why_right(case.id, finding)), []).append(case)
    if not groups:
        return ["No finding in a case that passes."]
    unexplained = sum(len(group) for (_, words), group in groups.items() if not words)
    rows = [
        (len(group), len({case.id for case in group}), f"`{kind}`", words or "unexplained", f"`{_name(group[0].id)}`")
        for (kind, words), group in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    title = f"Findings in cases that pass ({sum(map(len, groups.values()))}, of which {unexplained} unexplained):"
    return [title, "", as_markdown(rows, ("findings", "cases", "kind", "what the test does", "one of them"))]


def _left_out(run: Run) -> list[str]:
    groups: Counter[tuple[str, str]] = Counter()
    for case in run.cases:
        if case.kind not in COUNTED:
            words = case.cause.words + ": " if case.cause else ""
            groups[LEFT_OUT[case.kind], words + _short(case.message)] += 1
    for error in run.modules.values():
        groups["file not collected", _short(error)] += 1
    if not groups:
        return []
    rows = [(n, kind, why) for (kind, why), n in sorted(groups.items(), key=lambda p: (p[0][0], -p[1], p[0][1]))]
    return ["Left out of the count:", "", as_markdown(rows, ("cases", "because", "message"))]


def _bugs(rows: Sequence[dict[str, Any]]) -> list[str]:
    counts = _caught(rows)
    seeded = {row["bug"]: row for row in rows if row["bug"]}
    false = [row["case"] for row in rows if not row["bug"] and row["how"] != "passed"]
    table = [
        (f"`{name}`", bug.what, f"`{bug.function}`", seeded[name]["how"], _short(seeded[name]["said"]))
        for name, bug in BUGS.items()
        if name in seeded
    ]
    missing = [name for name in BUGS if name not in seeded]
    return [
        f"{counts['caught']} of {len(seeded)} caught; {counts['clean_passed']} of the {counts['clean']} tests that run "
        "them pass without a bug, and only what they say of a bug counts. Blocks run with fewer tokens than upstream's "
        "parameters say, with upstream's thresholds.",
        "",
        as_markdown(table, ("bug", "what is wrong", "where", "caught by", "what was said")),
        *(["", f"Alarms without a bug: {', '.join(false)}."] if false else []),
        *(["", f"**Not run yet:** {', '.join(missing)}."] if missing else []),
    ]


def _caught(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the bugs showed; one whose test does not pass without it is not caught, whatever the test says."""
    clean = {row["case"]: row["how"] == "passed" for row in rows if not row["bug"]}
    seeded = {
        row["bug"]: {"how": row["how"], "caught": row["caught"] and clean.get(row["case"], False)}
        for row in rows
        if row["bug"]
    }
    return {
        "seeded": seeded,
        "caught": sum(row["caught"] for row in seeded.values()),
        "clean_passed": sum(clean.values()),
        "clean": len(clean),
    }


def _data(run: Run) -> dict[str, Any]:
    return {
        **rates(run.cases),
        "started": len(run.cases),
        "kinds": dict(counts(run.cases)),
        "failed": {c.id: {"cause": c.cause.words if c.cause else "", "message": c.message} for c in _failed(run.cases)},
        "modules": run.modules,
        "by": sorted(run.by),
        "silent": run.silent,
        "missing": run.missing,
    }


def _failed(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.kind == FAILED]


def _name(case: str) -> str:
    path, _, test = case.partition("::")
    return f"{Path(path).name}::{test}"[:100].replace("|", "/")


def _short(text: str) -> str:
    return " ".join(text.split())[:140].replace("|", "/")
