"""Ranks that torchrun started: who fails is named by another rank, and nothing listens to the outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch.distributed import HashStore

from refsim.base import scratch
from refsim.base.errors import CommError, RankFailure
from refsim.runtime.ranks import joined as torchrun_ranks
from refsim.runtime.ranks.joined import Host, process_state
from refsim.runtime.watch.activity import Activity, Kind
from tests import warm
from tests.tree import ROOT

PLAIN, OURS = "torch.distributed.run", "refsim.base.torchrun"
LOOPBACK = ["127.0.0.1"]


def torchrun(launcher: str, program: str, timeout_s: float = 30.0, **arguments) -> subprocess.CompletedProcess:
    worker = ["tests.refsim.runtime.torchrun_worker", program, str(timeout_s), json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return warm.run("-m", launcher, "--nproc-per-node", "2", "-m", *worker, cwd=ROOT, env=environment)


@pytest.mark.parametrize(
    ("launcher", "how", "fate"), [(OURS, "sigkill", "died"), (PLAIN, "sigstop", "made no progress")]
)
def test_a_failed_rank_is_named_once_with_step_and_collective(launcher, how, fate):
    done = torchrun(launcher, "one_fails", 3.0, rank=1, how=how, inside=True)
    assert done.returncode == 1
    said = f"refsim: rank 1 {fate} while it was posting send of step 3 of demo (to rank 0); rank 0 "
    assert done.stderr.count(said) == done.stderr.count("refsim: ") == 1, done.stderr
    assert "was waiting for it in" in done.stderr
    assert "of demo/all_gather" in done.stderr
    assert "last events of every rank" in done.stderr


def test_a_rank_that_makes_another_call_is_named_under_torchrun():
    done = torchrun(OURS, "diverging_programs:one_diverges", rank=1, how="another order")
    assert done.returncode == 1
    said = r"refsim: rank 1 called all_reduce\(\) over sp where rank 0 called all_gather\(float32 \[1024\], dim=0\)"
    assert len(re.findall(said, done.stderr)) == done.stderr.count("refsim: ") == 1, done.stderr


def test_nothing_listens_outside_the_host():
    done = torchrun(OURS, "listening")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    # rank 0 has the store, the others only gloo's connections; the agent listens nowhere
    assert values == [{"rank": LOOPBACK, "parent": []}] * 2


# One rank's view of its host, without processes -----------------------------------------------------------------------


@pytest.fixture
def hosts():
    """Ranks 0 and 1 of three, which share a host; both are this process."""
    fd = os.memfd_create("board")
    os.ftruncate(fd, Host.size(3))
    return Host(os.dup(fd), 3, 0), Host(fd, 3, 1)


def test_one_rank_reports(hosts):
    zero, one = hosts
    assert [one.claim(), one.claim(), zero.claim()] == [True, False, False]
    assert (zero.reports, one.reports) == (False, True)


def test_a_rank_that_leaves_is_not_gone(hosts):
    zero, one = hosts
    assert (zero.gone(), list(zero.others())) == (set(), [1])
    one.leave()
    assert (zero.gone(), list(zero.others())) == (set(), [])


def test_an_error_of_this_rank_is_told_with_what_it_was_doing(hosts):
    zero, one = hosts
    zero.board.set(0, Activity(Kind.COMPUTING, "sdpa", "ring_attention", 2))
    told = zero.failed(ValueError("planted"))
    assert str(told) == "rank 0 failed while it was computing sdpa of step 2 of ring_attention: ValueError: planted."
    assert told.rank == 0
    assert not told.reported
    zero.leave()
    assert one.failed(CommError("receive from rank 0 lost the connection", peer=0)).reported


def test_a_peer_on_another_host_is_known_by_the_transfer(hosts):
    zero, _ = hosts
    zero.board.set(0, Activity(Kind.WAITING, "recv", "all_gather", 1, peer=2))
    told = zero.failed(CommError("receive from rank 2 lost the connection", peer=2))
    assert isinstance(told, RankFailure)
    assert str(told) == (
        "receive from rank 2 lost the connection, on another host, while rank 0 was waiting for recv of step 1 of "
        "all_gather (from rank 2)."
    )


@pytest.mark.parametrize("comes", [True, False], ids=["all_come", "one_never_comes"])
def test_the_board_leaves_no_file(tmp_path, monkeypatch, comes):
    """Whether every rank has opened it, or the first one ends, by whatever thread, before the second has."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_folders", {})
    monkeypatch.setattr(os, "_exit", lambda code: None)
    store, fds = HashStore(), []
    for rank in range(1 + comes):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        fds.append(torchrun_ranks._shared_file(store, 2, 2))
    path = Path(store.get("refsim/host/0/0").decode())
    try:
        assert {os.fstat(fd).st_size for fd in fds} == {Host.size(2)} and path.exists() != comes
        torchrun_ranks._end(143)
        assert not path.exists() and list(tmp_path.iterdir()) == []
    finally:
        path.unlink(missing_ok=True)
        for fd in fds:
            os.close(fd)


def test_the_state_of_a_process():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while process_state(ended.pid) != "Z":
        pass
    ended.wait()
    assert process_state(ended.pid) == ""
    assert process_state(os.getpid()) in ("R", "S")
