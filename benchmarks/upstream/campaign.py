"""Upstream's own tests on the mock: ttnn's unit tests, tt_dit's tests, and bugs seeded into tt_dit.

    export TT_METAL_TREE=/path/to/tt-metal
    python -m benchmarks.upstream unit --out out/upstream      a sample of ttnn's unit tests
    python -m benchmarks.upstream nightly --out out/upstream   a sample of those that ttnn runs at night
    python -m benchmarks.upstream files --out out/upstream     every case of some files of unit tests
    python -m benchmarks.upstream tt-dit --out out/upstream    tt_dit's, with random weights
    python -m benchmarks.upstream galaxy --out out/upstream    tt_dit's for more than eight devices
    python -m benchmarks.upstream numerics --out out/upstream  tt_dit's, rounded as kernels round
    python -m benchmarks.upstream bugs --out out/upstream      bugs seeded into tt_dit
    python -m benchmarks.upstream attention --out out/upstream attention of Wan's 32,760 and 75,600 tokens
    python -m benchmarks.upstream memory --out out/upstream    memory of tt_dit's whole transformers on a Galaxy
    python -m benchmarks.upstream report --out out/upstream    reports/upstream.md and .json
    python -m benchmarks.upstream all --out out/upstream       all of it

Nothing of the tree is copied or changed. Every step goes on where it was broken off: a finished job is not run again
(``--again`` forgets former runs). Without the tree there is nothing to run, which is said.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from benchmarks import tt_dit
from benchmarks.upstream import attention, jobs, memory, page, seed
from parity.measure.machine import git
from refsim.runtime.host_memory import total_bytes

COMMIT = "622c6fb9"
STEPS = ("unit", "nightly", "files", "tt-dit", "galaxy", "numerics", "bugs", "attention", "memory", "report")


def commit(checkout: Path) -> str:
    """Return the checkout's commit as git tells it, or by its files, or that it is unknown."""
    if name := git(checkout, "rev-parse", "--short=8", "HEAD"):
        return name
    return tt_dit.commit(checkout)


def _settings(out: Path, arguments: argparse.Namespace, checkout: Path) -> None:
    """Note what the runs of a folder were asked for; another question needs another folder."""
    wanted = {"commit": commit(checkout), "seed": arguments.seed, "cases": arguments.cases}
    path = out / "settings.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != wanted:
        sys.exit(f"{out} holds runs of other settings; choose another --out, or --again to forget them.")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(wanted) + "\n", encoding="utf-8")


def _absolute(text: str) -> Path:
    """Return an absolute path: the tests run in the checkout's folder, where a relative one names another place."""
    return Path(text).absolute()


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(prog="benchmarks.upstream", description=__doc__.splitlines()[0])
    made.add_argument("step", choices=(*STEPS, "all"))
    made.add_argument("--out", type=_absolute, required=True, help="folder of the runs")
    made.add_argument("--reports", type=Path, default=Path("reports"), help="folder of upstream.md and upstream.json")
    made.add_argument("--cases", type=int, default=3600, help="cases to draw from ttnn's unit tests")
    made.add_argument("--files", type=int, default=40, help="files to draw from ttnn's unit tests")
    made.add_argument("--seed", default="0", help="another seed draws another sample")
    made.add_argument(
        "--per-function",
        type=int,
        default=0,
        help="cases of one function; 0: 4 of ttnn's, 2 of tt_dit's, 1 on a galaxy or with numerics",
    )
    made.add_argument("--workers", type=int, default=2, help="processes at once")
    made.add_argument(
        "--case-timeout", type=float, default=0, help="seconds; 0: 60 of ttnn's, 960 of tt_dit's, 1800 on a galaxy"
    )
    made.add_argument(
        "--job-limit",
        type=float,
        default=0,
        help="seconds after which a directory's process is ended; 0: 1200 of ttnn's, 7200 of tt_dit's",
    )
    made.add_argument("--only", default="", help="jobs or bugs whose names hold this")
    made.add_argument(
        "--passing",
        type=_absolute,
        help="numerics: of functions without a passing case also one that passes in this folder of tt-dit's lines",
    )
    made.add_argument("--again", action="store_true", help="forget former runs")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run a step; returns the exit status."""
    arguments = parser().parse_args(argv)
    checkout = tt_dit.tree(jobs.UNIT)
    if checkout is None:
        print(tt_dit.WITHOUT)
        return 0
    if arguments.again and arguments.out.exists():
        if not (arguments.out / "settings.json").exists():
            sys.exit(f"{arguments.out} holds no runs to forget; --again removes the whole folder.")
        shutil.rmtree(arguments.out)
    _settings(arguments.out, arguments, checkout)
    current = commit(checkout)
    if current != COMMIT:
        print(f"the checkout is at {current}, not at {COMMIT}: results are not comparable with the committed ones.")
    for step in STEPS if arguments.step == "all" else (arguments.step,):
        _step(step, arguments, checkout)
    return 0


def _step(step: str, arguments: argparse.Namespace, checkout: Path) -> None:
    out = arguments.out
    only = arguments.only
    if step == "report":
        page.write(out, arguments.reports, _facts(checkout, arguments.seed))
        return
    if step == "bugs":
        names = [name for name in seed.BUGS if only in name]
        seed.run(checkout, out / "bugs", names, arguments.workers)
        return
    if step == "attention":
        attention.run(out / step, only)
        return
    if step == "memory":
        memory.run(checkout, out / step, only)
        return
    if step in ("unit", "nightly"):
        per = arguments.per_function or 4
        timeout = arguments.case_timeout or 60
        below = jobs.UNIT if step == "unit" else jobs.NIGHTLY
        planned = jobs.unit_jobs(checkout, arguments.cases, per, arguments.seed, arguments.job_limit or 1200, below)
    elif step == "files":
        timeout = arguments.case_timeout or 60
        planned = jobs.file_jobs(checkout, arguments.files, arguments.seed, arguments.job_limit or 1200)
    else:
        per = arguments.per_function or (2 if step == "tt-dit" else 1)
        timeout = arguments.case_timeout or (1800 if step == "galaxy" else 960)
        limit_s = arguments.job_limit or 7200
        numerics = "fast" if step == "numerics" else "off"
        mesh = "galaxy" if step == "galaxy" else "t3k"
        planned = jobs.dit_jobs(checkout, per, arguments.seed, limit_s, numerics, mesh)
    passing = arguments.passing if step == "numerics" else None
    jobs.run(checkout, planned, out / step, arguments.workers, timeout, only, passing)


def _facts(checkout: Path, chosen: str) -> dict[str, str]:
    """Return what a report says of where its numbers come from; ``chosen`` is the seed of the sample."""
    memory = total_bytes()
    size = "an unknown memory" if memory is None else f"{memory / 2**30:.1f} GiB"
    return {
        "commit": commit(checkout),
        "ttnn": metadata.version("ttnn"),
        "seed": chosen,
        "refsim": jobs.own_version(),
        "machine": f"{os.cpu_count()} cores and {size}",
    }


if __name__ == "__main__":
    sys.exit(main())
