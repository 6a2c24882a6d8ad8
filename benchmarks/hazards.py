"""What it costs to look for hazards: the same run with and without, in turn, in one process.

    cpu    seconds of CPU of all ranks (from the kernel's scheduler, all threads), which a busy machine disturbs least
    wall   seconds from handing out the job to the last rank's reply

Every pair gives one ratio with / without; printed are the medians over the pairs and their quartiles. The order inside
a pair alternates.

``python -m benchmarks.hazards [--pairs 12] [--json]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import psutil

from parity.cases import AttentionShape, Case, Layout, make_case, suite_cases
from parity.runners import CpuRunner
from refsim import launch
from refsim.runtime.pool import Zygote

FULL_LENGTH = make_case(
    "attention", "attention", Layout("t3k-1x8", "sp8"), AttentionShape(heads=38, n=4096, text=333), tag="1024px"
)
SMOKE = ("sd35_medium-t3k-cfg2_sp2_tp2-ring-fp32", "sd35_tiny-t3k-cfg2_sp2_tp2-ring-fp32")


def cpu_s() -> float:
    """Seconds of CPU that the ranks have used so far."""
    ranks = psutil.Process(Zygote.get()._process.pid).children()
    tasks = (task for rank in ranks for task in Path(f"/proc/{rank.pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(runner: CpuRunner, case: Case, detect: bool) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of one run."""
    with mock.patch.object(launch, "execute", partial(launch.execute, detect=detect)):
        before = cpu_s()
        result = runner.simulate(case, 0)
        assert not result.hazards
        return cpu_s() - before, result.wall_s


def compare(runner: CpuRunner, case: Case, pairs: int) -> dict:
    """Ratios with / without over ``pairs`` pairs of runs."""
    measure(runner, case, True), measure(runner, case, False)
    found: dict[str, list[float]] = {"cpu": [], "wall": []}
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        run = {detect: measure(runner, case, detect) for detect in order}
        for detect, measured in run.items():
            seconds[detect].append(measured)
        for i, name in enumerate(found):
            found[name].append(run[True][i] / run[False][i])
    record: dict = {"case": case.id, "pairs": pairs}
    for i, (name, ratios) in enumerate(found.items()):
        low, middle, high = statistics.quantiles(ratios, n=4)
        without = statistics.median(measured[i] for measured in seconds[False])
        record[name] = {"ratio": middle, "quartiles": [low, high], "without_s": without}
    return record


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hazards", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    smoke = {case.id: case for case in suite_cases("smoke")}
    cases = [replace(FULL_LENGTH, needs_gb=4), *(smoke[id] for id in SMOKE)]
    records = []
    with CpuRunner() as runner:
        for case in cases:
            print(f"{case.id} ...", file=sys.stderr, flush=True)
            records.append(compare(runner, case, options.pairs))
            r = records[-1]
            if not options.json:
                for name in ("cpu", "wall"):
                    low, high = r[name]["quartiles"]
                    print(
                        f"{case.id}: {name} with / without {r[name]['ratio']:.3f} "
                        f"(quartiles {low:.3f} to {high:.3f}, {r[name]['without_s']:.2f} s without, {r['pairs']} pairs)"
                    )
    if options.json:
        print(json.dumps(records, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
