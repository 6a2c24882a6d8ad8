"""Records: what is kept of every judged case, and of the run that judged it; the key of all is the case's id."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from parity.cases import Case
from parity.measure.thresholds import Threshold

SCHEMA = 1
"""Version of the form of results.json; a field that is dropped or means something else raises it."""

VERDICTS = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Record:
    """One judged case.

    Attributes:
        id: of the case, with ``-seedN`` behind it where a run has several seeds.
        kind, model, mesh, parallel, scheme, prompt_layout, ring_order, math, dtype, family, shape, guidance,
            other_layout, suite: the case's configuration, see :class:`parity.cases.Case`; ``prompt_layout`` is ``none``
            without a prompt, ``other_layout`` the second layout in words, or None.
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
    backend: str
    seed: int
    verdict: str = "failed"
    reason: str = ""
    error: str = ""
    last_events: dict[Any, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    bytes_by_collective: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    hazards: list[str] = field(default_factory=list)
    sim_s: float = 0.0
    oracle_s: float = 0.0
    wall_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, backend: str, seed: int, thresholds: tuple[Threshold, ...] = ()) -> Record:
        """The record of a case before it has run."""
        limits, reasons = {t.metric: t.limit for t in thresholds}, {t.metric: t.reason for t in thresholds}
        return cls(**case.describe(), backend=backend, seed=seed, thresholds=limits, reasons=reasons)

    def to_json(self) -> dict[str, Any]:
        """JSON values; the table of operations is left out, which has a file of its own."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("extra", "reasons")}
        return plain(own | {name: value for name, value in self.extra.items() if name != "optable"})


@dataclass
class SuiteRun:
    """The records of one run and what they were made with; ``commit`` and ``committed``: see
    :mod:`parity.measure.machine`."""

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
        found = Counter(record.verdict for record in self.records)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def exit_code(self) -> int:
        """0 if something passed and nothing failed, else 1: a run that skipped everything proves nothing."""
        return 0 if self.counts["passed"] and not self.counts["failed"] else 1

    def to_json(self) -> dict[str, Any]:
        """JSON values: the schema's version, what the run was made with, and all records."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "records"}
        return {
            "schema": SCHEMA,
            **plain(own),
            "records": [record.to_json() for record in self.records],
            "counts": self.counts,
            "exit_code": self.exit_code,
        }


def plain(value: Any) -> Any:
    """Strict JSON values: what is not finite becomes the string ``nan``, ``inf`` or ``-inf``."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
