"""Upstream's unit tests of attention and collectives, at their shapes: ttnn's checks of sizes and memory, and values.

Shapes that take minutes or many gigabytes run with ``TT_UPSTREAM_SHAPES=full`` in the environment only.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.tt_impl.cases.upstream import upstream_ccl, upstream_ring, upstream_wan
from tests.tt_impl.worker import TIMEOUT_S, Case, Outcome, run_cases
from tt_impl.run.launch import Worker

FULL = os.environ.get("TT_UPSTREAM_SHAPES") == "full"
LARGE = ("wan_", "narrow_prompt_126", "mochi", "t3k_long", "batch_", "dim_2_one", "dim_1_of_four")
"""Parts of the names of cases that hold gigabytes or take more than a few seconds."""


def _is_large(name: str) -> bool:
    return any(part in name for part in LARGE)


def _ring_cases(mesh: str, on_submesh: bool) -> list[Case]:
    """Cases of one mesh; sd35's run on a part of it, after which a process cannot use the whole any more."""
    names = [name for name in upstream_ring.CASES if name.startswith(f"{mesh}_")]
    return [("upstream_ring", name) for name in names if name.endswith("sd35") == on_submesh]


ON_T3K_ROW = [("upstream_ccl", name) for name in upstream_ccl.CASES]
RUNS = [
    *((mesh, _ring_cases(mesh, part)) for mesh in upstream_ring.SETUPS for part in (False, True)),
    *(
        (mesh, [("upstream_wan", name) for name in upstream_wan.CASES if name.endswith(mesh)])
        for mesh in upstream_wan.MESHES
    ),
    *(("t3k-1x8", ON_T3K_ROW[first::3]) for first in range(3)),
]
"""Mesh, and the cases that run on it one after the other in one process."""
ALL = [case for _, cases in RUNS for case in cases]
ON_SUBMESHES = [case for mesh in upstream_ring.SETUPS for case in _ring_cases(mesh, True)]
SKIPPED = [] if FULL else [case for case in ALL if _is_large(case[1])]
REASON = f"{len(SKIPPED)} of {len(ALL)} upstream shapes take up to minutes and 12 GB: TT_UPSTREAM_SHAPES=full runs them"
LARGE_TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def outcome_of(worker: Worker) -> Callable[[Case], Outcome]:
    """The outcome of a case; with the first one asked for, all small ones of its process are run."""
    done: dict[Case, Outcome] = {}

    def outcome(case: Case) -> Outcome:
        if case not in done:
            mesh, cases = next(run for run in RUNS if case in run[1])
            alone = _is_large(case[1])
            together = [case] if alone else [other for other in cases if not _is_large(other[1])]
            done.update(run_cases(worker, together, mesh, LARGE_TIMEOUT_S if alone else TIMEOUT_S).outcomes)
        return done[case]

    return outcome


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    if case in SKIPPED:
        return [pytest.mark.skip(reason=REASON)]
    return [pytest.mark.timeout(LARGE_TIMEOUT_S)] if _is_large(case[1]) else []


@pytest.mark.parametrize("case", [pytest.param(case, marks=_marks(case)) for case in ALL], ids="-".join)
def test_shape(case: Case, outcome_of: Callable[[Case], Outcome]) -> None:
    error = outcome_of(case).error
    assert error is None, error
