"""Every kind of hazard is found in a real program whose values come out right, and correct programs give none."""

import re

import pytest
import torch

from refsim.base.errors import RankFailure
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.cli import process
from refsim.files.folder import ModelFolder
from refsim.runtime.buffers import DeviceBuffer
from refsim.runtime.launch import Result, execute
from refsim.runtime.watch.hazards import Hazard, UseLog, find
from tests.refsim.hazard_programs import MISTAKES
from tests.refsim.helpers import TIMEOUT_S, assert_one_sentence, attention_inputs, run
from tests.refsim.parallel.schemes import SCHEMES, attend


def play(mistake: str, **options):
    options = RunOptions.of(mesh="n300", parallel="sp2", **{"timeout_s": TIMEOUT_S, **options})
    return execute("tests.refsim.hazard_programs:program", options, {"mistake": mistake})


# the kind, who is said to use the buffer (in this order), and in whose memory it is
FOUND = {
    "send_while_filled": [
        ("write-while-read", "rank 1's send of step 1 of demo", "rank 0's send of step 1 of demo", "k of rank 0"),
        ("write-while-read", "rank 0's send of step 1 of demo", "rank 1's send of step 1 of demo", "k of rank 1"),
    ],
    "no_wait_for_the_second": [
        ("write-while-read", "rank 0's send of step 1 of demo", "rank 1's sdpa of step 1 of demo", "k of rank 1"),
    ],
    "no_wait_at_all": [
        ("read-before-written", "rank 1's sdpa of step 1 of demo", "rank 0's send of step 1 of demo", "k of rank 1"),
    ],
    "never_written": [("read-before-written", "rank 1's sdpa of step 1 of demo", "nobody writes it", "k of rank 1")],
    "lost_message": [
        ("write-after-write", "rank 0's send of step 1 of demo", "rank 0's send of step 0 of demo", "k of rank 1"),
    ],
    "two_at_once": [
        ("write-after-write", "rank 0's send of step 0 of demo", "rank 0's send of step 1 of demo", "k of rank 1"),
    ],
    "released_early": [
        ("release-in-use", "rank 0's send of step 1 of demo (with rank 1)", "rank 0 releases it", "k of rank 0"),
    ],
    "used_after_release": [
        ("release-in-use", "rank 0's send of step 1 of demo (with rank 1)", "rank 0 released it", "k of rank 0"),
    ],
    "old_handle_read": [
        ("release-in-use", "rank 1's sdpa of step 1 of demo", "its memory is buffer v's now", "k of rank 1"),
    ],
    "old_handle_written": [
        ("release-in-use", "rank 0's send of step 1 of demo", "its memory is buffer v's now", "k of rank 1"),
    ],
    "posted_early_untold": [
        ("write-while-read", "rank 0's send of step 1 of demo", "rank 1's sdpa of step 0 of demo", "k of rank 1"),
    ],
}


@pytest.mark.parametrize("transport", ["gloo", "shared"])
@pytest.mark.parametrize("mistake", FOUND)
def test_a_mistake_is_reported_with_both_parties_although_the_values_are_right(mistake, transport):
    result = play(mistake, transport=transport)
    assert [value["value"] for value in result.values] == [[1.0] * 4] * 2
    unfound = list(result.hazards)
    for kind, first, second, where in FOUND[mistake]:
        hazard = next(h for h in unfound if h.kind == kind and h.buffer == f"buffer {where}")
        assert hazard.sentence.index(first) < hazard.sentence.index(second) + (first == second)
        assert where in hazard.sentence
        assert_one_sentence(str(hazard))
        unfound.remove(hazard)
    assert not unfound


def test_a_semaphore_that_is_never_reached_names_both_parties():
    said = (
        r"semaphore never reached: rank 1's sdpa of step 1 of demo waits until semaphore k arrived is 2, which stands "
        r"at 1 after all that rank 0's send of step 1 of demo will add"
    )
    with pytest.raises(RankFailure, match=said) as caught:
        play("never_signalled")
    assert caught.value.rank == 1


def test_a_double_release_is_named_with_the_buffer_that_has_the_memory_now():
    said = "double release: buffer k is released in demo, but was released in demo before and its memory is buffer v's"
    with pytest.raises(RankFailure, match=said) as caught:
        play("double_release")
    assert caught.value.rank == 1


