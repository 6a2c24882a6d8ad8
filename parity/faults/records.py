"""The record of a fault, or of the clean case that it is put into, and when a corpus is good."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from parity.cases import Case
from parity.faults.registry import Fault
from parity.measure.thresholds import Metrics, Threshold, judge
from refsim.files.keys import Measured

SEED = 7
"""Of weights and inputs of every case."""
WHOLE_PCC = Threshold("one_minus_pcc", 1e-3, "PCC >= 0.999 over the whole tensor, the usual gate")


@dataclass
class Exceeded:
    """A bound that a fault exceeds."""

    metric: str
    value: Measured
    threshold: float

    @property
    def excess(self) -> float:
        """How many times its bound a metric is; NaN and what was not measured are beyond everything."""
        if self.value is None or math.isnan(self.value):
            return math.inf
        return self.value / self.threshold if self.threshold else 1.0  # a count says that it is wrong, not how much


@dataclass
class Record:
    """A fault, or a clean case (``kind``).

    Attributes:
        caught_by: The bounds exceeded, the furthest first.
        error: What refused it.
        seconds: Null if it was refused.
    """

    KEYS = (
        *("id", "kind", "backend", "family", "sentence", "mistake", "case", "caught_by", "error", "metrics"),
        *("thresholds", "seconds", "verdict", "missed_by"),
    )

    id: str
    kind: Literal["fault", "clean"]
    backend: str
    family: str
    sentence: str
    mistake: str
    case: str
    thresholds: dict[str, float]
    caught_by: list[Exceeded] = field(default_factory=list)
    error: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    verdict: Literal["caught", "survived", "passed", "false alarm"] = "passed"

    @classmethod
    def of(cls, case: Case, fault: Fault | None, backend: str, bounds: Iterable[Threshold]) -> Record:
        """Return the record before anything has run."""
        family, sentence, mistake = (getattr(fault, key, "") for key in ("family", "sentence", "mistake"))
        limits = {t.metric: t.limit for t in bounds}
        kind: Literal["fault", "clean"] = "fault" if fault else "clean"
        return cls(fault.id if fault else case.id, kind, backend, family, sentence, mistake, case.id, limits)

    @property
    def missed_by(self) -> list[str]:
        """Metrics that alone would have let the fault pass; ``pcc 0.999`` is the usual whole-tensor gate."""
        if self.error or self.kind == "clean":
            return []  # refused before there was anything to measure
        caught = {by.metric for by in self.caught_by}
        missed = [m for m in self.thresholds if m not in caught and self.metrics.get(m) is not None]
        return missed + (["pcc 0.999"] if not judge(self.metrics, (WHOLE_PCC,)) else [])

    def note_metrics(self, metrics: Metrics, bounds: Iterable[Threshold]) -> None:
        """Put what was measured into the record, and the bounds that it exceeds."""
        self.metrics = dict(metrics)
        exceeded = [Exceeded(t.metric, metrics.get(t.metric), t.limit) for t in bounds if judge(metrics, (t,))]
        self.caught_by = sorted(exceeded, key=lambda by: by.excess, reverse=True)

    def note_verdict(self, fault: Fault | None) -> None:
        """Put the verdict into the record: an error catches a fault only if it ``says`` the fault's nature."""
        if fault is None:
            self.verdict = "false alarm" if self.caught_by or self.error else "passed"
            return
        named = bool(self.error and fault.says and re.search(fault.says, self.error))
        self.verdict = "caught" if self.caught_by or named else "survived"


Progress = Callable[[int, int, Record], None]
"""Called with (number of the record from 1, total, record)."""


def is_good(records: list[Record]) -> bool:
    """Whether no clean case failed and no fault survived."""
    return all(record.verdict in ("passed", "caught") for record in records)
