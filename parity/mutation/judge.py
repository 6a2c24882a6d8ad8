"""In the child: run cases against changed source until one of them fails."""

from __future__ import annotations

import re
from pathlib import Path

from parity.cases.suites import suite_cases
from parity.mutation import recorder
from parity.mutation.child import Hear
from parity.run.backends import make_runner
from parity.run.case import run_case
from parity.run.runner import Runner
from refsim.runtime import launch

_NO_MEMORY = re.compile(r"of memory when the machine had")
"""What other programs did to a run says nothing of the change."""


def run_cases(tell: Hear, ids: list[str], backend: str, seed: int, timeout_s: float, cache: str) -> None:
    """Run the named cases in this order and tell the verdict of each, up to the first that fails.

    Told are ``case``, ``verdict``, ``reason`` and ``error``, the traceback of what was no judgement.

    Args:
        timeout_s: the longest that a rank may wait for another, or be silent.
        cache: folder for what no mutation alters, see :mod:`parity.mutation.cache`.
    """
    launch.warm_up()  # forked while this process has one thread
    known = {case.id: case for case in suite_cases("full", backend)}
    cases = [(known[name], seed + known[name].seed) for name in ids]
    with recorder.every_job(timeout_s=timeout_s), _runner(backend, Path(cache)) as runner:
        for index, (case, its_seed) in enumerate(cases):
            record = run_case(runner, case, backend, its_seed)
            no_memory = _NO_MEMORY.search(record.reason) is not None
            verdict = "skipped" if no_memory else record.verdict
            tell({"case": case.id, "verdict": verdict, "reason": record.reason, "error": record.error})
            if verdict == "failed":
                return
            if index == 0:
                runner.plan(cases[1:])  # most mutations end with their first case: nothing of others is begun


def _runner(backend: str, cache: Path) -> Runner:
    if backend == "cpu":
        return make_runner(backend)
    from parity.mutation.cache import CachedRunner

    return CachedRunner(backend, cache)
