"""Mutations of the mock and of the harness, judged by their own tests: which changes of their source nobody notices.

    python -m benchmarks.mock_mutation --count 300 --budget 2h --out out/mutation_mock

``refsim faults mutate`` judges by parity cases; what judges other people's programs is judged here by the cases of
``tests/tt_impl/cases`` and the programs of ``tests/harness/programs``, many in one process, and by the tests of
``tests/harness`` and ``tests/tt_impl``, which a wheel does not have. First all run once, unchanged, and tell which
lines they execute (stored in ``--out``); then each change runs those that execute its line until one fails.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.cli.mutate import seconds
from parity.mutation import campaign, coverage, score
from parity.mutation.campaign import in_turn
from parity.mutation.child import Ended, Hear
from parity.mutation.measure import Asked, Executed, LineMap, Progress
from parity.mutation.source import outside_functions
from parity.mutation.tree import PACKAGES, ROOT, Tree, files_under
from refsim.base import scratch

FOLDERS = ["tt_impl/mock", "tt_impl/harness"]
RULES = "tt_impl/mock/rules"
"""Whose lines are counted that a case executes which compares values or findings."""
PROGRAMS = "mistakes padding replays cached variants".split()
TESTS = ["tests/harness", "tests/tt_impl"]
BY_CASES = ("mock/test_shadow.py", "mock/test_upstream_shapes.py", "test_lines.py")
"""Files of tests that are left out: their cases run as such, or they measure."""
FOLDERS_BESIDE = ("tests", "benchmarks", "docs", "examples", "reports")
BESIDE = (*FOLDERS_BESIDE, "pyproject.toml", "constraints.txt", "README.md", "noxfile.py")
"""What tests read besides the packages."""
SIGNATURES = "signatures-defaults-all"
"""The case that reads what all rules take."""
SUITE_S = 5400.0
EACH_S = 240.0
"""The longest that the tests of one change run."""
RULES_AT_ONCE = 240
TESTS_AT_ONCE = 160


class MockTests:
    """Cases on meshes that stay open, then tests of pytest; see :class:`parity.mutation.campaign.Judge`."""

    def __init__(self, stored_at: Path, only: Sequence[str] = (), tests: Sequence[str] = TESTS) -> None:
        """Keep the map of lines in ``stored_at``; ``only``: the modules of cases that judge; ``tests``: of pytest."""
        self._stored_at = stored_at
        self._only = only
        self._tests = tests
        named = ((case, mesh) for mesh, cases in meshes().items() for case in cases)
        self._meshes = {"-".join(case): mesh for case, mesh in named if not only or case[1] in only}
        self._processes: dict[str, _Live] = {}
        self._unchanged = scratch.Folder("unchanged")
        self._recorded = LineMap([])

    def compared(self) -> LineMap:
        """Return the lines of the cases that compare values, or findings, with what is expected."""
        tests = ("test-", SIGNATURES)
        return LineMap([case for case in self._recorded.cases if not case.case.startswith(tests)])

    def recorded(self, tree: Tree, progress: Progress) -> LineMap:
        """Copy the tests beside the packages, and return what each executes, stored or new."""
        self._recorded = self._stored_or_new(tree, progress)
        return self._recorded

    def _stored_or_new(self, tree: Tree, progress: Progress) -> LineMap:
        for name in BESIDE:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree.root / name)
        shutil.copy(ROOT / "tests/tt_impl/lines.py", tree.root / "sitecustomize.py")
        shutil.copytree(tree.root, self._unchanged.name, dirs_exist_ok=True)
        key = _digest(*self._only, *self._tests)
        if self._stored_at.is_file():
            stored = json.loads(self._stored_at.read_text(encoding="utf-8"))
            if stored["key"] == key:
                return LineMap([Executed(**case) for case in stored["cases"]])
        outside = {file: outside_functions(tree.read(file)) for file in files_under(FOLDERS)}
        cases: list[Executed] = []

        def hear(message: dict[str, Any]) -> None:
            # What a file does on import is executed by every case that runs some of it.
            lines = {file: sorted({*numbers, *outside[file]}) for file, numbers in message["lines"].items()}
            if message["case"] == SIGNATURES:  # it runs no rule, and looks at what every one takes
                lines = {file: [*range(1, tree.read(file).count("\n") + 1)] for file in files_under([RULES])}
            verdict = message["verdict"]
            cases.append(Executed(message["case"], verdict, message["reason"], message["seconds"], lines))
            progress(cases[-1])

        for command in self._commands(tree, [*self._meshes], record=True):
            ended = _listen(command, tree, SUITE_S, hear)
            if ended.why:
                raise SystemExit(f"the recording of {' '.join(command[1:3])} broke off: {ended.why}")
        self._stored_at.parent.mkdir(parents=True, exist_ok=True)
        rows = [vars(case) for case in cases]
        self._stored_at.write_text(json.dumps({"key": key, "cases": rows}), encoding="utf-8")
        return LineMap(cases)

    def ordered(self, cases: list[Executed], file: str) -> list[Executed]:
        """Return those that run on open meshes first, mesh by mesh, then tests."""
        by_mesh: dict[str, list[Executed]] = {}
        named = [case for case in cases if case.case in self._meshes and case.case != SIGNATURES]
        last = [case for case in cases if case.case == SIGNATURES]
        for case in in_turn(named, file)[:RULES_AT_ONCE] + last:
            by_mesh.setdefault(self._meshes[case.case], []).append(case)
        tests = [case for case in cases if case.case not in self._meshes]
        return [case for mesh in by_mesh.values() for case in mesh] + in_turn(tests, file)[:TESTS_AT_ONCE]

    def run(self, tree: Tree, cases: list[Executed], limit_s: float, hear: Hear) -> Ended:
        """Run them in processes, one for each mesh and one for all tests, until one fails."""
        failed = False

        def listen(message: dict[str, Any]) -> None:
            nonlocal failed
            failed = failed or message["verdict"] == "failed"
            hear(message)

        until = time.monotonic() + limit_s
        named = [case.case for case in cases]
        tests = [name for name in named if name not in self._meshes]
        for mesh, of_mesh in self._by_mesh(named).items():
            ended = self._live(tree, mesh).judge(of_mesh, until - time.monotonic(), listen)
            anew = ["-".join(case) for case in of_mesh] if ended is None else []
            for command in self._commands(tree, anew, record=False):
                ended = _listen(command, tree, until - time.monotonic(), listen)
            if failed or (ended and ended.why):
                return Ended() if failed or ended is None else ended
        for command in self._commands(tree, tests, record=False):
            ended = _listen(command, tree, until - time.monotonic(), listen)
            return Ended() if failed else ended
        return Ended()

    def close(self) -> None:
        """End the processes that hold meshes open."""
        for live in self._processes.values():
            live.end()
        self._unchanged.cleanup()

    def _live(self, tree: Tree, mesh: str) -> _Live:
        """Return the process that holds a mesh open: a new one before the first change, and after one that ended it."""
        if mesh not in self._processes or not self._processes[mesh].runs:
            self._processes[mesh] = _Live(tree, Path(self._unchanged.name), mesh)
        return self._processes[mesh]

    def _by_mesh(self, names: list[str]) -> dict[str, list[list[str]]]:
        by_mesh: dict[str, list[list[str]]] = {}
        for name in names:
            if name in self._meshes:
                by_mesh.setdefault(self._meshes[name], []).append(name.split("-", 2))
        return by_mesh

    def _commands(self, tree: Tree, names: list[str], *, record: bool) -> Iterator[list[str]]:
        """Yield what runs the named cases; when recording, all tests, too."""
        for mesh, cases in self._by_mesh(names).items():
            with scratch.Folder("judge") as folder:
                file = Path(folder, "cases.json")
                file.write_text(json.dumps(cases), encoding="utf-8")
                lines = Path(folder, "lines")
                lines.mkdir()
                yield ["-m", "tests.tt_impl.judge", mesh, str(file), *([str(lines)] if record else [])]
        tests = [name.removeprefix("test-") for name in names if name not in self._meshes]
        if tests or (record and self._tests):
            left_out = [f"--ignore=tests/tt_impl/{name}" for name in BY_CASES]
            options = ["-q", "-p", "no:cacheprovider", "-p", "tests.tt_impl.lines", "--rootdir", str(tree.root)]
            yield ["-m", "pytest", *options, *([*left_out, *self._tests] if record else ["-x", *tests])]


def meshes() -> dict[str, list[tuple[str, str, str]]]:
    """Return the cases by the mesh they run on: kind, module and name."""
    from tests.tt_impl.mock import test_upstream_shapes as upstream
    from tests.tt_impl.mock.test_shadow import MESHES
    from tests.tt_impl.worker import cases_of

    kernels = cases_of("ttlang") if importlib.util.find_spec("ttl") else []
    shapes = {case: mesh for mesh, run in upstream.RUNS for case in run if mesh in MESHES.values()}
    shapes = {case: mesh for case, mesh in shapes.items() if case not in upstream.SKIPPED + upstream.ON_SUBMESHES}
    cases: dict[str, list[tuple[str, str, str]]] = {}
    for (module, name), mesh in (MESHES | shapes | dict.fromkeys(kernels, "bh-qb-1x4")).items():
        cases.setdefault(mesh, []).append(("rule", module, name))
    for module in PROGRAMS:
        programs = importlib.import_module(f"tests.harness.programs.{module}")
        cases["t3k"] += [("program", module, name) for name in programs.EXPECTED]
    cases["t3k"] += [("log", "logs", "all"), ("signatures", "defaults", "all")]
    return cases


class _Live:
    """A process that holds a mesh open and judges one change of the source after the other."""

    def __init__(self, tree: Tree, unchanged: Path, mesh: str) -> None:
        arguments = ["-m", "tests.tt_impl.judge", mesh, str(tree.root)]
        self._process = _started(arguments, unchanged, {}, subprocess.DEVNULL, stdin=subprocess.PIPE)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def judge(self, cases: list[list[str]], limit_s: float, hear: Hear) -> Ended | None:
        """Run cases on the source as it is, up to the first that fails; None if it takes a process of its own."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(cases) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        for line in _lines(self._process, time.monotonic() + limit_s):
            if line is None:
                self.end()
                return Ended(f"no end in {limit_s:.0f} s", out_of_time=True)
            if line.startswith(b"judge "):
                hear(_message(json.loads(line.removeprefix(b"judge "))))
            elif line in (b"judged", b"anew"):
                return Ended() if line == b"judged" else None
        return None  # it is gone; a new one will tell why

    def end(self) -> None:
        _kill(self._process)


