"""Layers judged one by one: what a whole transformer hides, and how small an error still is seen."""

import re
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from parity.cases import Layout, ModelShape, make_case
from parity.cases.suites import suite_cases
from parity.cli.parity import app
from parity.kinds import thresholds_for
from parity.kinds.cpu.transformer import Transformer
from parity.measure import layers, perturbation
from parity.measure.thresholds import judge
from parity.run import sensitivity
from parity.run.cpu import CpuRunner
from refsim.base.errors import InvariantError, UserError
from refsim.base.options import RunOptions
from refsim.runtime.group import parallel_groups
from refsim.runtime.watch.observe import Observed
from tests.json_output import loads

OPTIONS = RunOptions.of(mesh="bh-qb", parallel="sp2_tp2")
PLACE = OPTIONS.mesh, OPTIONS.parallel
ROWS, FEATURES = 70, 48  # 64 + 6 rows, 32 + 16 features


@pytest.fixture
def oracle():
    g = torch.Generator().manual_seed(3)
    took, gave = torch.randn(1, ROWS, FEATURES, generator=g), torch.randn(1, ROWS, FEATURES, generator=g)
    return {"ff": layers.Module([took], [gave], torch.randn(FEATURES, FEATURES, generator=g))}


def observed(oracle, name="ff", partial=False):
    """What four ranks hold when everything is right: tokens cut over one axis of the mesh, features over the other."""
    ranks = []
    for rank in range(4):
        groups = parallel_groups(OPTIONS.mesh, OPTIONS.parallel, rank)
        sp, tp = groups["sp"].index, groups["tp"].index
        whole = torch.nn.functional.pad(
            oracle["ff"].gave[0], (0, 64 - FEATURES, 0, 128 - oracle["ff"].gave[0].shape[1])
        )
        local = whole[:, 64 * sp : 64 * sp + 64, 32 * tp : 32 * tp + 32].clone()
        ranks.append([Observed(name, 0, local, {"sp": 1, "tp": 2}, partial)])
    return ranks


def test_the_same_layers_have_no_distance(oracle):
    found = layers.judge(observed(oracle), oracle, OPTIONS, prompt=0)
    assert found.metrics == {"layer_gain": 0.0, "layer_rel_rmse": 0.0}


def test_what_a_rank_does_not_observe_is_named(oracle):
    """Embeddings of time are not looked at; inside a block everything is."""
    ranks = observed(oracle)
    known = {**oracle, "time_embedder.linear_1": oracle["ff"], "proj_out": oracle["ff"]}
    assert layers.unseen(ranks, known) == []
    known["blocks.0.proj_out"] = oracle["ff"]
    assert layers.unseen(ranks, known) == [f"blocks.0.proj_out on rank {rank}" for rank in range(4)]
    del ranks[2][0]
    assert layers.unseen(ranks, oracle) == ["ff on rank 2"]
    ranks[0] += observed(oracle, "ff.in")[0]
    ranks[1] += [*observed(oracle, "ff.in@0:48")[1], *observed(oracle, "ff.term", partial=True)[1]]
    assert layers.unseen(ranks[:2], oracle) == ["ff.term on rank 0"]


def test_a_factor_on_one_rank_is_named(oracle):
    ranks = observed(oracle)
    ranks[3][0].local.mul_(1.01)
    found = layers.judge(ranks, oracle, OPTIONS, prompt=0)
    assert found.metrics["layer_gain"] == pytest.approx(0.01, rel=1e-4)
    assert found.worst["layer_gain"] == "ff on rank 3"


def test_a_rank_with_nothing_but_padding_has_no_findings(oracle):
    oracle["ff"].gave[0] = oracle["ff"].gave[0][:, :30]  # all in the first shard
    ranks = observed(oracle)
    for asked in (False, True):
        found = layers.findings(ranks, oracle, OPTIONS, 0, rows=asked)
        assert {f.rank for f in found} == {r for r in range(4) if not parallel_groups(*PLACE, r)["sp"].index}


