"""Which findings fail a run: those of ``--ttnn-mock-strict`` and ``refsim ttnn run --strict``, less what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refsim.base.errors import UserError
from tt_impl.harness.checks import ERROR, KINDS

if TYPE_CHECKING:
    from tt_impl.harness.checks.finding import Finding  # which imports ttnn

ALLOW = "ttnn_mock_allow"
"""pytest's marker of a test that may have findings of some kinds."""


@dataclass(frozen=True)
class Strict:
    """What fails a program although nothing in it raised.

    Attributes:
        kinds: of findings, errors and notes alike; None for every kind, errors only.
    """

    kinds: frozenset[str] | None = None

    @classmethod
    def of(cls, text: str) -> Strict:
        """Read ``all`` or kinds apart by commas; ``UserError`` where one does not exist."""
        words = [word for word in re.split(r"[,\s]+", text) if word]
        return cls(None if words in ([], ["all"]) else frozenset(check_kinds(words)))

    @classmethod
    def of_pytest(cls, config: Any) -> Strict | None:
        """Return what ``--ttnn-mock-strict``, or else the ini option, asks for; None if neither does."""
        text = config.getoption("ttnn_mock_strict", None) or config.getini("ttnn_mock_strict")
        return cls.of(text) if text else None

    def failing(self, findings: Iterable[Finding], allowed: Iterable[str]) -> list[Finding]:
        """Return the findings that fail the program; ``allowed`` are kinds that do not."""
        allowed = set(allowed)
        return [finding for finding in findings if finding.kind not in allowed and self._counts(finding)]

    def _counts(self, finding: Finding) -> bool:
        return finding.severity == ERROR if self.kinds is None else finding.kind in self.kinds


def check_kinds(words: Iterable[str]) -> list[str]:
    """Return kinds of findings as they are; ``UserError`` where one does not exist."""
    words = list(words)
    for word in words:
        if word not in KINDS:
            raise UserError(f"'{word}' is no kind of finding; the kinds are {', '.join(KINDS)}.")
    return words