def test_every_mistake_is_expected_somewhere():
    assert MISTAKES.keys() == FOUND.keys() | {"never_signalled", "double_release", "posted_early"}


def test_what_only_the_messages_keep_apart_is_acquitted():
    """Rank 1 alone cannot tell: both receives are posted before the first is read."""
    assert play("posted_early").hazards == []


def test_nothing_is_found_where_nobody_looks():
    assert play("two_at_once", detect_hazards=False).hazards == []


def ring(planted: str, ring_order: str, mesh: str):
    spec = get_mesh(mesh)
    factors = f"sp{max(spec.shape)}_tp{min(spec.shape)}"
    options = RunOptions.of(mesh=spec, parallel=factors, ring_order=ring_order, k_chunk_size=4, timeout_s=TIMEOUT_S)
    return execute("tests.refsim.hazard_programs:ring", options, {"planted": planted})


@pytest.mark.parametrize("mesh", ["t3k-1x8", "t3k"], ids=["ring", "line"])
@pytest.mark.parametrize("ring_order", ["step", "block"])
@pytest.mark.parametrize("planted", ["single_buffer", "shared_by_k_and_v"])
def test_a_mistake_in_ring_attention_is_reported_although_the_answer_is_right(planted, ring_order, mesh):
    right = ring("none", ring_order, mesh)
    assert right.hazards == []
    faulty = ring(planted, ring_order, mesh)
    assert faulty.values == right.values
    assert {hazard.rank for hazard in faulty.hazards} == set(range(8))
    assert "write-while-read" in {hazard.kind for hazard in faulty.hazards} or planted != "single_buffer"
    for hazard in faulty.hazards:
        assert (
            len(re.findall(r"rank \d's (?:send of step \d|sdpa of step \d|copy of the local shard)", str(hazard))) == 2
        )
        assert_one_sentence(str(hazard))


def swap_layers(**arguments):
    options = RunOptions.of(mesh="n300", parallel="sp2", timeout_s=TIMEOUT_S)
    return execute("tests.refsim.hazard_programs:layers", options, arguments)


@pytest.mark.parametrize("late_s", [0.0, 0.4], ids=["on_time", "late"])
def test_one_buffer_for_all_layers_is_reported_whether_or_not_a_rank_is_late(late_s):
    """Upstream's policy on the real runtime: right values if nobody lags by the rest of a layer, wrong ones if so."""
    result = swap_layers(policy="upstream", late_s=late_s, rest_s=0.1)
    assert (result.values[1]["read"] == [0, 1, 2, 3]) is (late_s == 0)
    sentences = [str(hazard) for hazard in result.hazards]
    wanted = (
        "write-while-read: rank 0's send of step 1 of ring_attention writes buffer k0 of rank 1 and "
        "rank 1's sdpa of step 0 of ring_attention reads it and nothing orders the two."
    )
    assert wanted in sentences


def test_two_buffers_in_turn_are_safe_however_late_a_rank_is():
    result = swap_layers(policy="alternate", late_s=0.4, rest_s=0.0)
    assert result.hazards == []
    assert [value["read"] for value in result.values] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("ring_order", ["gather", "step", "block"])
@pytest.mark.parametrize("scheme", ["n150-serial", "t3k_1x8-ring8", "t3k-sp4tp2-ring_line"])
def test_rings_are_clean(scheme, ring_order):
    tensors = attention_inputs(heads=8, n=256, prompt=5)
    options = {"ring_order": ring_order, "k_chunk_size": 20, "logical_n": 130}
    for delay in (None, (1, 0.002)):
        assert attend(tensors, scheme, delay=delay, **options).hazards == []


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "ulysses" in name and "t3k" in name])
def test_ulysses_and_usp_are_clean(scheme):
    assert attend(attention_inputs(heads=8, n=256, prompt=5), scheme).hazards == []


@pytest.mark.parametrize("mesh", ["t3k-1x8", "n300"])
@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "shift"]
)
def test_collectives_are_clean(collective, mesh):
    options = {
        "all_gather": {"dim": 0},
        "reduce_scatter": {"dim": 0},
        "all_to_all": {"split_dim": 0, "concat_dim": 1},
        "broadcast": {"root": 1},
    }.get(collective, {})
    arguments = {"collective": collective, "group": "sp", "dtype": "float32", "shape": [16, 3], "chunk_bytes": 8}
    result = run("one_collective", mesh, "sp8" if mesh != "n300" else "sp2", arguments | options)
    assert result.hazards == []


