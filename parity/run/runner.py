"""What runs cases: the base of the runners of both families of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.cases import Case
from parity.cases.store import CheckpointStore
from parity.explain.places import Evidence
from parity.kinds import load, thresholds_for
from parity.kinds.base import Measured
from parity.measure.thresholds import Threshold
from refsim.base.errors import UserError


class Runner(ABC):
    """Runs cases and keeps what those of one suite share: checkpoints and kinds. A context manager.

    Attributes:
        family: of backends, ``cpu`` or ``ttnn``.
        elsewhere: what is wrong with a case of the other family.
        trace: events of the last run, where they were kept.

    Args:
        kinds: made already, by name; the others are made when a case is of them.
    """

    family: ClassVar[str]
    elsewhere: str
    trace: Sequence[dict[str, Any]] = ()

    def __init__(self, store: CheckpointStore | None = None, kinds: dict[str, Any] | None = None) -> None:
        self._store = store or CheckpointStore()
        self._kinds = kinds or {}

    def __enter__(self) -> Runner:
        self._store.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)

    def kind(self, case: Case) -> Any:
        """Return the kind of a case, made when the first case is of it; ``UserError`` for a case of another family."""
        if case.backends != self.family:
            raise UserError(f"case {case.id} {self.elsewhere}.")
        if case.kind not in self._kinds:
            self._kinds[case.kind] = load(case.kind)(self._store)
        return self._kinds[case.kind]

    def warm_up(self) -> None:  # noqa: B027 - most have nothing to start
        """Start what is forked from this process now, before it has other threads."""

    def plan(self, jobs: Sequence[tuple[Case, int]]) -> None:  # noqa: B027 - most start nothing early
        """Say which cases will be run, in this order, with which seeds, so that some can be started early."""

    def thresholds(self, case: Case) -> tuple[Threshold, ...]:
        """Return what a case is judged by."""
        return thresholds_for(case.kind, case.dtype)

    @abstractmethod
    def run(self, case: Case, seed: int) -> Measured:
        """Run one case with ``seed``; whatever goes wrong is raised."""

    def explain(self, case: Case, seed: int, limits: Mapping[str, float]) -> Evidence:
        """Say where the answer of the last run is wrong; ``limits`` are what was allowed, by metric."""
        return Evidence()

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs; called after the last case that uses it."""
        self.kind(case).drop(case, seed)
