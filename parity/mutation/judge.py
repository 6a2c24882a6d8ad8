"""In the child: run cases against changed source until one of them fails."""

from __future__ import annotations

import re

from parity import gate
from parity.lines import recorder
from parity.lines.child import Hear
from parity.suites import suite_cases
from refsim.runtime import launch

_NO_MEMORY = re.compile(r"of memory when the machine had")
"""What other programs did to a run says nothing of the change."""


def run_cases(tell: Hear, ids: list[str], backend: str, seed: int, timeout_s: float) -> None:
    """Run the named cases in this order and tell the verdict of each, up to the first that fails.

    Told are ``case``, ``verdict``, ``reason`` and ``error``, the traceback of what was no judgement.

    Args:
        timeout_s: the longest that a rank may wait for another, or be silent.
    """
    launch.warm_up()  # forked while this process has one thread
    known = {case.id: case for case in suite_cases("full", backend)}
    with recorder.every_job(timeout_s=timeout_s), gate.make_runner(backend) as runner:
        for name in ids:
            case = known[name]
            record = gate.run_case(runner, case, backend, seed + case.seed)
            no_memory = _NO_MEMORY.search(record.reason) is not None
            verdict = "skipped" if no_memory else record.verdict
            tell({"case": name, "verdict": verdict, "reason": record.reason, "error": record.error})
            if verdict == "failed":
                return