def _started(
    arguments: list[str], root: Path, variables: dict[str, str], errors: Any, stdin: Any = None
) -> subprocess.Popen[bytes]:
    """Start Python in a tree, in a group of processes of its own."""
    # Without the name of this process's own run, by which tests would meet a warm process of the unchanged program.
    inherited = {name: value for name, value in os.environ.items() if name != "REFSIM_TESTS_RUN"}
    environment = inherited | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=environment | variables,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _listen(arguments: list[str], tree: Tree, limit_s: float, hear: Hear) -> Ended:
    """Run Python in the tree and hear of every case it tells; killed after ``limit_s`` with all that it started."""
    with scratch.Folder("tests") as folder:
        variables = {"TMPDIR": folder}
        if "-x" not in arguments and "pytest" in arguments:
            Path(folder, "lines").mkdir()
            variables["REFSIM_MOCK_LINES_TO"] = str(Path(folder, "lines", "first.txt"))
        log = Path(folder, "log")
        with open(log, "wb") as errors:
            process = _started(arguments, tree.root, variables, errors)
        verdicts = 0
        try:
            for line in _lines(process, time.monotonic() + limit_s):
                if line is None:
                    return Ended(f"no end in {limit_s:.0f} s", out_of_time=True)
                if line.startswith(b"judge "):
                    verdicts += 1
                    hear(_message(json.loads(line.removeprefix(b"judge "))))
            code = process.wait()
        finally:
            _kill(process)
        # pytest gives 1 for a failed test, which was told.
        if code == 0 or (verdicts and code == 1 and "pytest" in arguments):
            return Ended()
        text = log.read_text(errors="replace")
        files = tuple(file for file in files_under(FOLDERS) if file in text)
        return Ended(f"exit code {code}: {text[-300:]}".strip(), files)


