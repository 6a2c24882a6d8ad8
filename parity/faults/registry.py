"""The registry of deliberate faults: wrong programs that the gate must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parity.cases import Case
from parity.faults.around import Patch


@dataclass(frozen=True)
class Fault:
    """One mistake put into one backend.

    Attributes:
        id: unique, with hyphens.
        family: what kind of mistake it is.
        backend: ``cpu`` (it is put into ``refsim``) or ``ttnn-mock`` (into ``tt_impl``).
        sentence: what is wrong in the program.
        mistake: what a person gets wrong so that this comes out; empty if that is plain.
        case: the case that must fail.
        inject: gives the patch that puts it in, see :mod:`parity.faults.around`.
        says: regular expression in the error that refuses it; None where only a metric may catch it.
    """

    id: str
    family: str
    backend: str
    sentence: str
    mistake: str
    case: Case
    inject: Callable[[], Patch]
    says: str | None = None

    @property
    def reference(self) -> str:
        """Return what ``RunOptions.fault`` takes: ``module:function``."""
        return f"{self.inject.__module__}:{self.inject.__name__}"


FAULTS: dict[str, Fault] = {}


def register(fault: Fault) -> Fault:
    """Add a fault; ValueError if its id is taken."""
    if fault.id in FAULTS:
        raise ValueError(f"two faults have the id {fault.id}")
    FAULTS[fault.id] = fault
    return fault


def fault(
    family: str, sentence: str, mistake: str = "", *, case: Case, says: str | None = None
) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Register the decorated function as a fault named after it, of the backend of its case (see :class:`Fault`).

    A module of faults makes a decorator for each family, ``merge = partial(fault, "merge", case=RING)``; ``case`` is
    the one that most faults of the family are put into.
    """
    backend, prefix = ("ttnn-mock", "ttnn-") if case.backends == "ttnn" else ("cpu", "")

    def decorate(inject: Callable[[], Patch]) -> Callable[[], Patch]:
        name = prefix + inject.__name__.replace("_", "-")
        register(Fault(name, family, backend, sentence, mistake, case, inject, says))
        return inject

    return decorate
