"""Collectives as they were on an earlier day, against arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from refsim.base.config import parse_parallel
from refsim.base.mesh import Topology, get_mesh
from refsim.models import registry
from refsim.models.figures import Execution
from refsim.timing.cost import history
from refsim.timing.cost.chips import get_chip
from refsim.timing.cost.fabric import Fabric
from refsim.timing.cost.fitted import get_params
from refsim.timing.predict import estimate as estimates
from refsim.timing.predict import replay
from refsim.timing.read.recorder import Op

GALAXY = Fabric(get_chip("blackhole", galaxy=True), 8, 2, Topology.RING)
WORMHOLE = Fabric(get_chip("wormhole_b0", galaxy=True), 8, 4, Topology.RING)


def test_a_packet_beside_attention_takes_what_a_ring_of_four_lost():
    """1.495 TFLOP on 100 cores of 2.765: 10.81 ms at 50 %, of which 2.08 ms are a shard at 65 %; 2 x 43.75 MB there."""
    whole = 4 * 10 * 8544 * 4 * 8544 * 128 / (100 * 2.7648e12)
    seconds = whole / 0.5 - whole / 0.65 / 4
    gbps = 2 * 43.75e6 / 2 / seconds / 1e9
    assert 4096 / history.BUSY_NS == pytest.approx(gbps, rel=1e-3) and gbps == pytest.approx(5, rel=0.01)
    assert history.BUSY_NS > history.IDLE_NS


@pytest.mark.parametrize(
    ("day", "gbps", "topology"),
    [
        (date(2026, 3, 9), 9.6, Topology.LINEAR),
        (date(2026, 3, 19), 5.008, Topology.LINEAR),
        (date(2026, 3, 24), 5.008, Topology.RING),
        (date(2026, 3, 25), 20.67, Topology.RING),
        (date(2026, 3, 31), 25 * 0.945, Topology.RING),
        (None, 25 * 0.945, Topology.RING),
    ],
)
def test_a_link_in_ring_attention_by_day(day, gbps, topology):
    found = history.as_on(day, GALAXY, "ring_attention")
    assert found.rate("gather") / 2 == pytest.approx(gbps, rel=1e-3) and found.topology is topology


def test_other_collectives_had_smaller_packets_alone():
    before = history.as_on(date(2026, 3, 19), GALAXY, "all_gather")
    assert before == replace(GALAXY, payload=4096) and before.rate("gather") < GALAXY.rate("gather")
    assert before.rate("scatter") == GALAXY.rate("scatter")


def test_wormhole_gathered_along_a_line_at_its_own_rate():
    found = history.as_on(date(2026, 3, 19), WORMHOLE, "ring_attention")
    assert found.topology is Topology.LINEAR and found.rate("gather") == WORMHOLE.rate("gather")


def test_the_gather_of_a_loudbox_was_in_sight_in_march_and_is_not_today():
    (known,) = (k for case, k in registry.figures().items() if case[2] == "bh-loudbox")
    on, run_so = get_mesh("bh-loudbox"), known.run
    assert run_so.day == date(2026, 3, 19)
    parallel, name = parse_parallel("sp4_tp2", on), "wan22-t2v-a14b"
    march, today = (
        estimates.estimate(name, on, parallel, size="480p", execution=e) for e in (run_so, replace(run_so, day=None))
    )
    assert march.by_kind["sdpa"] == pytest.approx(today.by_kind["sdpa"])
    assert march.by_kind["collective"] > 2 * today.by_kind["collective"]


def test_a_linear_of_october_2025_had_a_third_of_the_engine_where_throttled():
    """22272 x 3072 x 4096 on 64 cores of 2.048 TFLOP/s: 4.28 ms at full speed."""
    linear = Op("matmul", "linear", ((22272, 3072), (4096, 3072)), (22272, 4096), "bf16", "block 0")
    least = 2 * 22272 * 3072 * 4096 / (64 * 2.048e12) * 1e9
    machine = replay.machine(get_mesh("t3k"), get_params("wormhole_b0"))
    throttled = Execution(day=date(2025, 10, 29), busy=0.33)

    def ns(run: Execution) -> float:
        return replay.op_cost(replace(machine, run=run), linear).ns

    then, now = ns(throttled), ns(replace(throttled, day=date(2025, 10, 30)))
    assert least / 0.33 < then < 1.1 * least / 0.33 and least < now < 2 * least
    assert now == ns(replace(throttled, day=None))
    assert least < ns(replace(throttled, busy=1.0)) < 2 * least
