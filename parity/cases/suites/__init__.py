"""The suites: which cases there are, a module for every family of models.

Every module in this folder has a function ``add(cases)`` that adds its cases to a :class:`parity.cases.Registry`, those
for the ttnn backends too; a new file needs no line elsewhere. A package of your own brings cases the same way: an
entry point of the group ``refsim.parity`` names such a function. It may put the checkpoints they need into
``parity.cases.checkpoints.MODELS`` first, and a kind of its own into ``parity.kinds.KINDS``.

Cases that share a checkpoint stand together, and within a module the heavy ones come last.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import FunctionType

from parity.cases import Case, Registry
from refsim.base.errors import UserError
from refsim.base.extensions import catalog

SUITES = ("smoke", "full")
ENTRY_POINTS = "refsim.parity"


@cache
def registry() -> Registry:
    """Return all cases; the smoke suite is the part of them whose ``suite`` says so."""
    cases = Registry()
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        import_module(f"{__name__}.{module}").add(cases)
    packages = catalog((), ENTRY_POINTS, FunctionType, lambda add: [_name(add)])
    cases.problems += packages.problems
    for add in packages.all:
        try:
            add(cases)
        except Exception as e:  # a package that cannot add its cases must not end a run of others
            cases.problems.append(f"{_name(add)} cannot add its cases ({type(e).__name__}: {e})")
    return cases


def _name(add: FunctionType) -> str:
    return f"{add.__module__}:{add.__qualname__}"


def suite_cases(suite: str, backend: str = "cpu") -> list[Case]:
    """Return the cases of a suite on a backend, in the order they run.

    Raises:
        UserError: there is no such suite.
    """
    if suite not in SUITES:
        raise UserError(f"suite '{suite}' does not exist; choose one of {', '.join(SUITES)}.")
    backends = "cpu" if backend == "cpu" else "ttnn"
    return [case for case in registry().cases if case.backends == backends and suite in ("full", case.suite)]
