"""Records: what is kept of every judged case, and of the run that judged it; the key of all is the case's id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from parity.cases import Case
from parity.measure.thresholds import Threshold
from refsim.files.keys import Beside, Document, Measured

SCHEMA = 1
"""Version of the form of results.json; a field that is dropped or means something else raises it."""

VERDICTS = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Configuration:
    """What one case is.

    Attributes:
        id: of the case, with ``-seedN`` behind it where a run has several seeds.
        kind, model, mesh, parallel, scheme, prompt_layout, ring_order, math, dtype, family, shape, guidance,
            other_layout, suite: the case's configuration, see :class:`parity.cases.Case`; ``prompt_layout`` is ``none``
            without a prompt, ``other_layout`` the second layout in words, or None.
    """

    id: str
    kind: str
    model: str
    mesh: str
    parallel: str
    scheme: str
    prompt_layout: str
    ring_order: str
    math: str
    dtype: str
    family: str
    shape: dict[str, Any]
    guidance: float | None
    other_layout: str | None
    suite: str


@dataclass(frozen=True)
class Record(Configuration):
    """One judged case. What a backend has to say beyond these keys stands beside them.

    Attributes:
        backend, seed: what computed, and the seed of weights and inputs.
        verdict: ``passed``, ``failed`` or ``skipped``, and the ``reason`` why not passed.
        error: the traceback of an exception, empty otherwise.
        last_events: rank -> its last events, of a run that ended early.
        metrics, noise, bytes_by_collective, digests, hazards, sim_s, oracle_s: see :class:`parity.kinds.base.Measured`.
        thresholds: metric -> what was allowed.
        reasons: metric -> why so much; for readers of the report, not in JSON.
        wall_s: seconds of the whole case.
        extra: what a backend has to say beyond that; its names stand beside the others in JSON.
    """

    KEYS = (
        *(one.name for one in fields(Configuration)),
        *("backend", "seed", "verdict", "reason", "error", "last_events", "metrics", "thresholds", "noise"),
        *("bytes_by_collective", "digests", "hazards", "sim_s", "oracle_s", "wall_s", "more"),
    )

    backend: str
    seed: int
    verdict: str = "failed"
    reason: str = ""
    error: str = ""
    last_events: dict[Any, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    noise: dict[str, Measured] = field(default_factory=dict)
    bytes_by_collective: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    hazards: list[str] = field(default_factory=list)
    sim_s: float = 0.0
    oracle_s: float = 0.0
    wall_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, backend: str, seed: int, thresholds: tuple[Threshold, ...] = ()) -> Record:
        """Return the record of a case before it has run."""
        limits = {t.metric: t.limit for t in thresholds}
        reasons = {t.metric: t.reason for t in thresholds}
        return cls(**case.describe(), backend=backend, seed=seed, thresholds=limits, reasons=reasons)

    @property
    def more(self) -> Beside[dict[str, Any]]:
        """What a backend has to say, without the table of operations, which has a file of its own."""
        return {name: value for name, value in self.extra.items() if name != "optable"}


@dataclass
class SuiteRun(Document):
    """The records of one run and what they were made with; ``commit`` and ``committed``: see
    :mod:`parity.measure.machine`."""

    SCHEMA = SCHEMA
    KEYS = (
        *("suite", "expr", "backend", "seed", "versions", "machine", "started", "wall_s", "commit", "committed"),
        *("part", "records", "counts", "exit_code"),
    )

    suite: str
    expr: str | None
    backend: str
    seed: int
    versions: dict[str, str]
    machine: dict[str, Any]
    started: str
    wall_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    commit: str = ""
    committed: str = ""
    part: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Cases by verdict; always all three."""
        counter = Counter(record.verdict for record in self.records)
        return {verdict: counter[verdict] for verdict in VERDICTS}

    @property
    def exit_code(self) -> int:
        """0 if something passed and nothing failed, else 1: a run that skipped everything proves nothing."""
        return 0 if self.counts["passed"] and not self.counts["failed"] else 1
