"""Signals that meet a command on its way in, and temporary folders whose owner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from refsim.base import scratch
from tests.tree import ROOT

MEET = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # not so in background jobs
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not so under nohup

class Meet:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            for _ in range({times}):
                os.kill(os.getpid(), signal.{sent})

sys.meta_path.insert(0, Meet())
from refsim.cli import main
main(["meshes"])
"""


@pytest.mark.parametrize(
    ("module", "sent", "times", "code"),
    [
        ("typer", "SIGINT", 1, 130),
        ("refsim.cli.process", "SIGTERM", 1, 143),
        ("refsim.cli.app", "SIGINT", 2, 130),
        ("parity.cli.parity", "SIGHUP", 1, 129),
    ],
)
def test_a_signal_on_the_way_in(module, sent, times, code):
    """Whatever is being imported: the signal's exit code, one line, no traceback."""
    command = [sys.executable, "-c", MEET.format(module=module, sent=sent, times=times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("refsim: ") and len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_folders", {})
    return tmp_path


def test_folders_of_dead_owners_go_at_the_next_start(temporary):
    """Those of the living, of somebody else and of other programs stay, and so does what a link points to."""
    started = (
        "import signal, time; from refsim.base import scratch; f = scratch.Folder('x'); print(f.name, flush=True); "
    )
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", started + "time.sleep(600)"]
    owners = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    alive, dead = (Path(owner.stdout.readline().strip()) for owner in owners)
    (dead / "deep").mkdir()
    (dead / "deep" / "file").touch()
    (temporary / "refsim-mine").mkdir()
    (temporary / f"{scratch.PREFIX}link").symlink_to(temporary / "refsim-mine")
    owners[1].kill()
    owners[1].wait()
    try:
        with scratch.Folder("y") as mine:
            left = {path.name for path in temporary.iterdir()}
            assert left == {alive.name, Path(mine).name, "refsim-mine", f"{scratch.PREFIX}link"}
    finally:
        owners[0].terminate()
        owners[0].communicate()
    assert not Path(mine).exists()


def test_a_forked_child_leaves_its_parents_folder_alone(temporary):
    folder = scratch.Folder("x")
    pid = os.fork()
    if pid == 0:
        scratch.remove_all()
        os._exit(0)
    os.waitpid(pid, 0)
    assert Path(folder.name).is_dir()
    scratch.remove_all()
    assert list(temporary.iterdir()) == []


def test_a_file_that_is_not_complete_goes_too(temporary):
    half = temporary / "half"
    half.touch()
    with scratch.unfinished(str(half)):
        scratch.remove_all()
    assert not half.exists()


def test_every_temporary_folder_goes_with_its_process():
    """Made with ``scratch.Folder``, or inside of such a folder."""
    may = {
        "refsim/files/output.py",  # beside its target
        "refsim/runtime/ranks/pool.py",
        "refsim/base/scratch.py",
    }
    inside = ("dir=around", "dir=self._folder.name")
    found = []
    for package in ("refsim", "tt_impl", "parity"):
        for path in (ROOT / package).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                makes = "mkdtemp(" in line or "TemporaryDirectory(" in line or "mkstemp(" in line
                if makes and not any(place in line for place in inside):
                    found.append(path.relative_to(ROOT).as_posix())
    assert set(found) <= may
