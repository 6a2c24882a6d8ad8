"""A history by commit in one SQLite file: what was judged, measured and predicted, and where a case became worse.

    commits   commit, date (UTC), version                    in the order of their dates
    records   commit, kind, name, setting, record (JSON)     one for each of :func:`refsim.results.read_records`

A record takes the place of the one with the same commit, kind, name and setting, so that a folder added twice counts
once. What is worse and what is noise is judged by :mod:`parity.report.diff`.
"""

from __future__ import annotations

import difflib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

from parity.cases.selection import compile_expression
from parity.report.diff import Diff, Row, diff, number
from refsim.base.errors import UserError
from refsim.files.keys import Document, as_json
from refsim.files.output import check_target
from refsim.files.tables import SKIPPED
from refsim.results import KINDS, read_records

FORM = 0x52534831
"""In the file's ``application_id``: a history in this form."""
PCC = "PCC"
"""Shown in place of the metric ``one_minus_pcc``, which a record holds."""
COLUMNS = (
    "kind case setting commit date version verdict value limit measured_s predicted_s memory_gb worse_by"
).split()
"""Of :func:`rows`. ``value`` and ``limit`` are those of the metric asked for; ``worse_by`` says what became worse since
the commit before, beyond noise; a limit that was loosened is among it."""
_NAMES = {
    "parity": (("id",), ("backend", "seed")),
    "faults": (("id",), ("backend",)),
    "sensitivity": (("case", "op"), ()),
    "predictions": (("model", "size", "mesh", "parallel"), ("topology", "links", "weights", "fidelity")),
    "memory": (("system", "name", "mesh", "parallel", "latent"), ()),
    "speed": (("scheme", "ranks", "rows", "heads", "head_dim", "dtype"), ("math",)),
}
"""Kind -> fields that say what a record is of (one of them must be there), and in which setting."""
_COMPARED = frozenset("id kind dtype verdict metrics thresholds noise bytes_by_collective".split())
"""What :mod:`parity.report.diff` reads."""
_TABLES = """
    CREATE TABLE commits ("commit" TEXT PRIMARY KEY, date TEXT NOT NULL, version TEXT NOT NULL);
    CREATE TABLE records ("commit" TEXT NOT NULL REFERENCES commits, kind TEXT NOT NULL, name TEXT NOT NULL,
        setting TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY ("commit", kind, name, setting))"""


@dataclass(frozen=True)
class Entry:
    """One record at one commit."""

    kind: str
    name: str
    setting: str
    commit: str
    date: str
    version: str
    record: dict[str, Any]

    @property
    def series(self) -> tuple[str, str, str]:
        """What is the same thing at every commit."""
        return self.kind, self.name, self.setting


@dataclass(frozen=True)
class Added:
    """What :func:`add` put in: records of a commit, and how many of them took the place of others."""

    commit: str
    date: str
    records: int
    replaced: int


@dataclass(frozen=True)
class Turn:
    """The first commit at which a case is worse, or failed.

    Attributes:
        before: the commit in the history before it; empty if the case failed in the first.
        since: the commit that it was compared with: the last one at which something became better, or the first.
        worse_by: what is worse, beyond noise.
    """

    case: str
    setting: str
    commit: str
    date: str
    before: str
    since: str
    worse_by: list[str]


@dataclass
class Turns(Document):
    """Of every case that became worse the first commit."""

    turns: list[Turn]


@dataclass
class History(Document):
    """Results by commit.

    Attributes:
        rows: Case, setting, commit, date, verdict, value and limit of the metric, seconds, memory, and what became
            worse.
    """

    metric: str
    rows: list[dict[str, Any]]


