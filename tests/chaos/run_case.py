"""Run one disturbance and say everything about it that is not as it has to be."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from refsim.base.errors import RankFailure
from refsim.runtime.host_memory import LIMIT_VARIABLE
from tests.chaos.cases import ON_RANKS, Disturbance
from tests.chaos.leaks import MARK, Watch, marked, wait_until
from tests.chaos.workload import MESHES, Files, Workload

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 5.0
"""From the event to the end of the run; a hang has the bound of the run before that."""
PATIENCE_S = 60.0
HANG_BOUND_S = {4: 3.0, 8: 3.0, 32: 8.0}
RANK_MEMORY_GB = 0.9
SAYS = {
    "kill": r"was killed by SIGKILL",
    "exception": r"failed .*ValueError: planted {number}\.",
    "exit": r"exited with code {number}",
    "hang": r"made no progress",
    "busy": r"made no progress",
    "memory_at_once": r"failed .*(can't allocate memory|MemoryError)",
    "memory_growing": r"held [0-9.]+ GB of memory",
}
FULL = r"(No space left on device|File too large)"


@dataclass
class Outcome:
    """What came of a disturbance; ``seconds`` from event to end where there is one, ``problems`` what is wrong."""

    case: Disturbance
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    message: str = ""
    where: str = ""

    @property
    def ok(self) -> bool:
        return not self.problems and not self.leaks

    def check(self, ok: bool, problem: str) -> None:
        if not ok:
            self.problems.append(problem)


def run_case(
    case: Disturbance,
    files: Files,
    folder: Path,
    *,
    hang_bound_s: float | None = None,
    within_s: float = WITHIN_S,
) -> Outcome:
    """Run ``case``; ``folder`` is for its own files."""
    folder.mkdir()
    if case.kind in ON_RANKS:
        workload = files.workloads[case.ranks][case.workload].measure(folder / "unused")
        return _on_ranks(case, workload, folder, hang_bound_s or HANG_BOUND_S[case.ranks], within_s)
    return _on_the_command_line(case, files, folder)


# A rank is disturbed --------------------------------------------------------------------------------------------------


def _on_ranks(case: Disturbance, workload: Workload, folder: Path, hang_bound_s: float, within_s: float) -> Outcome:
    outcome, note = Outcome(case), folder / "note.json"
    event = 1 + int(case.moment * workload.events[case.rank])
    bound = hang_bound_s if case.kind in ("hang", "busy") else PATIENCE_S
    watch = Watch(case.ranks)
    result = error = None
    with _environment(case):
        try:
            result = workload.run(case.kind, case.rank, event, note, case.number, bound)
        except RankFailure as e:
            error = e.with_traceback(None)
            error.__context__ = error.__cause__ = None  # they hold on to the pool
    ended = time.monotonic()
    outcome.check(note.exists(), "the disturbance did not happen")
    if not note.exists():
        outcome.message = str(error)
        return outcome
    noted = json.loads(note.read_text(encoding="utf-8"))
    outcome.where, outcome.seconds = noted["text"], ended - noted["at"]
    if case.kind == "delay":
        outcome.message = str(error or "")
        outcome.check(error is None, "a slow rank was taken for a failure")
        same = result is not None and all(torch.equal(x, result.tensors[n]) for n, x in workload.tensors.items())
        outcome.check(same, "the answer is not that of the undisturbed run")
        outcome.seconds = max(0.0, outcome.seconds - case.number / 100)
    elif error is None:
        outcome.problems.append("the run ended as if nothing had happened")
    else:
        _check_report(outcome, error)
        limit = within_s + (bound if case.kind in ("hang", "busy") else 0.0)
        outcome.check(outcome.seconds <= limit, f"it took {outcome.seconds:.1f} s, more than {limit:g}")
    error = None
    outcome.leaks += watch.left_over()
    return outcome


def _check_report(outcome: Outcome, error: RankFailure) -> None:
    """Rank, reason, and what the rank was doing: step, collective and peer as far as it was in a transfer."""
    case, message = outcome.case, str(error)
    outcome.message = message
    outcome.check(error.rank == case.rank, f"rank {error.rank} is named instead of {case.rank}")
    how = SAYS[case.kind].format(number=case.number)
    outcome.check(re.search(how, message) is not None, f"it does not say '{how}'")
    outcome.check(outcome.where in message, f"it does not say '{outcome.where}'")
    outcome.check("\n" not in message and message.endswith("."), "it is no single sentence")
    silent = [rank for rank in range(case.ranks) if not error.last_events.get(rank)]
    outcome.check(not silent, f"last events of ranks {silent} are missing")
    lines = error.events_table().count("\n  rank ")
    outcome.check(case.ranks <= lines + 1, "the table of last events lacks ranks")


@contextlib.contextmanager
def _environment(case: Disturbance) -> Iterator[None]:
    if case.kind != "memory_growing":
        yield
        return
    os.environ[LIMIT_VARIABLE] = str(RANK_MEMORY_GB)
    try:
        yield
    finally:
        del os.environ[LIMIT_VARIABLE]


# The command is disturbed ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """Make ``folder`` a file system of 16 KiB where that is permitted; says how a full disk is played otherwise."""
    folder.mkdir()
    mounted = False
    with contextlib.suppress(OSError):
        command = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield (
            "a tmpfs of 16 KiB" if mounted else "RLIMIT_FSIZE of 24 KiB (mounting a small tmpfs is not permitted here)"
        )
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def _limit_file_size() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (24 << 10, 24 << 10))


def _hear_interrupts() -> None:
    """A test run in the background ignores Ctrl-C and would pass that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _on_the_command_line(case: Disturbance, files: Files, folder: Path) -> Outcome:
    if case.kind == "full_disk":
        with small_disk(folder / "disk") as how:
            outcome = _full_disk(case, files, folder, limited="RLIMIT" in how)
            outcome.where = how
            return outcome
    outcome = _stopped(case, files, folder / "0")
    for again in range(1, 5):
        if outcome.where != "after the end":
            break
        earlier = dataclasses.replace(case, moment=case.moment / 2**again)
        outcome = _stopped(earlier, files, folder / str(again))
    outcome.check(outcome.where != "after the end", "the run was always over before")
    return outcome


