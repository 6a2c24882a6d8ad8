"""Reports on faults: counts, which metric alone would have missed what, the matrix of faults and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from parity.faults.records import Record, is_good
from refsim.files import output, tables
from refsim.files.keys import Document, Key


@dataclass
class FaultCounts:
    """Counts; ``good`` is what the exit code says."""

    faults: int
    caught: int
    survived: list[str]
    clean_cases: int
    false_alarms: list[str]
    missed_by_pcc: Annotated[list[str], Key("missed_by_pcc_0.999")]
    good: bool


@dataclass
class Faults(Document):
    """All faults and clean cases that were run."""

    summary: FaultCounts
    records: list[Record]


def summary(records: list[Record]) -> FaultCounts:
    """Count the records."""
    faults = [r for r in records if r.kind == "fault"]
    return FaultCounts(
        faults=len(faults),
        caught=sum(r.verdict == "caught" for r in faults),
        survived=[r.id for r in faults if r.verdict != "caught"],
        clean_cases=len(records) - len(faults),
        false_alarms=[r.id for r in records if r.verdict == "false alarm"],
        missed_by_pcc=[r.id for r in faults if "pcc 0.999" in r.missed_by],
        good=bool(faults) and is_good(records),
    )


def as_json(records: list[Record]) -> str:
    """Write summary and records as JSON, not-a-numbers as text."""
    return output.document(Faults(summary(records), records), 1) + "\n"


def markdown(records: list[Record]) -> str:
    """Write what caught each fault, and the matrix fault x metric."""
    counts = summary(records)
    faults = [r for r in records if r.kind == "fault"]
    lines = [
        "# Faults",
        "",
        f"**Measured.** {counts.caught} of {counts.faults} deliberate faults caught, "
        f"{len(counts.false_alarms)} false alarms on {counts.clean_cases} clean cases. "
        f"A gate of whole-tensor PCC >= 0.999 alone would have let {len(counts.missed_by_pcc)} of them pass.",
        "",
    ]
    for family in dict.fromkeys(r.family for r in faults):
        rows = (
            (r.id, r.backend, *map(_short, (r.sentence, r.mistake, _caught(r)))) for r in faults if r.family == family
        )
        table = tables.as_markdown(rows, ("fault", "backend", "what is wrong", "mistake", "caught by"))
        lines += [f"## {family}", "", table, ""]
    lines += ["## Which metric sees what", "", "`x` beyond its bound, `.` within it, blank: not measured there.", ""]
    for backend in dict.fromkeys(r.backend for r in faults):
        lines += _matrix(backend, [r for r in faults if r.backend == backend and not r.error])
    return "\n".join(lines)


def _matrix(backend: str, faults: list[Record]) -> list[str]:
    metrics = list(dict.fromkeys(m for r in faults for m in r.thresholds if r.metrics.get(m) is not None))
    metrics = [m for m in metrics if any(by.metric == m for r in faults for by in r.caught_by)]
    rows = []
    for r in faults:
        caught = {by.metric for by in r.caught_by}
        marks = ["x" if m in caught else "." if r.metrics.get(m) is not None else " " for m in metrics]
        rows.append((r.id, "." if "pcc 0.999" in r.missed_by else "x", *marks))
    return [f"### {backend}", "", tables.as_markdown(rows, ("fault", "pcc 0.999", *metrics)), ""]


def _caught(record: Record) -> str:
    if record.caught_by:
        by = record.caught_by[0]
        return f"{by.metric} {_number(by.value)} > {_number(by.threshold)}"
    return f"refused: {record.error}" if record.verdict == "caught" else "SURVIVED"


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.3g}"


def _short(text: str) -> str:
    return (text if len(text) <= 160 else f"{text[:157]}...").replace("\n", " ")


def line(index: int, total: int, record: Record) -> str:
    """Write one line of progress."""
    why = _short(_caught(record)) if record.kind == "fault" or record.verdict != "passed" else ""
    return f"[{index}/{total}] {record.verdict:11} {record.id}  {why}"


def write(records: list[Record], folder: Path) -> None:
    """Write ``faults.json`` and ``faults.md`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    output.write(folder / "faults.json", as_json(records).encode())
    output.write(folder / "faults.md", markdown(records).encode())
