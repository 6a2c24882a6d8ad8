"""The registry of deliberate faults: wrong programs that the gate must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One mistake put into one backend.

    Attributes:
        id: unique, with hyphens.
        family: what kind of mistake it is.
        backend: ``cpu`` (it is put into ``refsim``) or ``ttnn-mock`` (into ``tt_impl``).
        sentence: what is wrong in the program.
        mistake: what a person gets wrong so that this comes out; empty if that is plain.
        case: the ``parity.cases.Case`` that must fail.
        inject: puts it in, called in the process that runs the program.
        says: regular expression in the error that refuses it; None where only a metric may catch it.
    """

    id: str
    family: str
    backend: str
    sentence: str
    mistake: str
    case: Any
    inject: Callable[..., Any]
    says: str | None = None


FAULTS: dict[str, Fault] = {}


def register(fault: Fault) -> Fault:
    """Add a fault; ValueError if its id is taken."""
    if fault.id in FAULTS:
        raise ValueError(f"two faults have the id {fault.id}")
    FAULTS[fault.id] = fault
    return fault