class _Command:
    """``refsim run`` as a process of its own, with a temp folder of its own and a mark that its children inherit."""

    def __init__(self, case: Disturbance, files: Files, folder: Path, out: Path, *words: str, prepare=_hear_interrupts):
        self.mark, self.tmp, self.out = uuid.uuid4().hex, folder / "tmp", out
        self.tmp.mkdir()
        mesh, parallel = MESHES[case.ranks]
        inputs = ("--inputs", str(files.inputs), "--out", str(out), "--mesh", mesh, "--parallel", parallel)
        inputs += ("--transport", files.transport)
        self._errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refsim", "run", str(files.checkpoint), *inputs, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.tmp), MARK: self.mark},
            preexec_fn=prepare,
        )

    def under_way(self) -> bool:
        return any(self.tmp.iterdir()) or self.process.poll() is not None

    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self, outcome: Outcome) -> int | None:
        """Wait for it; notes what outlives it. None if it had to be killed."""
        try:
            self.process.communicate(timeout=PATIENCE_S)
        except (subprocess.TimeoutExpired, ValueError):
            if self.process.poll() is None:
                self.process.kill()
                outcome.problems.append(f"it was still running after {PATIENCE_S:g} s")
        code = self.process.wait()
        wait_until(lambda: not marked(self.mark) and not any(self.tmp.iterdir()), WITHIN_S)
        outcome.leaks += [f"process {pid}" for pid in marked(self.mark)]
        outcome.leaks += [f"file {path}" for path in self.tmp.rglob("*")]
        outcome.message = self.stderr().strip()
        outcome.check("Traceback" not in outcome.message, "it printed a traceback")
        self._errors.close()
        return code


def _full_disk(case: Disturbance, files: Files, folder: Path, *, limited: bool) -> Outcome:
    """The disk of --out, or of --trace, is full."""
    outcome, disk = Outcome(case), folder / "disk"
    at_trace = case.workload == 1
    words = ("--trace", str(disk / "trace.jsonl")) if at_trace else ()
    if limited:  # (the board of 32 ranks would be over the limit too)
        case = dataclasses.replace(case, ranks=min(case.ranks, 8))
    out = (folder if at_trace else disk) / "out.safetensors"
    if not at_trace and case.moment < 0.5:
        out.write_bytes(b"x")  # the old file stays
    before = {path.name: path.read_bytes() for path in disk.iterdir()}
    command = _Command(case, files, folder, out, *words, prepare=_limit_file_size if limited else None)
    code = command.end(outcome)
    option = "--trace" if at_trace else "--out"
    outcome.check(code == 2, f"exit code {code} instead of 2")
    said = rf"refsim: {option} '.*' could not be written \({FULL}.*"
    outcome.check(re.fullmatch(said, outcome.message) is not None, f"it says {outcome.message!r}")
    after = {path.name: path.read_bytes() for path in disk.iterdir()}
    outcome.leaks += [f"file {disk / name}" for name in after.keys() - before.keys()]
    outcome.check(all(after.get(name) == old for name, old in before.items()), "the old file was touched")
    return outcome


def _stopped(case: Disturbance, files: Files, folder: Path) -> Outcome:
    """A signal at a moment of the run, or nobody who reads stdout any more."""
    outcome, out = Outcome(case), folder / "out" / "out.safetensors"
    out.parent.mkdir(parents=True)
    command = _Command(case, files, folder, out, "--json")
    process = command.process
    wait_until(command.under_way, PATIENCE_S)
    time.sleep(case.moment * (3.0 if case.ranks == 32 else 2.0))
    event = time.monotonic()
    early = process.poll() is None
    if case.kind == "closed_stdout":
        written = bool(select.select([process.stdout], [], [], 0)[0])  # by then it has nothing more to say
        process.stdout.close()
        code = command.end(outcome)
        outcome.where = "after its output" if written else f"{case.moment:.2f} of the run" if early else "after the end"
        outcome.check(code == (0 if written else 141) or not early, f"exit code {code} instead of 141")
        outcome.check(not outcome.message, f"it says {outcome.message!r}")
        outcome.check(out.exists() and "sample" in load_file(out), "the answer is not there")
    else:
        number = {"ctrl_c": signal.SIGINT, "sigterm": signal.SIGTERM, "launcher_killed": signal.SIGKILL}[case.kind]
        wanted = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        process.send_signal(number)
        code = command.end(outcome)
        outcome.seconds = time.monotonic() - event
        finished = code == 0 and out.exists()  # the signal came when all was done
        outcome.check(code == wanted or finished, f"exit code {code} instead of {wanted}")
        word = {130: "refsim: interrupted.", 143: "refsim: terminated."}.get(code, "")
        outcome.check(outcome.message == word, f"it says {outcome.message!r}")
        outcome.check(outcome.seconds <= WITHIN_S, f"it took {outcome.seconds:.1f} s")
        outcome.where = "after the end" if finished else f"{case.moment:.2f} of the run"
    if out.exists():
        load_file(out)  # whole or not at all
    outcome.leaks += [f"file {path}" for path in out.parent.iterdir() if path != out]
    return outcome
