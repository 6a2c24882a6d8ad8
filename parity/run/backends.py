"""The runner of each backend, and whether it can run here."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parity.cases import Case
from parity.cases.kinds import entry
from refsim.base.errors import UserError
from refsim.base.options import NUMERICS, Numerics

if TYPE_CHECKING:
    from parity.run.runner import Runner


def make_runner(backend: str, numerics: Numerics = "off") -> Runner:
    """Return the runner of a backend.

    Args:
        numerics: how ttnn-mock rounds, see :attr:`refsim.base.options.RunOptions.numerics`.

    Raises:
        UserError: this Python lacks what the backend needs.
    """
    if backend == "cpu":
        from parity.run.cpu import CpuRunner

        return CpuRunner()
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    from parity.run.ttnn import TTNNRunner

    return TTNNRunner(backend, numerics=numerics)


def check_numerics(backend: str, numerics: str) -> None:
    """Raise ``UserError`` for a level that does not exist, or on a backend that does not round by levels."""
    if numerics not in NUMERICS:
        raise UserError(f"--numerics '{numerics}' does not exist; choose one of {', '.join(NUMERICS)}.")
    if numerics != "off" and backend != "ttnn-mock":
        raise UserError(f"--numerics is for ttnn-mock; leave it out on {backend}, or say --backend ttnn-mock.")


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
