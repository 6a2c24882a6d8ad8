"""The model-check of buffer policies: three readings that agree, and figures in the docs that it really gave."""

from pathlib import Path

import pytest

from parity.policies.clock import Clock, critical_lag, seeded_stalls, simulate
from parity.policies.operations import Fabric, Thread
from parity.policies.program import POLICIES, program
from parity.policies.proof import prove
from parity.policies.search import explore
from parity.policies.verdicts import (
    FABRICS,
    MARKS,
    explored_row,
    fabric_row,
    lag_row,
    replayed,
    sampled_row,
    suits,
)
from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.files.tables import as_markdown

DOC = Path(__file__).resolve().parents[3] / "docs" / "buffers.md"
SAFE = {
    "upstream": False,
    "barrier": True,
    "alternate": True,
    "slots": False,
    "credit": True,
    "fused": False,
    "fused_synced": True,
    "no_wait": False,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_proof_search_and_samples_agree(policy):
    for ranks in (2, 3):
        programs = program(policy, ranks, 3)
        sampled = any(simulate(programs, seeded_stalls(programs, seed, 12)).wrong for seed in range(40))
        readings = [not prove(programs), not explore(program(policy, ranks, 3, "K")).wrong, not sampled]
        assert readings == [SAFE[policy]] * 3


@pytest.mark.parametrize("fabric", FABRICS, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_readings_agree_on_every_fabric(policy, fabric):
    if not suits(policy, fabric):
        with pytest.raises(UserError, match="neither workers nor a split ring"):
            program(policy, 2, fabric=fabric)
        return
    assert [not prove(program(policy, ranks, 3, fabric=fabric)) for ranks in (2, 3)] == [SAFE[policy]] * 2
    threads = program(policy, 2, 3, fabric=fabric)
    assert (not any(simulate(threads, seeded_stalls(threads, seed, 12)).wrong for seed in range(20))) == SAFE[policy]
    if fabric.links * (1 + fabric.workers) * (1 + (fabric.topology is Topology.LINEAR)) <= 2:
        assert (not explore(program(policy, 2, 3, "K", fabric)).wrong) == SAFE[policy]


@pytest.mark.parametrize("fabric", [Fabric(), *FABRICS], ids=str)
def test_a_fabric_is_read_from_its_text(fabric):
    assert Fabric.of(str(fabric)) == fabric


@pytest.mark.parametrize("text", ["", "torus", "ring, links", "line, 0 links", "ring, worker", "2 links"])
def test_what_is_no_fabric_is_refused(text):
    with pytest.raises(UserError, match="begin with ring, line or split ring"):
        Fabric.of(text)


def test_a_fused_gather_goes_wrong_as_soon_as_a_device_lags_by_less_than_a_step():
    """Its gather lands in memory that the operation before it still reads on the device that is late."""
    assert critical_lag("fused", 4, Clock()) < 1
    assert critical_lag("fused_synced", 4, Clock()) is None
    wrong = explore(program("fused", 2, 3)).wrong
    assert "X[shard 0] overwrites rank 1's buffer under rank 1's read of layer 0, step -1" in wrong


def test_a_split_ring_that_waits_for_one_piece_too_few_reads_what_has_not_arrived():
    hazards = prove(program("no_wait", 4, 3, fabric=Fabric(split=True)))
    assert "read-before-written" in {hazard.kind for hazard in hazards}
    assert not prove(program("alternate", 4, 3, fabric=Fabric(split=True)))


def test_of_an_even_split_ring_the_farthest_shard_comes_half_from_either_side():
    threads = program("alternate", 4, 3, "K", Fabric(split=True))
    into_0 = [op for t in threads for op in t.ops if op.kind == "send" and op.link.to == 0 and op.layer == 0]
    assert sorted((op.link.source, op.place.region) for op in into_0) == [
        (1, 2),
        (1, 3),
        (1, 5),
        (3, 4),
        (3, 6),
        (3, 7),
    ]


def test_the_search_knows_a_deadlock():
    """Both wait for an arrival before they send."""
    threads = program("credit", 2, 3, "K")
    late = [Thread(t.rank, sorted(t.ops, key=lambda op: (op.layer, op.kind != "arrived"))) for t in threads]
    assert explore(late).wrong == "all ranks wait for each other"
    assert "waits for ever" in simulate(late, {}).wrong


def test_the_search_is_bounded():
    with pytest.raises(UserError, match="more than 100 states"):
        explore(program("credit", 3), limit=100)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rest", [0.0, 3.0])
def test_upstream_goes_wrong_from_a_lag_on_that_grows_with_ring_and_layer(ranks, rest):
    lag = critical_lag("upstream", ranks, Clock(rest=rest))
    assert lag == pytest.approx(ranks - 2 + rest + 0.5, abs=0.01)
    assert critical_lag("alternate", ranks, Clock(rest=rest)) is None


def test_a_seed_is_replayed_and_says_what_goes_wrong():
    lines, wrong = replayed("upstream", 4, 0)
    assert wrong
    assert lines == replayed("upstream", 4, 0)[0]
    assert lines[-1].startswith("WRONG: rank ")
    assert not replayed("credit", 4, 0)[1]


@pytest.mark.parametrize(("policy", "ranks"), [("unheard", 4), ("upstream", 1)])
def test_what_does_not_exist_is_refused(policy, ranks):
    with pytest.raises(UserError):
        program(policy, ranks)


def test_figures_in_the_docs_are_those_of_the_command():
    text = DOC.read_text(encoding="utf-8")
    generated = text[text.index(MARKS[0]) : text.index(MARKS[1])].splitlines()
    of_ring = [policy for policy in POLICIES if f"| {policy} | 2 ranks" in text]
    assert len(of_ring) == 5
    rows = [sampled_row(policy, 2) for policy in of_ring] + [explored_row(policy, 2, "KV") for policy in of_ring]
    rows += [fabric_row(policy, fabric) for policy in ("upstream", "fused") for fabric in FABRICS[::2]]
    table = as_markdown([*rows, lag_row("upstream", 2), lag_row("slots", 4)], ())
    assert set(table.splitlines()[2:]) <= set(generated)