def test_padding_is_not_judged_and_a_nan_is(oracle):
    ranks = observed(oracle)
    groups = [parallel_groups(OPTIONS.mesh, OPTIONS.parallel, rank) for rank in range(4)]
    last = next(r for r in range(4) if groups[r]["sp"].index == groups[r]["tp"].index == 1)
    ranks[last][0].local[:, 6:] = 9.0
    ranks[last][0].local[:, :, 16:] = 9.0
    assert layers.judge(ranks, oracle, OPTIONS, prompt=0).metrics["layer_rel_rmse"] == 0.0
    spoiled = layers.spoiled_padding(ranks, oracle, OPTIONS, 0)  # for an explanation
    assert [(f.name, f.rank, f.rows) for f in spoiled] == [("ff", last, (0, 64))]
    assert not layers.spoiled_padding(observed(oracle), oracle, OPTIONS, 0)
    ranks[last][0].local[0, 0, 0] = torch.nan
    found = layers.judge(ranks, oracle, OPTIONS, prompt=0)
    assert found.metrics["layer_gain"] != found.metrics["layer_gain"]
    assert found.worst["layer_rel_rmse"] == f"ff on rank {last}"


def test_what_a_block_adds_is_judged_in_units_of_itself_or_of_an_eighth_of_the_stream(oracle):
    oracle["blocks.0+0"] = layers.Module(gave=oracle["ff"].gave, stream=oracle["ff"].gave[0] * 16)
    ranks = observed(oracle, "blocks.0+0")
    ranks[3][0].local.mul_(1.04)
    assert layers.judge(ranks, oracle, OPTIONS, prompt=0).metrics["layer_rel_rmse"] == pytest.approx(0.02, rel=0.1)
    oracle["blocks.0+0"] = layers.Module(gave=oracle["ff"].gave, stream=oracle["ff"].gave[0])
    assert layers.judge(ranks, oracle, OPTIONS, prompt=0).metrics["layer_rel_rmse"] == pytest.approx(0.04, rel=1e-3)


def test_another_shape_is_infinitely_far(oracle):
    ranks = observed(oracle)
    short = ranks[2][0].local[:, :5]
    ranks[2] = [Observed("ff", 0, short, ranks[2][0].cut, False)]
    found = layers.judge(ranks, oracle, OPTIONS, prompt=0)
    assert set(found.metrics.values()) == {float("inf")} and found.worst["layer_gain"] == "ff on rank 2"


def test_a_layer_without_counterpart_is_no_silence(oracle):
    with pytest.raises(InvariantError, match="no module fff"):
        layers.judge(observed(oracle, "fff"), oracle, OPTIONS, prompt=0)


def test_the_floor_is_that_of_the_smallest_pieces(oracle):
    noisy = {"ff": layers.Module([x.clone() for x in oracle["ff"].took], [x.clone() for x in oracle["ff"].gave])}
    noisy["ff"].gave[0][0, 32:64, 16:32] *= 1.1
    found = layers.floor(noisy, oracle)
    assert found == pytest.approx({"layer_gain": 0.1, "layer_rel_rmse": 0.1}, rel=1e-4)


def test_an_op_three_percent_too_large_on_one_rank_fails_a_bf16_case():
    """15 % passed before layers were judged: the whole transformer's error is a third of what rounding may have."""
    pytest.importorskip("diffusers")
    case = make_case("transformer", "sd35_tiny", Layout("n300", "tp2"), ModelShape((12, 20), 9, 1), dtype="bf16")
    bounds = thresholds_for("transformer", "bf16")
    with CpuRunner() as runner:
        clean = runner.run(case, 0)
        assert judge(clean.metrics, bounds) == [] and clean.metrics["layer_gain"] > 0
        for op in (
            "feed-forward",
            "row-parallel linear",
            "attention",
            "norm",
            "norm of a head",
            "chunk of a modulation",
        ):
            wrong = runner.run(case, 0, fault=perturbation.fault(op, 1, by=0.03, call=2))
            found = {reason.split()[0] for reason in judge(wrong.metrics, bounds)}
            assert "layer_gain" in found and "rel_rmse" not in found, (op, found)
            assert wrong.extra["worst_layers"]["layer_gain"].endswith("on rank 1")


ALONE = re.compile(
    r"(time_text_embed|condition_embedder\.time_embedder|time_embedding)\..*|norm_out(\.\w+)?|norm_final|proj_out"
)
"""Replicated embeddings that every modulation is made of, and what gives the sample."""


