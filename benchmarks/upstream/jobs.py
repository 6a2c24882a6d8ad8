"""Parts of a long run of somebody's tests: each a pytest process with a time of its own, restartable.

A job's lines go to ``<name>.jsonl`` while it runs and its end is noted in ``<name>.done``, so that a run that was
broken off goes on with the jobs that have no end, and their cases that have no line: ``<name>.before`` holds the lines
that there were, ``<name>.by`` who gave them. A job that takes too long is ended; the tests that gave a line until then
count, and the report names the jobs that were cut. ``jobs.json`` holds the names of all jobs of a folder.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import refsim
from parity.measure.machine import git

ROOT = Path(__file__).parents[2]
UNIT = "tests/ttnn/unit_tests"
NIGHTLY = "tests/ttnn/nightly/unit_tests"
DIT = "models/tt_dit/tests"
PIPELINES = ("test_pipeline_", "test_performance_", "test_stability_", "test_transformer_accuracy")
"""Files of tt_dit that run whole pipelines with downloaded weights and prompts; they are left out and listed."""
FUNCTIONS_PER_JOB = 250
AGAIN = "-again"
"""Ends the names of jobs that run cases once more by themselves; their verdicts count."""
MORE_TIME = 3
"""So many times its seconds has a case that is run by itself, as one has on a machine that is busy with others."""
START_S = 60.0
"""What a process takes to begin, and to end after a case that was killed."""
JOBS = "jobs.json"
_BROKEN = re.compile(
    r"^ImportError while loading conftest '(.+)/conftest\.py'\.$.*?^E +([^\n]+)$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Job:
    """One pytest process.

    Attributes:
        name: of its files, and the directory in the report.
        files: paths in the tree.
        options: more of pytest's.
        environment: variables over the run's own.
        limit_s: after so long it is ended.
    """

    name: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    limit_s: float = 900.0


def functions(path: Path) -> int:
    """How many test functions a file defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return sum(isinstance(n, ast.FunctionDef) and n.name.startswith("test") for n in ast.walk(tree))


def directories(tree: Path, below: str, depth: int) -> dict[str, list[str]]:
    """Test files below a folder, by the first ``depth`` folders of their path there; files of one name only."""
    folders: dict[str, list[str]] = {}
    for path in sorted((tree / below).rglob("test_*.py")):
        folder = "/".join(path.relative_to(tree / below).parts[:-1][:depth])
        folders.setdefault(folder or ".", []).append(path.relative_to(tree).as_posix())
    return folders


def unit_jobs(tree: Path, cases: int, per_function: int, seed: str, limit_s: float, below: str = UNIT) -> list[Job]:
    """Jobs that draw about ``cases`` cases of ttnn's tests, in proportion to the functions of each directory."""
    parts = []
    for folder, files in directories(tree, below, 2).items():
        for number, part in enumerate(_parts(tree, files)):
            parts.append((f"unit-{folder.replace('/', '-')}-{number}", part, sum(functions(tree / f) for f in part)))
    every = sum(count for _, _, count in parts)
    jobs = []
    for name, files, count in parts:
        quota = round(cases * count / every)
        if quota:
            sample = (f"--ttnn-mock-sample={per_function}", f"--ttnn-mock-cases={quota}", f"--ttnn-mock-seed={seed}")
            jobs.append(Job(name, tuple(files), ("--ttnn-mock=auto", *sample), limit_s=limit_s))
    return jobs


def file_jobs(tree: Path, count: int, seed: str, limit_s: float) -> list[Job]:
    """Jobs of every case of ``count`` of ttnn's unit test files, drawn by ``seed``."""
    files = [file for folder in directories(tree, UNIT, 2).values() for file in folder]
    drawn = Random(seed).sample(sorted(files), min(count, len(files)))
    names = ["file-" + Path(file).relative_to(UNIT).with_suffix("").as_posix().replace("/", "-") for file in drawn]
    return [Job(name, (file,), ("--ttnn-mock=auto",), limit_s=limit_s) for name, file in zip(names, drawn, strict=True)]


def _parts(tree: Path, files: Sequence[str]) -> Iterable[list[str]]:
    part: list[str] = []
    count = 0
    for file in files:
        more = functions(tree / file)
        if part and count + more > FUNCTIONS_PER_JOB:
            yield part
            part = []
            count = 0
        part.append(file)
        count += more
    if part:
        yield part


