"""What a check says of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tt_impl.mock.log.events import Event

ERROR, NOTE = "error", "note"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth a look.

    Attributes:
        kind: a stable word, see :mod:`tt_impl.harness.checks.findings`.
        sentence: what is wrong and what would be right.
        op, where, number: the operation, the line of the user's code and the place in the program.
        severity: ``error`` for what goes wrong on devices, ``note`` for what may.
        devices: ids of the devices it is about.
        count: how often the same line gives the same finding.
    """

    kind: str
    sentence: str
    op: str
    where: str
    number: int
    severity: str = ERROR
    devices: tuple[int, ...] = ()
    count: int = 1

    @classmethod
    def of(cls, kind: str, event: Event, sentence: str, severity: str = ERROR) -> Finding:
        return cls(kind, sentence, event.op, event.where, event.number, severity, event.devices)

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.where}: {self.severity}: {self.kind}: {self.sentence}{times}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"devices": list(self.devices)}


def at(event: Event) -> str:
    """An operation with its line, for a sentence."""
    return f"{event.op} ({event.where})" if event.where else event.op


def once(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per kind, operation, line and severity, the first, with how often there was one; in program order."""
    kept: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted(findings, key=lambda f: f.number):
        kept.setdefault((finding.kind, finding.op, finding.where, finding.severity), []).append(finding)
    return [
        Finding(f.kind, f.sentence, f.op, f.where, f.number, f.severity, f.devices, len(same))
        for f, *_ in kept.values()
        for same in (kept[f.kind, f.op, f.where, f.severity],)
    ]