def _lines(process: subprocess.Popen[bytes], until: float) -> Iterator[bytes | None]:
    """Yield what a process prints, line by line; None when time is over."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                yield None
                return
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return
            *whole, rest = (rest + part).split(b"\n")
            yield from whole


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _message(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a campaign hears of a case; a failed assertion is a judgement and no error."""
    error = row["error"]
    verdict = "failed" if error else "skipped" if row.get("skipped") else "passed"
    reason = error.strip().splitlines()[-1] if error else ""
    judged = "AssertionError" in error or "assert " in error
    return row | {"verdict": verdict, "reason": reason, "error": "" if judged else error}


def _digest(*only: str) -> str:
    text = hashlib.sha256(" ".join(only).encode())
    for folder in (*PACKAGES, *TESTS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text.update(path.read_bytes())
    return text.hexdigest()


def main(argv: Iterable[str] | None = None) -> int:
    """Run a campaign; exit code 1 if fewer than ``--least`` percent are killed."""
    parser = argparse.ArgumentParser(prog="benchmarks.mock_mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FOLDERS, help="files, folders or patterns")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--budget", default="2h", help="time of the mutations, such as 90s, 20m or 2h")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=(), help="modules of cases that judge; no test, but --tests")
    parser.add_argument("--tests", nargs="*", help="tests of pytest that judge besides cases")
    parser.add_argument("--least", type=float, default=0.0, help="percent to be killed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recorded", type=Path, help="file of the lines that cases execute; by default in --out")
    asked = parser.parse_args(argv if argv is None else [*argv])
    tests = asked.tests if asked.tests is not None else () if asked.only else TESTS
    named = " and ".join(["cases", *tests])
    suite = {"suite": f"{named} of the mock", "backend": "ttnn-mock", "seed": asked.seed}
    judge = MockTests(asked.recorded or asked.out / "lines.json", asked.only, tests)
    done = campaign.run(
        judge,
        Asked(files_under(asked.files), **suite),
        asked.seed,
        campaign.Limits(asked.count, seconds(asked.budget, "--budget"), EACH_S),
        (
            lambda case: print(f"recorded {case.case} {case.verdict} {case.seconds:.1f} s {case.reason}", flush=True),
            lambda index, tried: print(score.line(index, tried), flush=True),
        ),
    )
    judge.close()
    score.write(done, asked.out)
    print(score.text(done))
    compared = judge.compared()
    rules = files_under([RULES])
    counts = [coverage.count(file, (ROOT / file).read_text(encoding="utf-8"), compared.lines(file)) for file in rules]
    coverage.write(Asked(rules, **suite), counts, compared, asked.out)
    percent = score.summary(done)["score"]
    return int(percent is None or percent < asked.least)


if __name__ == "__main__":
    sys.exit(main())