def dit_jobs(
    tree: Path, per_function: int, seed: str, limit_s: float, numerics: str = "off", mesh: str = "t3k"
) -> list[Job]:
    """Jobs of tt_dit's tests, a directory each; whole pipelines are left out.

    Args:
        numerics: how values are rounded, as ``--ttnn-mock-numerics`` has it.
        mesh: the eight devices of a ``t3k``, or a ``galaxy``, for the cases that ask for more.
    """
    jobs = []
    for folder, files in directories(tree, DIT, 2).items():
        chosen = [f for f in files if not Path(f).name.startswith(PIPELINES)]
        if not chosen or folder.split("/")[0] not in ("unit", "models", "blocks", "encoders"):
            continue
        options = [f"--ttnn-mock={mesh}", f"--ttnn-mock-seed={seed}", f"--ttnn-mock-numerics={numerics}"]
        options += ["-p", "benchmarks.upstream.weights"]
        options += ["-p", "benchmarks.upstream.select", f"--ttnn-mock-sample={per_function}"]
        random = {"DIT_UNIT_TEST": "0" if folder.endswith("umt5") else "1"}  # umt5's own random model has 24 layers
        random |= {"UPSTREAM_GALAXY": "1"} if mesh == "galaxy" else {}
        jobs.append(Job(f"dit-{folder.replace('/', '-')}", tuple(chosen), tuple(options), random, limit_s))
    return jobs


