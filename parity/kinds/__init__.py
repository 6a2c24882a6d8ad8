"""The kinds of cases, a module and a class each: what goes in, what runs, what is measured, what is allowed.

The classes are imported when a case runs, torch with them; the table of them is :mod:`parity.cases.kinds`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from parity.cases.kinds import KINDS, Entry, entry
from parity.measure.thresholds import Threshold, tightened
from refsim.base.errors import UserError

__all__ = ["KINDS", "Entry", "entry", "load", "thresholds_for"]


def load(kind: str) -> Any:
    """Return the class of a kind, a :class:`parity.kinds.base.Kind`."""
    module, _, name = entry(kind).implementation.partition(":")
    return getattr(import_module(module), name)


@cache
def thresholds_for(kind: str, dtype: str) -> tuple[Threshold, ...]:
    """Return the bounds of a kind of case in a storage dtype (``fp32``, ``bf16``), tightened by the measured floors.

    Raises:
        UserError: there are none for this dtype.
    """
    allowed = load(kind).thresholds
    if dtype not in allowed:
        raise UserError(f"{kind} cases are judged in {' and '.join(allowed)} only, not in {dtype}.")
    return tightened(allowed[dtype], f"{kind} {dtype}")