@pytest.mark.parametrize("found", [0, 2])
def test_the_command_line_prints_hazards_and_exits_1(found, monkeypatch, capsys, tmp_path):
    hazards = [Hazard("write-after-write", f"rank {i}'s send and so on.", "k", i) for i in range(found)]
    answer = Result([{"digests": ["a", "a"]}], {"sample": torch.ones(1)}, {}, [], hazards=hazards)
    monkeypatch.setattr("refsim.runtime.launch.warm_up", lambda: None)
    monkeypatch.setattr("refsim.cli.commands.run._look_at", lambda folder, *_: (ModelFolder(folder, {}, ""), False))
    monkeypatch.setattr("refsim.api.run", lambda *args, **options: answer)
    words = [
        "run",
        str(tmp_path / "model"),
        "--inputs",
        str(tmp_path / "in"),
        "--out",
        str(tmp_path / "out"),
        "--mesh",
        "n150",
    ]
    assert process.run_command(words) == bool(found)
    assert capsys.readouterr().err == "".join(f"refsim: {hazard}\n" for hazard in hazards)


# The logs alone, without ranks ----------------------------------------------------------------------------------------


class Rank:
    """A log written by hand; ``use`` and ``post`` return what ``end`` ends."""

    def __init__(self) -> None:
        self.log, self._buffers = UseLog(), {}

    def begin(self, op: str, name: str, rows: slice = slice(None), peer: int | None = None, writes: bool = False):
        buffer = self._buffers.setdefault(name, DeviceBuffer(name, torch.empty(8), len(self._buffers)))
        return self.log.begin(buffer.tensor[rows], buffer, writes=writes, op=op, step=0, path="p", peer=peer)

    def do(self, *arguments, **options) -> None:
        self.log.end(self.begin(*arguments, **options))


def kinds(*ranks: Rank) -> list[str]:
    found = [hazard.kind for hazard in find([rank.log.as_json() for rank in ranks])]
    assert any(rank.log.suspicious() for rank in ranks) or not found
    return found


def test_bytes_that_do_not_overlap_do_not_meet():
    rank = Rank()
    rank.begin("w", "k", slice(0, 4), writes=True)
    rank.do("w", "k", slice(4, 8), writes=True)
    rank.do("r", "k", slice(4, 8))
    assert kinds(rank) == []
    rank.do("r", "k", slice(3, 5))
    assert kinds(rank) == ["read-before-written"]


def test_a_read_of_more_than_was_written_is_found():
    rank = Rank()
    rank.do("w", "k", slice(0, 4), writes=True)
    rank.do("r", "k", slice(0, 8))
    assert kinds(rank) == ["read-before-written"]


def test_one_of_two_buffers_is_none_of_the_other():
    rank = Rank()
    rank.begin("w", "k", writes=True)
    rank.do("w", "v", writes=True)
    rank.do("r", "v")
    assert kinds(rank) == []


@pytest.mark.parametrize("told", [True, False])
def test_word_may_come_round_by_a_third_rank(told):
    """Rank 1 reads, tells rank 2, which tells rank 0, which then writes; or rank 2 tells it before it has heard."""
    zero, one, two = Rank(), Rank(), Rank()
    pending = one.begin("recv", "k", peer=0, writes=True)
    one.log.end(pending)
    late = one.begin("recv", "k", peer=0, writes=True)
    one.do("sdpa", "k")
    one.do("send", "word", peer=2)
    one.log.end(late)
    one.do("sdpa", "k")
    order = ["hear", "tell"] if told else ["tell", "hear"]
    for act in order:
        two.do("recv" if act == "hear" else "send", act, peer=1 if act == "hear" else 0, writes=act == "hear")
    zero.do("send", "x", peer=1)
    zero.do("recv", "word", peer=2, writes=True)
    zero.do("send", "x", peer=1)
    found = [k for k in kinds(zero, one, two) if k == "write-while-read"]
    assert found == ([] if told else ["write-while-read"])
