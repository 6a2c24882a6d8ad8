"""What a run hands back, and how torchrun's ranks are told from our own."""

import psutil
import pytest

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.runtime import launch
from tests.refsim.helpers import assert_one_sentence, run

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


def test_a_result_holds_values_of_all_ranks_and_tensors_of_rank_0():
    arguments = {"collective": "all_gather", "group": "sp", "dtype": "float32", "shape": [2, 3], "dim": 1}
    result = run("one_collective", "bh-qb-1x4", "sp4", arguments)
    assert len(result.values) == len(result.bytes_per_rank) == 4
    assert result.value is result.values[0]
    assert list(result.tensors) == ["out"]
    assert result.tensors["out"].shape == (2, 12)
    assert result.bytes_per_rank == [{"all_gather@sp": 72}] * 4
    assert result.bytes_by_collective == {"all_gather@sp": 288}
    assert result.wall_s > 0


def test_ranks_that_are_kept_can_be_ended_and_are_forked_anew():
    first = {value["pid"] for value in run("pids", "n300", "sp2", {}).values}
    again = {value["pid"] for value in run("pids", "n300", "sp2", {}).values}
    assert first == again and all(psutil.pid_exists(pid) for pid in first)
    launch.end_ranks()
    assert not any(psutil.pid_exists(pid) for pid in first)
    launch.end_ranks()
    assert {value["pid"] for value in run("pids", "n300", "sp2", {}).values}.isdisjoint(first)


@pytest.mark.parametrize(
    ("environment", "torchrun", "main"),
    [
        ({}, False, True),
        ({"RANK": "1"}, False, True),
        (TORCHRUN, True, False),
        ({**TORCHRUN, "RANK": "0"}, True, True),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "3"}, True, False),
    ],
    ids=["none", "rank_alone", "rank_1", "rank_0", "elastic"],
)
def test_torchrun_is_recognised(monkeypatch, environment, torchrun, main):
    for name in (*TORCHRUN, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch.under_torchrun() is torchrun
    assert launch.is_main() is main


def test_torchrun_with_another_number_of_ranks_is_refused(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="started 2 ranks but mesh t3k-1x8") as caught:
        launch.execute("tests.refsim.programs:pids", RunOptions.of(mesh="t3k-1x8", parallel="sp8"), {})
    assert_one_sentence(str(caught.value))
    assert "--nproc-per-node 8" in str(caught.value)
