"""Plans: what they hold, how they rank, why they refuse; the critical path; memory beside ttnn's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import Topology, get_mesh
from refsim.base.options import RunOptions
from refsim.models.registry import figures, get, published
from refsim.timing.cost.fitted import get_params
from refsim.timing.predict import plan as plans
from refsim.timing.predict import replay, tt_dit
from refsim.timing.predict.critical import critical_path
from refsim.timing.predict.device_memory import memory, read_ttnn
from refsim.timing.read.program import programs
from refsim.timing.read.reading import Op, read_published
from refsim.timing.report import perf_report
from tests.json_output import loads

TTNN = Path(__file__).resolve().parents[3] / "reports" / "ttnn_memory"
T3K, GALAXY = get_mesh("t3k"), get_mesh("galaxy")

PLANNED = [
    case
    for case, figure in figures().items()
    if get_mesh(case[2]).arch == "wormhole_b0" and case[1] != "720p" and figure.run.blocks != "whole"
]
"""Published figures that are planned here, of programs that share features as plans do; a plan takes seconds."""
WAN_ON_T3K, SD35_ON_GALAXY = ("wan22-t2v-a14b", "t3k"), ("sd35-large", "galaxy")


@cache
def planned(model: str, mesh: str) -> list[plans.Candidate]:
    """Return a plan with the topology of the published run: all schemes on the T3K, else ring attention."""
    (case,) = (case for case in PLANNED if (case[0], case[2]) == (model, mesh))
    only = plans.Only(None if mesh == "t3k" else "ring", figures()[case].run.topology.value)
    return plans.plan(model, get_mesh(mesh), size=case[1], only=only)


@pytest.mark.parametrize("case", PLANNED, ids=lambda c: "-".join(c))
def test_the_published_configuration_is_among_the_first_three(case):
    """Of all schemes, and of what tt_dit runs today; there it is also the best way to lay out its factors."""
    model, _, mesh, parallel = case
    text = plans.estimates.describe(parse_parallel(parallel, get_mesh(mesh)))
    today = plans.ranked(plans.only_tt_dit(planned(model, mesh)))
    for candidates in (planned(model, mesh), today):
        assert next(c for c in candidates if c.text == text).rank in (1, 2, 3)
    first = next(c for c in today if c.text == text)
    assert first.best or first.estimate.seconds < 1.01 * min(c.estimate.seconds for c in today if c.rank == first.rank)


@pytest.mark.parametrize("case", PLANNED, ids=lambda c: "-".join(c))
def test_ways_to_lay_out_the_same_factors_stand_together(case):
    runs = [c for c in planned(case[0], case[2]) if not c.reason]
    ranks = [c.rank for c in runs]
    assert ranks == sorted(ranks) and set(ranks) == set(range(1, max(ranks) + 1))
    best = [c.estimate.seconds for c in runs if c.best]
    assert best == sorted(best)
    for rank in set(ranks):
        same = [c for c in runs if c.rank == rank]
        assert len({(c.estimate.parallel.cfg, c.estimate.parallel.sp, c.estimate.parallel.tp) for c in same}) == 1
        seconds = [c.estimate.seconds for c in same]
        assert seconds == sorted(seconds) and same[0].best


def test_axes_rings_and_ulysses_of_the_same_factors_have_one_rank():
    assert {c.rank for c in planned(*WAN_ON_T3K) if c.text.startswith("sp4@1_tp2@0") and not c.reason} == {1}


def test_what_tt_dit_does_not_run_today_is_refused_with_its_reason():
    today = plans.ranked(plans.only_tt_dit(planned(*WAN_ON_T3K)))
    assert all("Ulysses" in c.reason for c in today if c.attention != "ring" and "GB" not in c.reason)
    assert not any(c.tt_dit_refusal for c in today if not c.reason)
    sd35, wan = get("sd35").tt_dit, get("wan22").tt_dit
    assert "one after the other" in tt_dit.refusal(wan, parse_parallel("cfg2_sp4", T3K), 40, False)
    assert "pad" in tt_dit.refusal(wan, parse_parallel("sp8_tp4", GALAXY), 38, False)
    assert not tt_dit.refusal(sd35, parse_parallel("sp8_tp4", GALAXY), 38, False)
    assert "cut over sp" in tt_dit.refusal(sd35, parse_parallel("sp8_tp4", GALAXY), 38, True)
    assert "no such model" in tt_dit.refusal(None, parse_parallel("sp8_tp4", GALAXY), 48, False)


def test_every_factorisation_is_there_once_or_has_a_reason():
    texts = [c.text for c in planned(*SD35_ON_GALAXY)]
    assert len(texts) == len(set(texts))
    reasons = {c.text: c.reason for c in planned(*SD35_ON_GALAXY)}
    assert "axes" in reasons["sp32"]
    assert {"cfg2@1_sp4@0_tp4@1", "cfg2@1_sp4@1_tp4@0", "sp8@1_tp4@0", "sp4@0_tp8@1"} <= set(texts)
    assert {"sp4@1_tp2@0 ring2 x ulysses2", "sp4@1_tp2@0 ring1 x ulysses4"} <= {c.text for c in planned(*WAN_ON_T3K)}
    ranks = [c.rank for c in planned(*SD35_ON_GALAXY) if not c.reason]
    assert ranks == sorted(ranks) and ranks[0] == 1
    assert any("GB" in c.reason for c in planned(*WAN_ON_T3K))


def test_more_links_and_a_ring_are_never_slower():
    parallel = parse_parallel("sp4@0_tp8@1", GALAXY)
    reading = read_published(published()["sd35-large"], (128, 128), RunOptions(GALAXY, parallel, dtype="bf16"), batch=1)
    wirings = plans.wirings(GALAXY, reading)
    assert {str(w) for w in wirings} == {f"{t} x{n}" for t in ("Linear", "Ring") for n in (1, 2, 3, 4)}
    c = plans._candidate("sd35-large", GALAXY, parallel, "1024", reading, wirings)
    for topology in ("Linear", "Ring"):
        times = [s for w, s in sorted(c.seconds.items()) if w.topology == topology]
        assert times == sorted(times, reverse=True) and times[0] > 1.2 * times[-1]
    assert c.seconds[plans.Wiring(4, "Ring")] < c.seconds[plans.Wiring(4, "Linear")]
    assert c.estimate.seconds == min(c.seconds.values())
    assert sum(c.savings.values()) < 1 and list(c.savings.values()) == sorted(c.savings.values(), reverse=True)


def test_scaling_above_100_says_what_the_smallest_system_spends_more_on():
    def candidate(mesh: str, text: str, topology: str, fsdp: bool, **seconds: float) -> Any:
        on = get_mesh(mesh)
        e = SimpleNamespace(mesh=on, parallel=parse_parallel(text, on), by_kind=seconds, steps=2)
        e.memory, e.timeline = SimpleNamespace(fsdp=fsdp), SimpleNamespace(throttling=1.0)
        return SimpleNamespace(text=text, estimate=e, wiring=plans.Wiring(2, topology))

    small = candidate("bh-qb", "sp2_tp2", "Linear", True, sdpa=10.0, matmul=3.0, collective=4.0)
    large = candidate("bh-loudbox", "cfg2_tp4", "Ring", False, sdpa=4.5, matmul=2.0)
    found = perf_report.above(small, large)
    assert "20.0 instead of 18.0 on sdpa (ring attention" in found and "matmul," not in found
    assert "8.0 instead of 0.0 on collective (weights do not fit" in found and "no Ring" in found
    alike = candidate("bh-loudbox", "sp2_tp4", "Linear", True, sdpa=5.0, matmul=1.5, collective=1.0)
    assert perf_report.above(small, alike).endswith("more device seconds: 8.0 instead of 4.0 on collective.")
    small.estimate.timeline.throttling = 1.25
    assert "power limit makes its step 1.25 times as long, that of this one 1.00" in perf_report.above(small, alike)


def test_limits_say_what_a_mesh_has_not():
    assert "two devices" in plans.limits(T3K)["Ring on axis 0"]
    assert "no link leads" in plans.limits(T3K)["Ring on axis 1"]
    assert not any("Ring" in what for what in plans.limits(GALAXY))


def op(number: int, kind: str, *reads: int, axis: int = 0) -> Op:
    shape = (4096, 2048)
    more = {"axis": axis, "size": 2, "topology": Topology.LINEAR, "bytes": 8 << 20} if kind == "collective" else {}
    name = {"collective": "all_gather", "matmul": "linear"}.get(kind, kind)
    return Op(kind, name, (shape, (2048, 2048)), shape, "bf16", "block 0", id=number, reads=reads, **more)


def test_the_critical_path_waits_for_what_is_read_and_for_nothing_else():
    machine = replay.machine(T3K, get_params(T3K.arch))
    took = {kind: replay.replay([op(0, kind)], machine).ns for kind in ("matmul", "collective")}
    beside = [op(0, "matmul"), op(1, "collective", 0), op(2, "matmul", 0)]  # the second matmul does not read the gather
    waits = [op(0, "matmul"), op(1, "collective", 0), op(2, "matmul", 1)]
    longest = took["matmul"] + max(took.values())
    assert critical_path(beside, beside, machine).ns == pytest.approx(longest)
    path = critical_path(waits, waits, machine)
    assert path.ns == pytest.approx(2 * took["matmul"] + took["collective"]) == pytest.approx(path.chain_ns)
    assert path.by_kind == pytest.approx({"matmul": 2 * took["matmul"], "collective": took["collective"]})
    dropped = [waits[0], waits[1], op(2, "layout", 1), op(3, "matmul", 2)]  # a layout that no program became
    kept = [waits[0], waits[1], dropped[3]]
    assert critical_path(kept, dropped, machine).ns == pytest.approx(path.ns)


def test_the_critical_path_of_a_model_lies_between_its_chain_and_the_replay():
    parallel = parse_parallel("cfg2_sp2_tp2", T3K)
    reading = read_published(published()["sd35-large"], (128, 128), RunOptions(T3K, parallel, dtype="bf16"), batch=2)
    machine, ops = replay.machine(T3K, get_params(T3K.arch)), programs(reading.ops)
    path, line = critical_path(ops, reading.ops, machine), replay.replay(ops, machine)
    assert path.chain_ns < path.ns < line.ns
    assert sum(path.by_kind.values()) == pytest.approx(path.ns)


@pytest.mark.parametrize("name", ["t3k-cfg2_sp2_tp2", "galaxy-cfg2_sp4_tp4"])
def test_the_account_of_memory_is_near_ttnns_own(name):
    """ttnn's figures: its allocator on mock meshes, a whole SD3.5-Large (``refsim memory``)."""
    t = read_ttnn(TTNN / f"{name}.json")
    options = RunOptions(t.mesh, t.parallel, dtype="bf16")
    reading = read_published(published()["sd35-large"], (128, 128), options, batch=2)
    found = memory(reading, replay.machine(t.mesh, get_params(t.mesh.arch)).chip, t.parallel)
    assert found.total == pytest.approx(t.total, rel=0.03)
    assert found.weights == pytest.approx(t.weights, rel=0.02)
    assert found.capacity == pytest.approx(t.capacity, rel=0.03)


