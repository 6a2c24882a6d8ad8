"""Ranks that die, hang or are left alone: the run ends within seconds, says who it was, and leaves nothing behind."""

import gc
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refsim.base import processes
from refsim.base.errors import RankFailure, UserError
from refsim.runtime import launch
from refsim.runtime.ranks.pool import Pool
from tests import warm
from tests.refsim.helpers import run

ROOT = Path(__file__).resolve().parents[3]
MESH, PARALLEL, SIZE = "bh-qb-1x4", "sp4", 4
SHORT_S = 1.0  # bound of a wait where the test lets it run out
SECONDS = 8.0  # what "within seconds" means on a busy machine


def pids() -> list[int]:
    return [value["pid"] for value in run("pids", MESH, PARALLEL).values]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def failure(program: str, **arguments) -> RankFailure:
    """Run a program that fails; checks that it ends soon, that no rank is left, and that the next job works."""
    before = pids()
    assert all(exists(pid) for pid in before)
    started = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        run(program, MESH, PARALLEL, arguments, timeout_s=SHORT_S)
    assert time.monotonic() - started < SECONDS
    assert [pid for pid in before if exists(pid)] == []
    assert run("gathered_ranks", MESH, PARALLEL).value == {"ranks": [0, 1, 2, 3]}
    assert not set(before) & set(pids())
    return caught.value


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is told to keep it")
def test_a_rank_takes_freed_memory_again():
    """Asked for anew, a tensor would be 3000 pages; left to glibc, that happens to some rank in half of the runs."""
    for _ in range(5):
        assert max(value["faults"] for value in run("freed_again", MESH, PARALLEL).values) < 1500
        launch.end_ranks()


HOW = {
    "raise": "failed",
    "exit": "exited with code 3",
    "sigkill": "was killed by SIGKILL",
    "hang": "made no progress",
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("how", HOW)
def test_a_failing_rank_is_named(how, rank):
    error = failure("one_fails", rank=rank, how=how)
    assert error.rank == rank
    assert error.exit_code == 1
    assert f"rank {rank} {HOW[how]}" in str(error)


@pytest.mark.parametrize("how", HOW)
def test_a_failing_rank_says_in_which_collective_and_step_it_was(how):
    message = str(failure("one_fails", rank=2, how=how, inside=True))
    assert f"rank 2 {HOW[how]}" in message
    assert "step 3" in message
    assert "demo" in message


def test_an_exception_keeps_its_text_and_traceback():
    error = failure("one_fails", rank=1, how="raise")
    assert "ValueError: planted" in str(error)
    assert 'raise ValueError("planted")' in error.traceback


def test_ranks_that_wait_for_each_other_time_out():
    message = str(failure("wait_in_a_circle"))
    assert "timed out" in message
    assert "receive from rank" in message


def test_a_rank_that_nobody_waits_for_is_bounded_too():
    started = time.monotonic()
    with pytest.raises(RankFailure, match="rank 0 made no progress") as caught:
        run("one_fails", "n150", "sp1", {"rank": 0, "how": "hang"}, timeout_s=SHORT_S)
    assert time.monotonic() - started < SECONDS
    assert caught.value.last_events[0]


def test_a_rank_that_waits_for_nothing_ends_the_run():
    failure("wait_for_nothing")


@pytest.mark.parametrize("op", ["send", "recv"])
def test_a_transfer_left_behind_does_not_reach_the_next_job(op):
    try:
        run("leave_behind", MESH, PARALLEL, {"op": op}, timeout_s=SHORT_S)
    except RankFailure:
        pass  # refusing the job that forgot it is as good as cleaning up behind it
    assert run("gathered_ranks", MESH, PARALLEL, timeout_s=SHORT_S).value == {"ranks": [0, 1, 2, 3]}


def test_a_users_mistake_found_on_a_rank_stays_a_users_mistake():
    before = pids()
    with pytest.raises(
        UserError, match=r"reduce_scatter cannot cut dim 0 of size 6 into 4 equal slices; pad it to 8\."
    ):
        arguments = {"collective": "reduce_scatter", "group": "sp", "dtype": "float32", "shape": [6], "dim": 0}
        run("one_collective", MESH, PARALLEL, arguments)
    assert [pid for pid in before if exists(pid)] == []
    assert run("gathered_ranks", MESH, PARALLEL).value == {"ranks": [0, 1, 2, 3]}


def test_ranks_are_kept_for_the_next_job_and_pools_live_side_by_side():
    four = pids()
    two = [value["pid"] for value in run("pids", "n300", "sp2").values]
    assert len(set(four + two)) == 6
    assert pids() == four


def test_failures_leave_no_file_descriptor_behind():
    def descriptors():
        failure("one_fails", rank=0, how="exit")
        gc.collect()  # the traceback of the failure holds on to the pool
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))

    assert descriptors() == descriptors() == descriptors()


# The launching process itself is ended --------------------------------------------------------------------------------

