"""What the runners of both families of backends share: checkpoints and kinds, over the cases of one suite."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from parity.cases import Case
from parity.cases.store import CheckpointStore
from parity.kinds import load
from refsim.base.errors import UserError

K = TypeVar("K")


class KindRunner(Generic[K]):
    """Hold checkpoints and the kinds of cases over the cases of one suite.

    Attributes:
        family: of backends, ``cpu`` or ``ttnn``.
        elsewhere: what is wrong with a case of the other family.
    """

    family: ClassVar[str]
    elsewhere: str

    def __init__(self, store: CheckpointStore | None = None, kinds: dict[str, K] | None = None) -> None:
        self._store = store or CheckpointStore()
        self._kinds: dict[str, K] = kinds or {}

    def kind(self, case: Case) -> K:
        """Return the kind of a case, made when the first case is of it; ``UserError`` for a case of another family."""
        if case.backends != self.family:
            raise UserError(f"case {case.id} {self.elsewhere}.")
        if case.kind not in self._kinds:
            self._kinds[case.kind] = load(case.kind)(self._store)
        return self._kinds[case.kind]