def run(*words: str) -> str:
    from refsim.cli.app import app

    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_command_lines(tmp_path):
    time = ["time", "sd35-large", "--mesh", "t3k", "--parallel", "cfg2_sp2_tp2"]
    report = TTNN / "t3k-cfg2_sp2_tp2.json"
    found = loads("time", run(*time, "--ttnn-memory", str(report), "--json"))
    assert found["memory_gb"]["ttnn"]["weights"] == pytest.approx(found["memory_gb"]["weights"], rel=0.02)
    assert found["critical_path"]["overlapped_seconds"] < found["seconds"]
    with pytest.raises(UserError, match="another mesh or configuration"):
        run(*time[:-1], "cfg2_tp4", "--ttnn-memory", str(report))
    with pytest.raises(UserError, match="another model"):
        run("time", "sd35-medium", *time[2:], "--ttnn-memory", str(report))
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match="refsim memory"):
        run(*time, "--ttnn-memory", str(tmp_path / "x.json"))
    words = ["plan", "sd35-large", "--mesh", "n300", "--attention", "ring", "--json"]
    plan = loads("plan", run(*words, "--csv", str(tmp_path / "p.csv")))
    assert list(pd.read_csv(tmp_path / "p.csv")["parallel"]) == [row["parallel"] for row in plan["plans"]]
    assert plan["plans"][0]["rank"] == 1 and plan["plans"][0]["would_save"]
    assert any("wiring" in row for row in plan["infeasible"])
    with pytest.raises(UserError, match="Ring, Linear"):
        run("plan", "sd35-large", "--mesh", "n300", "--topology", "Torus")