PREAMBLE = """
import sys
from refsim.options import RunOptions
from refsim.runtime.launch import execute, warm_up

def job(program):
    return execute("tests.refsim.programs:" + program, RunOptions.of(mesh="n300", parallel="sp2"), {})
"""
SCRIPTS = {
    "idle": 'job("pids"); print("ready", flush=True); sys.stdin.read()',
    "busy": 'job("hang_aloud")',
    "warming": 'warm_up(); print("ready", flush=True); sys.stdin.read()',
}


class Launcher:
    """A script that launches ranks, with pipes to and from it."""

    def __init__(self, script: Path, temporary: Path) -> None:
        its_stdin, self._to_it = os.pipe()
        self._from_it, its_stdout = os.pipe()
        with (temporary.parent / "stderr").open("w") as stderr:
            self.process = self._started(script, temporary, {0: its_stdin, 1: its_stdout, 2: stderr.fileno()})
        for file in (its_stdin, its_stdout):
            os.close(file)

    @staticmethod
    def _started(script: Path, temporary: Path, files: dict[int, int]):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        return warm.Process({"words": [str(script)], "cwd": str(ROOT), "env": env}, files)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self.process)
        os.close(self._from_it)

    def line(self) -> str:
        """Return the next line of what it prints."""
        read = b""
        while not read.endswith(b"\n"):
            byte = os.read(self._from_it, 1)
            assert byte
            read += byte
        return read.decode().strip()

    def closed(self, timeout_s: float) -> bool:
        """Close its stdin, and return whether everyone closes its stdout in time."""
        os.close(self._to_it)
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and select.select([self._from_it], [], [], left)[0]:
            if not os.read(self._from_it, 1000):
                return True
        return False


class StartedAnew(Launcher):
    """In a Python of its own, and so is its fork server."""

    @staticmethod
    def _started(script: Path, temporary: Path, files: dict[int, int]):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        stdin, stdout, stderr = files.values()
        how = {"cwd": ROOT, "env": env, "stdin": stdin, "stdout": stdout, "stderr": stderr, "start_new_session": True}
        return subprocess.Popen([sys.executable, str(script)], **how)


@pytest.mark.parametrize(
    ("state", "sent"),
    [
        ("idle", "SIGKILL"),
        ("busy", "SIGKILL"),
        ("warming", "SIGKILL"),
        ("busy", "SIGINT"),
        ("busy", "SIGTERM"),
        ("idle", "end"),
    ],
)
def test_nothing_outlives_the_launcher(state, sent, tmp_path):
    """Fork server and ranks inherit the script's stdout, so it is closed only when the last one of them is gone."""
    script, temporary = tmp_path / "script.py", tmp_path / "temporary"
    script.write_text(PREAMBLE + SCRIPTS[state])
    temporary.mkdir()
    with (StartedAnew if state == "warming" else Launcher)(script, temporary) as launcher:
        assert launcher.line() in ("ready", "hanging")
        assert list(temporary.glob("refsim-*"))
        if sent != "end":
            os.kill(launcher.process.pid, signal.Signals[sent])
            # (a warming fork server still has to finish its imports)
        assert launcher.closed(5 if state != "warming" else 20)
        launcher.process.wait(timeout=5)
        assert list(temporary.iterdir()) == []
    assert "forkserver" not in (tmp_path / "stderr").read_text()


def test_nothing_is_imported_from_the_folder_one_stands_in(tmp_path):
    """A checkpoint's folder may hold a torch.py."""
    folder, script = tmp_path / "checkpoint", tmp_path / "script" / "run.py"
    folder.mkdir()
    script.parent.mkdir()
    (folder / "torch.py").write_text("raise RuntimeError('imported from the current folder')")
    script.write_text(PREAMBLE + 'print(len(job("pids").values))')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("2", "")


ATTENTION = """
import torch
import refsim
q, k, v = torch.randn(3, 1, 8, 256, 16)
print("ready", flush=True)
for seed in range(10_000):
    refsim.simulate_attention(q.clone(), k.clone(), v.clone(), mesh="t3k-1x8", scheme="ring", delay=(seed, 0.05))
"""


def test_a_killed_launcher_leaves_no_inputs_behind(tmp_path):
    script, temporary = tmp_path / "script.py", tmp_path / "temporary"
    script.write_text(ATTENTION)
    temporary.mkdir()
    with Launcher(script, temporary) as launcher:
        assert launcher.line() == "ready"
        ended = os.pidfd_open(launcher.process.pid)
        while not list(temporary.glob("**/inputs.safetensors")):
            assert not select.select([ended], [], [], 0.01)[0]
        os.close(ended)
        os.kill(launcher.process.pid, signal.SIGKILL)
        assert launcher.closed(20)
    assert list(temporary.iterdir()) == []


def test_a_rank_that_is_slow_to_start_is_no_rank_that_hangs(monkeypatch):
    """Before a rank's first word the time since it was forked counts, not that since the machine was booted."""
    seen = []
    collect = Pool._collect

    def slow(self, timeout_s):
        seen.append([self.board.get(rank) for rank in range(self.world_size)])
        return collect(self, timeout_s)

    monkeypatch.setattr(Pool, "_collect", slow)
    fresh = Pool(2)
    try:
        assert all(time.monotonic() - at < 60 and activity for at, activity in seen[0])
    finally:
        fresh.close()
