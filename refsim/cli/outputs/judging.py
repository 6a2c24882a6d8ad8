"""``refsim parity``, ``faults``, ``schedules`` and ``history``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from refsim.cli.outputs.base import Document, Number, Object


class Exceeded(Object):
    metric: str
    value: Number
    threshold: float


class Fault(Object):
    """A fault, or a clean case (``kind``)."""

    id: str
    kind: Literal["fault", "clean"]
    backend: str
    family: str
    sentence: str
    mistake: str
    case: str
    caught_by: list[Exceeded]
    """The bounds exceeded, the furthest first."""
    error: str
    metrics: dict[str, Any]
    thresholds: dict[str, float]
    seconds: float | None
    verdict: Literal["caught", "survived", "passed", "false alarm"]
    missed_by: list[str]
    """Metrics that alone would have let the fault pass."""


class FaultCounts(Object):
    faults: int
    caught: int
    survived: list[str]
    clean_cases: int
    false_alarms: list[str]
    missed_by_pcc: Annotated[list[str], Field(alias="missed_by_pcc_0.999")]
    good: bool


class Faults(Document):
    summary: FaultCounts
    records: list[Fault]


class Floors(Object):
    made: dict[str, Any]
    floors: dict[str, dict[str, float]]
    """The oracle's own rounding: kind and dtype, then metric."""


class History(Document):
    metric: str
    rows: list[dict[str, Any]]
    """Case, setting, commit, date, verdict, value and limit of the metric, seconds, memory, and what became worse."""


class ScheduleFailure(Object):
    seed: int | None
    """Of the schedule; null: the undisturbed run."""
    reasons: list[str]


class ScheduleOutcome(Object):
    case: str
    schedules: int
    verdict: str
    reason: str
    failures: list[ScheduleFailure]
    replay: list[str]
    """The command for every schedule that failed."""
    wall_s: float


class FileLines(Object):
    file: str
    lines: int
    executed: int
    missing: list[int]
    """Neither executed nor refused."""
    refused: int
    """Not executed, and no right run gets to them."""
    percent: float
    """Of all lines."""
    percent_of_runs: float
    """Of those that are not refused."""


class Lines(Document):
    asked: dict[str, Any]
    lines: int
    executed: int
    refused: int
    percent: float
    percent_of_runs: float
    files: list[FileLines]
    cases: int
    not_counted: list[dict[str, str]]


class Mutation(Object):
    file: str
    line: int
    operator: str
    of_document: bool
    before: str
    after: str
    verdict: str
    by: str
    how: str
    reason: str
    ran: int
    cases: int
    diff: str
    seconds: float


class Mutations(Document):
    asked: dict[str, Any]
    seed: int
    summary: dict[str, Any]
    failed_unchanged: list[dict[str, str]]
    mutations: list[Mutation]


class Recognised(Object):
    seed: int
    judged: int
    places_right: int
    causes_right: int
    unseen: list[str]
    faults: list[dict[str, Any]]
