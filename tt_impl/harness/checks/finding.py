"""What a check says of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tt_impl.harness.checks import ERROR
from tt_impl.mock.log.events import Event


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth a look.

    Attributes:
        kind: a key of :data:`tt_impl.harness.checks.KINDS`.
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
        """Say of a call what is wrong with it."""
        return cls(kind, sentence, event.op, event.where, event.number, severity, event.devices)

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.where}: {self.severity}: {self.kind}: {self.sentence}{times}"


def at(event: Event) -> str:
    """Name an operation and its line in a sentence."""
    return f"{event.op} ({event.where})" if event.where else event.op


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding of a kind, operation, line and severity, with the number of such; in program order."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.number):
        alike.setdefault((finding.kind, finding.op, finding.where, finding.severity), []).append(finding)
    return [replace(first, count=1 + len(more)) for first, *more in alike.values()]