@pytest.mark.parametrize("model", ["sd35_tiny", "flux1_tiny", "wan22_tiny", "cogvideox_15_tiny"])
def test_every_layer_of_a_block_is_observed(model):
    """A layer that no longer says what it gave is not judged, and no bound would fail for it."""
    pytest.importorskip("diffusers")
    case = next(c for c in suite_cases("smoke") if c.model == f"{model}_quiet" and c.dtype == "fp32")
    with CpuRunner() as runner:
        kind = runner.kind(case)
        assert isinstance(kind, Transformer)
        result = kind.run(case, case.layout, 0)
        kind.measure(case, 0, result)
        _, oracle = kind.watched(case, 0)
    for rank in result.observed:
        names = {one.name.partition("@")[0] for one in rank}
        assert {name for name in oracle if name not in names and not ALONE.fullmatch(name)} == set()


def test_every_tiny_transformer_has_its_layers_judged():
    judged = Counter(case.needs_gb == 0 for case in suite_cases("smoke") if case.kind == "transformer")
    assert judged[True] > 5 * judged[False] / 2
    for dtype in ("fp32", "bf16"):
        limits = {t.metric: t.limit for t in thresholds_for("transformer", dtype)}
        assert limits["layer_gain"] <= sensitivity.GOAL[dtype]


def test_an_op_that_does_not_exist_is_one_sentence():
    case = next(case for case in suite_cases("smoke") if sensitivity.measurable(case))
    with pytest.raises(UserError, match="op 'sort' does not exist; choose one of column-parallel linear"):
        sensitivity.measure([case], ops=["sort"])
    with pytest.raises(UserError, match="choose attention or transformer cases of several devices"):
        sensitivity.measure([])


def test_rows_of_the_table_say_what_is_seen():
    rows = [
        sensitivity.Row("a", "bf16", "attention", 1, 2, 0.01, 0.03, "layer_gain"),
        sensitivity.Row("a", "bf16", "norm", 1, 2, 0.06, 0.1, "rel_rmse"),
        sensitivity.Row("a", "fp32", "norm", None, None, 1.0, None, ""),
    ]
    assert [row.good for row in rows] == [True, False, False]
    assert sensitivity.line(rows[2]).endswith("the answer depends on none of its calls that were tried")
    text = sensitivity.as_markdown(rows)
    assert "| a | attention | 1 | 2 | 0.01 | 0.03 | yes | layer_gain |" in text
    assert "| a | norm | - | - | 1 | - | no | - |" in text
    assert sensitivity.Sensitivity.of(rows).good == 1


@pytest.mark.parametrize(
    ("case", "op", "rank", "dtype"),
    [
        ("wan22_tiny_long_prompt-n300-sp2-ring-fp32", "feed-forward", 0, "fp32"),  # rank 1 has no token of the picture
        ("sd35_tiny-n300-sp2-ring-split_prompt-fp32", "feed-forward", 1, "fp32"),  # and here none of the prompt
        ("attention-t3k_1x8-sp8-ulysses-fp32-constant_rows", "attention", 1, "fp32"),
        ("cogvideox_5b_tiny_quiet-bh_qb-sp2_tp2-ring-bf16", "reduce-scatter of features", 1, "bf16"),  # plus a bias
        ("wan21_i2v_tiny-bh_qb-sp2_tp2-ring-bf16", "attention", 1, "bf16"),  # one of two that are summed
    ],
)
def test_a_factor_is_seen_where_the_answer_depends_on_it(case: str, op: str, rank: int, dtype: str) -> None:
    (found,) = sensitivity.measure([x for x in suite_cases("smoke") if x.id == case], ops=[op])
    assert found.good and found.rank == rank and found.fails <= sensitivity.GOAL[dtype]


def test_an_op_on_which_the_answer_depends_nowhere_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a call scaled that never comes, as if every one were of padding."""
    monkeypatch.setattr(sensitivity, "fault", lambda op, rank, by, call: perturbation.fault(op, rank, by=by, call=999))
    case = next(x for x in suite_cases("smoke") if x.id == "attention-n300-sp2-ring-fp32-normal")
    (found,) = sensitivity.measure([case], ops=["attention"])
    assert (found.rank, found.call, found.fails, found.good) == (None, None, None, False)


def test_the_command_measures_an_op_of_a_case_and_tells_programs():
    words = ["sensitivity", "-k", "attention-n300-sp2-ring-fp32-normal", "--op", "attention", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = loads("parity sensitivity", done.stdout)
    (row,) = told["rows"]
    assert told["good"] == row["good"] == 1 and 0 < row["passes"] < row["fails"] <= told["goal"]["fp32"]