def add(folder: Path, path: Path, *, commit: str | None = None, date: str | None = None) -> Added:
    """Put the results below a folder into the history, which is made if need be.

    Args:
        commit: what the results are of; None: what the run of parity noted.
        date: of the commit, in ISO 8601; None: what the run or the history has noted, or when the run started.

    Raises:
        UserError: no results, of no commit or of several, a date that is none, or a file that is no history.
    """
    records = read_records(folder)
    runs = sorted(records.get("parity", []), key=lambda record: str(record.get("run.started")))
    records["parity"] = runs
    noted = sorted({record.get("run.commit") or "" for record in runs})
    if commit is None and len(noted) > 1:
        several = ", ".join(name or "none" for name in noted)
        raise UserError(f"'{folder}' has runs of several commits ({several}); add their folders one by one.")
    commit = "".join(noted) if commit is None else commit
    if not commit or any(c.isspace() for c in commit):
        raise UserError(f"'{folder}' needs the name of one commit, not '{commit}'; say --commit HASH.")
    last = runs[-1] if runs else {}
    date = date or (last.get("run.committed") if noted == [commit] else None)
    entries = [_entry(kind, record) for kind in _NAMES for record in records.get(kind, [])]
    lines = [(commit, kind, name, setting, json.dumps(as_json(record))) for kind, name, setting, record in entries]
    check_target(path, "--db")
    with _opened(path, "rwc") as db:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.executescript(f"BEGIN; PRAGMA application_id = {FORM}; {_TABLES}; COMMIT")
        _check(db, path)
        with db:
            known = db.execute('SELECT date, version FROM commits WHERE "commit" = ?', (commit,)).fetchone() or ("", "")
            date = _utc(date or known[0] or last.get("run.started"))
            version = last.get("run.versions", {}).get("refsim") or known[1] or "-"
            before = db.execute("SELECT count(*) FROM records").fetchone()[0]
            again = 'ON CONFLICT("commit") DO UPDATE SET date = excluded.date, version = excluded.version'
            db.execute(f"INSERT INTO commits VALUES (?, ?, ?) {again}", (commit, date, version))
            db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", lines)
            new = db.execute("SELECT count(*) FROM records").fetchone()[0] - before
    return Added(commit, date, len(lines), len(lines) - new)


def read(path: Path, expr: str | None = None, kinds: Sequence[str] = tuple(_NAMES)) -> list[Entry]:
    """Return the records whose name and setting match ``-k``, those of one thing side by side, oldest commit first.

    Raises:
        UserError: the file is not there or is no history, or nothing matches.
    """
    matches = compile_expression(expr)
    if not path.exists():
        raise UserError(f"--db '{path}' does not exist; make it by `refsim history add DIR --db {path}`.")
    with _opened(path, "ro") as db:
        _check(db, path)
        lines = db.execute(
            """SELECT kind, name, setting, c."commit", date, version, record FROM records r
               JOIN commits c ON r."commit" = c."commit" ORDER BY date, c.rowid"""
        ).fetchall()
    first: dict[tuple[str, ...], int] = {}
    for row in lines:
        if row[0] in kinds:
            first.setdefault(row[:3], len(first))
    wanted = {series for series in first if matches(" ".join(series[1:]))}
    if not wanted:
        names = sorted({name for _, name, _ in first})
        near = difflib.get_close_matches(expr or "", names, 3, 0.0)
        what = (
            f"no case of the history matches -k '{expr}'; it has {len(names)}" if names else "the history has no case"
        )
        raise UserError(f"{what}{', such as ' * bool(near)}{', '.join(near)}.")
    chosen = sorted((row for row in lines if row[:3] in wanted), key=lambda row: first[row[:3]])
    return [Entry(*row, record=json.loads(record)) for *row, record in chosen]


def rows(entries: Sequence[Entry], metric: str = PCC) -> list[dict[str, Any]]:
    """Turn what :func:`read` gives into rows of :data:`COLUMNS`: seconds, 1e9 bytes per device, None for no value.

    Raises:
        UserError: no record has such a metric.
    """
    name = "one_minus_pcc" if metric == PCC else metric
    known = {m for e in entries for m in e.record.get("metrics", {})}
    if known and name not in known:
        raise UserError(f"no record has the metric '{metric}'; choose {PCC} or one of {', '.join(sorted(known))}.")
    table = []
    for part in each(entries):
        for entry, worse in zip(part, became_worse(part), strict=True):
            value, limit = (number(entry.record.get(where, {}).get(name)) for where in ("metrics", "thresholds"))
            if metric == PCC:
                value, limit = (None if x is None else 1 - x for x in (value, limit))
            identity = (*entry.series, entry.commit, entry.date, entry.version)
            numbers = {"value": value, "limit": limit, **numbers_of(entry.kind, entry.record)}
            row = dict(zip(COLUMNS, identity, strict=False)) | numbers | {"worse_by": "; ".join(map(str, worse))}
            table.append(dict.fromkeys(COLUMNS) | row)
    return table


