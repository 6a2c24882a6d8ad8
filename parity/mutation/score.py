"""What a campaign found: the score with its interval, the survivors with their diffs; as text, JSON and Markdown."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.mutation.campaign import (
    BOUND,
    EQUIVALENT,
    ERROR,
    HUNG,
    KILLED,
    SURVIVED,
    UNREACHED,
    UNTOLD,
    Campaign,
    Tried,
)
from parity.mutation.measure import Asked
from parity.mutation.operators import COMMUTES
from parity.mutation.tree import folder_of
from refsim.files import output, tables
from refsim.files.keys import Document

VERDICTS = (KILLED, SURVIVED, UNREACHED, UNTOLD, EQUIVALENT)
_Z = 1.959964
"""Of a normal distribution, 95 % lie within so many standard deviations."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share after Wilson (1927), which holds near 1, too; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    z2 = _Z * _Z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def survivors(campaign: Campaign) -> list[Tried]:
    """Return the mutations that no case tells from the program, those that none executes or that were not told too."""
    return [t for t in campaign.tried if t.verdict not in (KILLED, EQUIVALENT)]


def summary(campaign: Campaign) -> dict[str, Any]:
    """Count by verdict; ``score`` is killed / all that are not equivalent, in percent, with its interval.

    What an error of the tool or of the machine left untold counts as not killed. ``without_documents`` is the score
    of those that are no figures of documents.
    """
    count = Counter(t.verdict for t in campaign.tried)
    how = Counter(t.how for t in campaign.tried if t.verdict == KILLED)
    judged = len(campaign.tried) - count[EQUIVALENT]
    others = [t for t in campaign.tried if t.verdict != EQUIVALENT and not t.mutation.of_document]
    killed = sum(t.verdict == KILLED for t in others)
    return {
        "mutations": len(campaign.tried),
        **{verdict: count[verdict] for verdict in VERDICTS},
        "killed_by": {name: how[name] for name in (BOUND, ERROR, HUNG)},
        **_score(count[KILLED], judged),
        "of_documents": judged - len(others),
        "without_documents": {"killed": killed, "judged": len(others), **_score(killed, len(others))},
        "seconds": round(campaign.seconds, 1),
    }


def _score(killed: int, judged: int) -> dict[str, Any]:
    """Return the score and its interval in percent."""
    score = round(100 * killed / judged, 1) if judged else None
    return {"score": score, "interval_95": [round(100 * share, 1) for share in wilson(killed, judged)]}


@dataclass
class Mutations(Document):
    """All mutations tried, and the cases that failed without any."""

    SCHEMA = 2

    asked: Asked
    seed: int
    summary: dict[str, Any]
    failed_unchanged: list[dict[str, str]]
    mutations: list[Tried]


def as_json(campaign: Campaign) -> str:
    troubled = [{"case": c.case, "reason": c.reason} for c in campaign.troubled]
    document = Mutations(campaign.asked, campaign.seed, summary(campaign), troubled, campaign.tried)
    return output.document(document, 1) + "\n"


def line(index: int, tried: Tried) -> str:
    """Write one line of progress."""
    ran = f"{tried.ran} of {tried.cases} cases, {tried.seconds:.1f} s" if tried.cases else ""
    why = (f"{tried.by}: " if tried.by else "") + " ".join(tried.reason.split())[:100]
    return "  ".join(filter(None, (f"[{index}] {tried.verdict:10} {tried.mutation.id}", ran, why)))


def text(campaign: Campaign) -> str:
    """Write the score, and every survivor with its diff."""
    s = summary(campaign)
    counts = f"{s['killed']} of {s['mutations'] - s['equivalent']} mutations killed"
    if s["score"] is not None:
        counts += f" ({s['score']} %, 95 % interval {s['interval_95'][0]} to {s['interval_95'][1]} %)"
    counts += f": {_killed_by(s)}; {s['unreached']} on lines that no case executes, {s['untold']} not told because the "
    counts += f"unchanged program failed, too, {s['equivalent']} proved equivalent, "
    rest = s["without_documents"]
    lines = [f"{counts}in {campaign.seconds:.0f} s"]
    lines += [f"without {s['of_documents']} figures of documents: {rest['killed']} of {rest['judged']} killed"]
    lines += [f"not used, fails without any change: {c.case}: {c.reason}" for c in campaign.troubled]
    for tried in survivors(campaign):
        lines += [f"{tried.verdict}: {tried.mutation.id} ({_how(tried)})", tried.diff]
    return "\n".join(lines)