def command(job: Job, lines: Path, timeout_s: float) -> list[str]:
    """Return the command of a job's process."""
    plugin = ["-p", "tt_impl.harness.plugin"] if not _installed() else []
    common = ["-q", "-rE", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=no"]
    addopts = ["-o", "addopts=--import-mode=importlib", f"--timeout={timeout_s:g}"]
    mock = ["--ttnn-mock-fallback", f"--ttnn-mock-json={lines}"]
    return [sys.executable, "-m", "pytest", *plugin, *addopts, *common, *mock, *job.options, *job.files]


def _installed() -> bool:
    """Whether pytest finds the plugin by itself (entry point ``pytest11``)."""
    from importlib.metadata import entry_points

    return any(entry.value.startswith("tt_impl.harness.plugin") for entry in entry_points(group="pytest11"))


def environment(tree: Path, job: Job) -> dict[str, str]:
    """Variables of a job's process: the tree first, because its ``tests`` is a package."""
    path = os.pathsep.join([str(tree), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    return {**os.environ, "OMP_NUM_THREADS": "1", **settings, **job.environment}


def own_version() -> str:
    """Return this project's version and commit, and whether there are changes that no commit has (reports are none)."""
    commit = git(ROOT, "rev-parse", "--short=8", "HEAD") or "an unknown commit"
    changed = git(ROOT, "status", "--porcelain", "--", ".", ":!reports")
    return f"refsim {refsim.__version__} at {commit}{' with uncommitted changes' if changed else ''}"


def run(
    tree: Path, jobs: Sequence[Job], out: Path, workers: int, timeout_s: float, only: str = "",
    passing: Path | None = None,
) -> None:  # fmt: skip
    """Run the jobs whose names hold ``only`` and that have no end yet, ``workers`` at once, and print each end.

    Then run by themselves the cases that were killed or out of time, and those of :func:`passing_elsewhere`.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / JOBS).write_text(json.dumps([job.name for job in jobs]) + "\n", encoding="utf-8")
    jobs = [job for job in jobs if only in job.name]
    todo = [job for job in jobs if not (out / f"{job.name}.done").exists()]
    todo.sort(key=lambda job: -len(job.files))  # the longest first
    print(f"{len(todo)} of {len(jobs)} jobs to run, {workers} at once", flush=True)
    with ThreadPoolExecutor(workers) as pool:
        for number, text in enumerate(pool.map(lambda job: _run_one(tree, job, out, timeout_s), todo), 1):
            print(f"[{number}/{len(todo)}] {text}", flush=True)
    for job in jobs:
        if again := _again(job, out, timeout_s, passing):
            print(f"alone: {_run_one(tree, again, out, MORE_TIME * timeout_s)}", flush=True)


def _again(job: Job, out: Path, timeout_s: float, passing: Path | None = None) -> Job | None:
    """Cases that were killed, which a machine does that is out of memory, or out of time: to be run by themselves.

    So are those that pass in the run of folder ``passing``, see :func:`passing_elsewhere`.

    Those that a run was broken off before have a job of their own, with the next number.
    """
    before = _alone(job, out)
    ran = {verdict["id"] for path in before for verdict in _verdicts(path)}
    ended = [v["id"] for v in _verdicts(out / f"{job.name}.jsonl") if v["category"] == "timeout" or killed(v)]
    more = [] if passing is None else passing_elsewhere(job, out, passing)
    ended = [case for case in dict.fromkeys(more + ended) if case not in ran]
    if not ended:
        return None
    name = f"{job.name}-{len(before) + 1}{AGAIN}" if before[0].exists() else f"{job.name}{AGAIN}"
    limit_s = max(job.limit_s, len(ended) * (MORE_TIME * timeout_s + START_S))
    options = tuple(o for o in job.options if not o.startswith(("--ttnn-mock-sample", "--ttnn-mock-cases")))
    whole = {**job.environment, "OMP_NUM_THREADS": str(os.cpu_count() or 1)}  # nothing runs beside it
    return replace(job, name=name, files=tuple(ended), options=options, environment=whole, limit_s=limit_s)


def passing_elsewhere(job: Job, out: Path, passing: Path) -> list[str]:
    """Return the quickest case that passes in another run, of every test function that has no passing case in this."""

    def cases(folder: Path) -> list[dict[str, Any]]:
        return [
            case
            for path in (folder / f"{job.name}.jsonl", *_alone(job, folder))
            for case in _verdicts(path)
            if case["outcome"] == "passed"
        ]

    done = {_function(case) for case in cases(out)}
    quickest: dict[str, dict[str, Any]] = {}
    for case in sorted(cases(passing), key=lambda case: case["seconds"]):
        quickest.setdefault(_function(case), case)
    return [case["id"] for function, case in quickest.items() if function not in done]


def _alone(job: Job, folder: Path) -> list[Path]:
    """Files of lines of cases that were run by themselves; the first one may not exist."""
    return [folder / f"{job.name}{AGAIN}.jsonl", *sorted(folder.glob(f"{job.name}-[0-9]*{AGAIN}.jsonl"))]


def _function(case: dict[str, Any]) -> str:
    return case["id"].partition("[")[0]


def _verdicts(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []


def killed(verdict: dict[str, Any]) -> bool:
    """Whether the case's process was killed, as a system does that is out of memory."""
    return verdict["category"] == "crash" and "SIGKILL" in verdict["message"]


def _run_one(tree: Path, job: Job, out: Path, timeout_s: float) -> str:
    begin = time.monotonic()
    left = []
    lines, before, by = (out / f"{job.name}.{end}" for end in ("jsonl", "before", "by"))
    _append(by, f"{own_version()}\n")
    if lines.exists():
        text = lines.read_text(encoding="utf-8")
        _append(before, text[: text.rfind("\n") + 1])  # not a line that was cut short
    former = _verdicts(before)
    if former:
        variables = {**job.environment, "UPSTREAM_FORMER": str(before)}
        job = replace(job, options=(*job.options, "-p", "benchmarks.upstream.resume"), environment=variables)
    code, cut = _process(tree, job, out, timeout_s)
    while (broken := _broken(tree, job, out)) and code == 4:
        folder, why = broken
        left += [(file, why) for file in job.files if file.startswith(f"{folder}/")]
        job = replace(job, files=tuple(file for file in job.files if not file.startswith(f"{folder}/")))
        if not job.files:
            break
        code, cut = _process(tree, job, out, timeout_s)
    verdicts = former + _verdicts(lines)
    for file, why in left:
        verdicts.append({"id": file, "outcome": "failed", "category": "version", "message": why})
    # Messages name files of the tree and of packages; where these and one's home lie is nobody's business.
    text = "".join(f"{json.dumps(verdict)}\n" for verdict in verdicts)
    for place in (tree, sys.prefix):
        text = text.replace(f"{place}/", "")
    lines.write_text(text.replace(f"{Path.home()}/", "~/"), encoding="utf-8")
    seconds = round(time.monotonic() - begin, 1)
    versions = sorted(set(by.read_text(encoding="utf-8").splitlines()))
    end = {"name": job.name, "files": job.files, "code": code, "cut": cut, "seconds": seconds, "by": versions}
    (out / f"{job.name}.done").write_text(json.dumps(end) + "\n", encoding="utf-8")
    for aside in (before, by):
        aside.unlink(missing_ok=True)
    count = len(verdicts) - len(former)
    return f"{job.name}: {count - len(left)} tests in {seconds:.0f} s{', cut' if cut else ''}"


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _broken(tree: Path, job: Job, out: Path) -> tuple[str, str] | None:
    """Return the folder of a conftest that cannot be imported, for which pytest runs nothing at all, and the error."""
    broken = _BROKEN.search((out / f"{job.name}.log").read_text(encoding="utf-8", errors="replace"))
    if broken is None or not Path(broken[1]).is_relative_to(tree):
        return None
    folder = Path(broken[1]).relative_to(tree).as_posix()
    return (folder, broken[2]) if any(file.startswith(f"{folder}/") for file in job.files) else None


def _process(tree: Path, job: Job, out: Path, timeout_s: float) -> tuple[int, bool]:
    """Run a job's process to its end or to its time: (exit status, whether it was ended)."""
    lines = out / f"{job.name}.jsonl"
    lines.unlink(missing_ok=True)
    with open(out / f"{job.name}.log", "w", encoding="utf-8") as log, TemporaryDirectory() as cache:
        process = subprocess.Popen(
            command(job, lines, timeout_s),
            cwd=tree,
            env=environment(tree, job)
            | {"TT_DIT_CACHE_DIR": cache, "UPSTREAM_LEFT_OUT": str(out / f"{job.name}.left")},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(job.limit_s), False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return process.wait(), True
