"""Run under torchrun: a program of the tests on two ranks, with the command line's report of what goes wrong.

torchrun --nproc-per-node 2 -m tests.refsim.runtime.torchrun_worker PROGRAM TIMEOUT_S ARGUMENTS_AS_JSON
"""

from __future__ import annotations

import json
import sys

from refsim.base.errors import RankFailure
from refsim.base.options import RunOptions
from refsim.cli import process
from refsim.runtime import launch


def main(program: str, timeout_s: str, arguments: str) -> int:
    options = RunOptions.of(mesh="n300", parallel="sp2", timeout_s=float(timeout_s))
    module = program if ":" in program else f"programs:{program}"
    try:
        result = launch.execute(f"tests.refsim.{module}", options, json.loads(arguments))
    except RankFailure as e:
        return process.rank_failed(e)
    if result is not None:
        print(json.dumps(result.values))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