def _apart(summary: dict[str, Any]) -> str:
    """Say what the draw leaves out, and what part of it no code can judge."""
    rest = summary["without_documents"]
    return (
        f"{summary['of_documents']} of them change figures that only a document has: what others measured, what "
        "tt_dit runs of a model, sizes of models that neither diffusers nor transformers has, steps and sizes that are "
        "known to differ from those of a pipeline in diffusers. Without these, "
        f"{rest['killed']} of {rest['judged']} were killed: {rest['score']} %, 95 % interval {rest['interval_95'][0]} "
        f"to {rest['interval_95'][1]} %. Not drawn are types, texts, refusals, calls that only name something for "
        "traces, progress or type checkers, or read a clock, the order of tables (figures, names of classes, "
        f"published models), the order of names that are given one value, and that of arguments of which every order "
        f"is right ({', '.join(sorted(COMMUTES))}, x.transpose)."
    )


def _killed_by(summary: dict[str, Any]) -> str:
    by = summary["killed_by"]
    return f"{by[BOUND]} by a judgement, {by[ERROR]} by an error of the program, {by[HUNG]} without end"


def _how(tried: Tried) -> str:
    if tried.verdict == UNTOLD:
        return tried.reason
    if not tried.cases:
        return "no case executes it"
    return f"{tried.ran} of {tried.cases} cases passed" + (f"; {tried.reason}" if tried.reason else "")


def markdown(campaign: Campaign) -> str:
    """Write reports/mutation.md: score, table by operator and by folder, survivors."""
    s = summary(campaign)
    asked = campaign.asked
    lines = [
        "# Mutation testing",
        "",
        f"**Measured.** Of {s['mutations']} random changes of the source (seed {campaign.seed}), "
        f"{s['killed']} were killed by a parity case of suite `{asked.suite}`, backend `{asked.backend}` "
        f"({_killed_by(s)}), {s['survived']} survived, {s['unreached']} lie on lines that no case executes, "
        f"{s['untold']} were not told because the unchanged program failed, too, and {s['equivalent']} are proved "
        f"equivalent: score {s['score']} %, 95 % interval (Wilson) {s['interval_95'][0]} to "
        f"{s['interval_95'][1]} %.",
        "",
        _apart(s),
        "",
    ]
    by_heading = {
        "operator": [t.mutation.operator for t in campaign.tried],
        "folder": [folder_of(t.mutation.file) for t in campaign.tried],
    }
    for heading, names in by_heading.items():
        rows = []
        for name in sorted(set(names)):
            count = Counter(t.verdict for t, its in zip(campaign.tried, names, strict=True) if its == name)
            rows.append((name, count.total(), *(count[v] for v in VERDICTS)))
        lines += [tables.as_markdown(rows, (heading, "mutations", *VERDICTS)), ""]
    lines += ["## Survivors", ""]
    for tried in survivors(campaign):
        lines += [f"`{tried.mutation.id}`: {_how(tried)}", "", "```diff", tried.diff, "```", ""]
    if proved := [t for t in campaign.tried if t.verdict == EQUIVALENT]:
        lines += ["## Proved equivalent", ""] + [f"- `{t.mutation.id}`: {t.reason}" for t in proved] + [""]
    return "\n".join(lines)


def write(campaign: Campaign, folder: Path) -> None:
    """Write ``mutation.json`` and ``mutation.md`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    output.write(folder / "mutation.json", as_json(campaign).encode())
    output.write(folder / "mutation.md", markdown(campaign).encode())