def each(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Write what :func:`read` gives, one thing at a time, oldest commit first."""
    for _, group in groupby(entries, lambda e: e.series):
        yield list(group)


def became_worse(entries: Sequence[Entry]) -> Iterator[list[Row]]:
    """Yield for every entry of one thing what is worse, beyond noise, than in the one before that was judged."""
    before: Entry | None = None
    for entry in entries:
        yield _compared(before, entry).worse if before and _judged(entry) else []
        before = entry if _judged(entry) else before


def bisect(entries: Sequence[Entry]) -> list[Turn]:
    """Return of every case the first commit at which it is worse than before, beyond noise, or failed.

    Compared is with the last commit at which something became better, not with the one before: small steps add up.

    Raises:
        UserError: there is one commit only, in which nothing failed.
    """
    judged = [entry for entry in entries if _judged(entry)]
    turns = [turn for part in each(judged) if (turn := _turn(part))]
    if not turns and len({entry.commit for entry in judged}) < 2:
        raise UserError("the history has fewer than two commits of these cases; add the results of another.")
    return turns


def _turn(entries: Sequence[Entry]) -> Turn | None:
    since = entries[0]
    before = since
    if since.record["verdict"] == "failed":
        return Turn(since.name, since.setting, since.commit, since.date, "", "", ["failed"])
    for entry in entries[1:]:
        changes = _compared(since, entry)
        if changes.worse:
            worse = [str(row) for row in changes.worse]
            return Turn(entry.name, entry.setting, entry.commit, entry.date, before.commit, since.commit, worse)
        if any(not row.worse for row in changes.rows):
            since = entry
        before = entry
    return None


def _judged(entry: Entry) -> bool:
    """Whether it can be compared: a case that was skipped says nothing."""
    return entry.kind == "parity" and entry.record["verdict"] != "skipped"


def _compared(before: Entry, after: Entry) -> Diff:
    return diff({"records": [before.record]}, {"records": [after.record]})


def numbers_of(kind: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return ``verdict``, ``measured_s``, ``predicted_s``, ``memory_gb`` of a record of any kind, where it has them."""
    numbers: dict[str, Any] = {"verdict": record.get("verdict")}
    if kind == "parity":
        peak = record.get("resources", {}).get("peak_dram", {}).get("bytes")
        numbers |= {"measured_s": record["sim_s"], "memory_gb": peak and peak / 1e9}
    elif kind == "faults":
        numbers["measured_s"] = record.get("seconds")
    elif kind == "predictions":
        memory = record["memory_gb"]
        numbers["predicted_s"] = record["total_seconds"]
        numbers["memory_gb"] = sum(memory[part] for part in ("weights", "activations", "buffers"))
    elif kind == "memory":
        groups = [group for stage in record.get("stages") or [record] for group in stage.get("groups") or []]
        numbers["memory_gb"] = max((group["peak"] / 1e9 for group in groups), default=None)
    elif kind == "speed":
        numbers |= {"measured_s": record["seconds"]["mesh"], "verdict": "passed" if record["right"] else "failed"}
    elif kind == "sensitivity":
        numbers["verdict"] = "passed" if record["good"] else "failed"
    return numbers


def _entry(kind: str, record: dict[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
    """Return kind, name and setting of a record, and what is kept of it, once it has what the history reads."""
    of, within = _NAMES[kind]
    try:
        name = " ".join(_text(record[field]) for field in of if field in record)
        setting = ", ".join(_named(field, record[field]) for field in within if field in record)
        numbers_of(kind, record)
        if not name or (kind == "parity" and not record.keys() >= _COMPARED):
            raise KeyError
    except (KeyError, TypeError, AttributeError) as e:
        raise UserError(
            f"'{record['source']}' has a record of another form than `{KINDS[kind][1]}` writes; make it again by that."
        ) from e
    content = {key: value for key, value in record.items() if key not in (*SKIPPED, "communication")}
    return kind, name, setting, content


def _named(field: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{field} {_text(value)}"


def _text(value: Any) -> str:
    """Write a value as text: 64x64 for a list of numbers, the words of a list of words."""
    if not isinstance(value, list):
        return str(value)
    return (" " if all(isinstance(part, str) for part in value) else "x").join(map(str, value))


def _utc(date: str | None) -> str:
    try:
        moment = datetime.fromisoformat((date or "").replace("Z", "+00:00"))
    except ValueError:
        what = f"'{date}' is no date" if date else "the results have no date"
        raise UserError(f"{what}; say --date 2026-01-31, or with a time 2026-01-31T12:00:00+00:00.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc).isoformat()


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as db:
            yield db
    except sqlite3.Error as e:
        raise UserError(
            f"--db '{path}' cannot be used as a history ({e}); name one that `refsim history add` made, or a new one."
        ) from e


def _check(db: sqlite3.Connection, path: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != FORM:
        raise UserError(
            f"--db '{path}' is a database of something else; name one that `refsim history add` made, or a new one."
        )
