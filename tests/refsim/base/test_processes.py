"""Processes that are forked off this one: waited for, spoken to, and without what this one has open."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refsim.base import processes
from refsim.runtime.launch import fork_server
from refsim.runtime.ranks import pool


@pytest.mark.parametrize(("source", "code"), [("pass", 0), ("raise ValueError", 1), ("time.sleep(60)", -9)])
def test_a_forked_server_is_waited_for_as_often_as_asked(source, code, tmp_path, monkeypatch):
    (tmp_path / "somebodys_server.py").write_text(f"import time\ndef main():\n    {source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    forked = processes.Forked("somebodys_server", (), {})
    if code == -9:
        with pytest.raises(subprocess.TimeoutExpired):
            forked.wait(timeout=0.1)
        os.kill(forked.pid, signal.SIGKILL)
    assert forked.wait(timeout=30.0) == forked.wait() == forked.wait(timeout=0.0) == code


def test_a_forked_server_is_spoken_to_by_pipes(tmp_path, monkeypatch):
    text = "import os, sys\ndef main(word):\n    for line in sys.stdin:\n        os.write(1, (word + line).encode())\n"
    (tmp_path / "somebodys_worker.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        forked = processes.Forked("somebodys_worker", ("said ",), {}, **pipes, stderr=log)
    forked.stdin.write(b"a\nb\n")
    forked.stdin.close()
    assert forked.stdout.read() == b"said a\nsaid b\n" and forked.wait(timeout=30.0) == 0
    forked.stdout.close()


ALONE = """
import os, sys
from refsim.base import processes
from refsim.options import RunOptions
from refsim.runtime import launch
from refsim.runtime.ranks import pool

launch.fork_server("json.tool", "no_such_module")
server = pool.ForkServer._current._process
assert type(server) is processes.Forked and "json.tool" in sys.modules
import torch

torch.ones(512, 512) @ torch.ones(512, 512)  # its threads
options = RunOptions.of(mesh="n300", parallel="sp2")
print(launch.execute("tests.refsim.programs:gathered_ranks", options, {}).value)
held = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")]
assert sum("socket" in one for one in held) == 1, held
launch.shut_down()
assert server.wait() == 0 and not os.path.exists(f"/proc/{server.pid}")
"""


def test_ranks_are_forked_off_the_process_that_imports_for_them():
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}  # for the program, which is one of the tests'
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, env=env)
    assert (done.stdout, done.returncode) == ("{'ranks': [0.0, 1.0]}\n", 0), done.stderr


def test_a_process_with_threads_is_not_forked(monkeypatch):
    started = []
    monkeypatch.setattr(processes, "threads", lambda: 2)
    monkeypatch.setattr(pool.ForkServer, "get", lambda *modules, forked: started.append((modules, forked)))
    fork_server("json")
    assert started == [(("json",), False)]


def test_libraries_start_no_threads_within(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with processes.one_thread():
        assert {os.environ[name] for name in processes.ONE_THREAD} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ
