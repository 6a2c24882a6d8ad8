"""What runs the cases of a backend, and whether it can run here."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from parity.cases import Case
from parity.cases.kinds import entry
from parity.cases.store import CheckpointStore
from parity.kinds import load
from refsim.base.errors import UserError

K = TypeVar("K")


class Runner(Protocol):
    """What runs cases on a backend; a context manager that holds what cases share."""

    def __enter__(self) -> Runner: ...
    def __exit__(self, *error: object) -> None: ...
    def run(self, case: Case, seed: int) -> Any: ...
    def drop(self, case: Case, seed: int) -> None: ...


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
        """The kind of a case, made when the first case is of it; ``UserError`` for a case of another family."""
        if case.backends != self.family:
            raise UserError(f"case {case.id} {self.elsewhere}.")
        if case.kind not in self._kinds:
            self._kinds[case.kind] = load(case.kind)(self._store)
        return self._kinds[case.kind]


def make_runner(backend: str) -> Runner:
    """The runner of a backend; ``UserError`` if this Python lacks what it needs."""
    if backend == "cpu":
        from parity.run.cpu_runner import CpuRunner

        return CpuRunner()
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    from parity.run.ttnn_runner import TTNNRunner

    return TTNNRunner(backend)


def check_environment(cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if these cases cannot run here."""
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("refsim parity starts its own ranks; run it without torchrun.")
    if any(entry(case.kind).checkpoint for case in cases) and importlib.util.find_spec("diffusers") is None:
        raise UserError(
            "model cases are judged against diffusers, which is not installed; "
            "pip install 'refsim[oracle]' or choose -k attention."
        )
