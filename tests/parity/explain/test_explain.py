"""A failed case explains itself: the place, the likely cause, in every form of report; how signatures are judged."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from parity.cases import AttentionShape, Layout, ModelShape, make_case
from parity.cases.inputs import attention_inputs
from parity.cases.oracles.formulas import attention_float64
from parity.cases.selection import find_case
from parity.cli.faults import app as faults_app
from parity.cli.parity import app
from parity.explain import attention, causes, decoding, explanation, layered, pictures, places, tokens
from parity.faults import ref_cases
from parity.faults.recognition import signatures as recognition
from parity.faults.recognition.right_place import right_place
from parity.faults.recognition.settings import settings
from parity.faults.run import corpus
from parity.kinds import load
from parity.kinds.base import Measured
from parity.kinds.cpu.transformer import Transformer, guided_sample
from parity.measure.layers import Finding
from parity.report import results
from parity.run.case import run_case
from parity.run.cpu import CpuRunner
from parity.run.runner import Runner
from parity.run.suite import Asked, run_cases
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.files.keys import as_json
from refsim.pipelines.speculative import Decoded, Step
from tests.json_output import loads

RING = ref_cases.RING


@pytest.fixture(scope="module")
def right():
    inputs = attention_inputs(RING.shape, "normal", 3)
    return inputs, *attention_float64(inputs, RING.shape)


def found(right, out=None, lse=None):
    inputs, ref, ref_lse = right
    answer = attention.Attended(
        ref if out is None else out, ref_lse if lse is None else lse, ref, ref_lse, limit=1e-6, lse_limit=1e-6
    )
    return attention.find(answer, inputs, RING.shape, RING.layout)


def test_a_right_answer_has_no_place(right):
    assert found(right).place is None


def test_one_row_of_one_head_is_found(right):
    out = right[1].clone()
    out[0, 3, 64 + 7] = 0
    place = found(right, out).place
    assert (place.rank, place.ranks, place.coord) == (2, (2,), (0, 2))
    assert (place.heads, place.rows, place.step) == ((3, 4), (71, 72), None)


@pytest.mark.parametrize("math", ["storage", "gemm"])
def test_what_is_judged_in_units_of_noise_has_a_place_too(math):
    layout, kind = replace(RING.layout, math=math), load(f"attention_{math}")(None)
    case = make_case(f"attention_{math}", "attention", layout, RING.shape, dtype="bf16")
    result = kind.run(case, case.layout, 0)
    limits = {threshold.metric: threshold.limit for threshold in kind.thresholds["bf16"]}
    assert kind.explain(case, 0, result, limits).place is None
    result.tensors["out"][0, 3, 64 + 7] = 0
    place = kind.explain(case, 0, result, limits).place
    assert (place.rank, place.heads, place.rows) == (2, (3, 4), (71, 72))


@pytest.mark.parametrize(("shard", "rank", "step"), [(0, 1, 1), (2, 1, 3), (1, 1, 0)])
def test_the_ring_step_whose_keys_are_left_out_is_named(right, shard, rank, step):
    inputs, ref, _ = right
    pieces, names = attention._contributions(inputs, RING.shape, RING.layout, (0, 2, slice(32, 64)))
    out = ref.clone()
    out[0, 2, 32:64] -= pieces[names.index(shard)]
    place = found(right, out).place
    assert (place.rank, place.heads, place.rows, place.step) == (rank, (2, 3), (32, 64), step)


def test_what_is_not_a_number_is_shown(right):
    out = right[1].clone()
    out[0, 0, 100, 0] = torch.nan
    evidence = found(right, out)
    assert evidence.place.rank == 3 and evidence.features["share:not_finite"] == 1.0
    assert places.shaded(evidence.error_map).splitlines()[1].endswith("|   !|")


def finding(name, index, error, rank=0, piece=0, pieces=1):
    metrics = {"layer_gain": error / 10, "layer_rel_rmse": error}
    return Finding(name, rank, index, piece, pieces, 0, metrics, error, (0, 4))


def test_the_first_wrong_layer_in_program_order_is_named_not_the_worst():
    names = ["blocks.0.to_q", "blocks.0.to_out.term", "blocks.0.to_out", "blocks.0.ff"]
    ranks = [[finding(n, i, 1e-8, rank) for i, n in enumerate(names)] for rank in (0, 1)]
    ranks[1][2], ranks[1][3] = finding(names[2], 2, 1e-3, 1), finding(names[3], 3, 0.5, 1)
    evidence = layered.find([*ranks[0], *ranks[1]], {"layer_gain": 1e-5, "layer_rel_rmse": 1e-5}, get_mesh("n300"))
    place = evidence.place
    assert (place.tensor, place.rank, place.coord) == ("blocks.0.to_out", 1, (0, 1))
    assert (place.after, place.collective) == ("blocks.0.to_out.term", "reduce_scatter over tp")
    assert evidence.features["first:blocks.N.to_out"] == 1.0
    assert layered.find(ranks[0], {"layer_gain": 1e-5}, get_mesh("n300")).place is None


def test_a_wrong_part_of_a_picture_and_of_tokens_is_found():
    ref = torch.randn(1, 3, 20, 26, generator=torch.Generator().manual_seed(0))
    out = ref.clone()
    out[..., 12, 9] += 1.0
    place = pictures.find(out, ref, (10, 13), Layout("t3k", "sp2_tp4"), 1e-6).place
    assert (place.rank, place.rows, place.columns) == (5, (12, 13), (9, 10))
    ref, out = torch.randn(1, 64, 8), None
    out = ref.clone()
    out[0, 40] += 1.0
    place = tokens.find(out, ref, [(0, 32), (32, 64)], Layout("n300", "sp2"), 1e-6).place
    assert (place.rank, place.rows) == (1, (40, 41))


def test_the_first_wrong_round_of_a_text_is_found():
    class Expected:
        tokens, proposed, accepted, margins = [1, 2, 3], [[5, 6], [7, 8]], [2, 1], [0.5, 0.5]

    steps = [Step([5, 6], 2, 0.5, 6, 4, 0.0), Step([7, 9], 1, 0.5, 7, 6, 0.0)]
    text = Decoded([1, 2, 3], steps, 0.5)
    place = decoding.find([text], [Expected()], [4], 1e-4).place
    assert place.tensor == "drafter.proposals" and "prompt 0, round 1, position 1" in place.note


def test_a_wrong_token_is_of_the_round_that_gave_it():
    steps = [Step([5, 6], 3, 0.5, 7, 4, 0.0), Step([7, 8], 1, 0.5, 8, 7, 0.0)]
    assert [decoding._round_of(position, steps) for position in range(6)] == [0, 0, 0, 0, 1, 1]


def test_a_nearer_signature_is_likelier_and_all_are_one():
    known = {
        "temperature": 2.0,
        "sentences": {"a": "A.", "b": "B."},
        "signatures": [
            {"fault": "a", "kind": "attention", "features": {"share:rows": 1.0, "first:x": 1.0}},
            {"fault": "b", "kind": "attention", "features": {"share:rows": 0.0}},
            {"fault": "c", "kind": "transformer", "features": {"share:rows": 1.0, "first:x": 1.0}},
        ],
    }
    ranked = causes.nearest("attention", {"share:rows": 0.9, "first:x": 1.0}, known=known)
    assert [cause.fault for cause in ranked] == ["a", "b"]
    assert ranked[0].likelihood > 0.9 and sum(cause.likelihood for cause in ranked) == pytest.approx(1.0)
    assert str(ranked[0]).startswith("a (A), 0.9")


def test_what_is_stored_says_how_it_was_made_and_covers_the_corpus():
    known = causes.stored()
    assert known["made"]["seeds"] == [7, 23] and known["made"]["runs"] == len(known["signatures"])
    assert {one["fault"] for one in known["signatures"]} <= set(corpus("cpu"))
    assert len(known["sentences"]) >= 0.95 * len(corpus("cpu"))


def test_what_judges_shares_no_mesh_model_or_seed_with_what_signatures_are_made_from():
    assert recognition.JUDGED_SEED not in recognition.SEEDS
    for known in settings().values():
        assert known.judged.mesh not in {case.mesh for case in known.made}
        assert (known.judged.model, known.judged.shape) not in {(case.model, case.shape) for case in known.made}


def test_a_draw_is_by_seed():
    assert recognition.draw(5, 1) == recognition.draw(5, 1) != recognition.draw(5, 2)


def test_a_wrong_place_is_told_from_a_right_one(right):
    a, b = ({"out": right[1].clone(), "lse": right[2]} for _ in range(2))
    a["out"] = torch.nn.functional.pad(a["out"][:, :, :101], (0, 0, 0, 11))
    b["out"] = a["out"].clone()
    b["out"][0, 3, 71] = 0

    class Run:
        def __init__(self, tensors):
            self.tensors = tensors

    place = places.Place("out", 2, (2,), (0, 2), (3, 4), (71, 72))
    assert right_place(place, RING, Run(b), Run(a), "")
    assert not right_place(places.Place("out", 2, (2,), (0, 2), (4, 5), (71, 72)), RING, Run(b), Run(a), "")
    assert not right_place(places.Place("out", 1, (1,), (0, 1), (3, 4), (71, 72)), RING, Run(b), Run(a), "")
    assert not right_place(None, RING, Run(b), Run(a), "")


@pytest.fixture(scope="module")
def failed():
    """A suite of one case with a fault of the corpus in it."""
    name = corpus("cpu")["one-row"].reference

    class Faulty(CpuRunner):
        def run(self, case, seed, **more):
            return super().run(case, seed, fault=name, **more)

    case = make_case("attention", "attention", RING.layout, AttentionShape(6, 112, 21, 101, head_dim=32))
    return run_cases([case], Faulty(), Asked(seed=5))


def test_a_failed_case_says_where_and_what_in_every_report(failed):
    record = failed.records[0]
    why = as_json(record)["explanation"]
    assert (why["place"]["rank"], why["place"]["heads"], why["place"]["rows"]) == (2, [3, 4], [71, 72])
    assert why["causes"][0]["fault"] == "one-row"
    assert why["again"] == f"refsim parity why {record.id} --seed 5"
    for text in (results.junit_xml(failed).decode(), results.markdown(failed)):
        assert "rank 2 at mesh (0, 2), heads 3..3, rows 71..71" in text
        assert "looks like: one-row" in text and "refsim parity why" in text
    json.dumps(as_json(failed), allow_nan=False)


def test_an_explanation_that_fails_costs_no_verdict(failed):
    class Broken(Runner):
        def run(self, case, seed):
            return Measured(failed.records[0].metrics, hazards=["a hazard"])

        def explain(self, *_):
            raise RuntimeError("no")

    case = make_case("attention", "attention", RING.layout, RING.shape)
    record = run_case(Broken(), case, "cpu", 0)
    assert record.verdict == "failed" and record.reason.endswith("; a hazard")
    assert "could not be looked into (RuntimeError: no)" in explanation.text(record.extra["explanation"])


def test_what_a_message_names_is_the_place():
    message = "rank 2 (device (0, 2)) stopped in step 3 of ring_attention over ring."
    place = explanation.place_of_message([message], RING)
    assert (place.tensor, place.rank, place.step) == ("ring_attention", 2, 3)
    assert explanation.place_of_message(["out of memory"], RING) is None


def test_an_event_that_is_wrong_in_a_right_answer_is_a_place():
    trace = [
        {"rank": rank, "op": "recv", "group": "ring", "axis": 1, "topology": topology, "step": 2,
         "peer": (rank + 3) % 4, "collective": "ring_attention", "start": 4.0 - rank}
        for rank, topology in enumerate(("Ring", "Ring", "Linear", "Ring"))
    ]  # fmt: skip
    clean = [event | {"topology": "Ring"} for event in trace]
    place = explanation.place_of_trace(trace, RING)
    assert str(place).startswith("first wrong event: ring_attention, rank 2 at mesh (0, 2), ring step 2, a transfer of")
    assert explanation.place_of_trace(clean, RING) is None

    class Run:
        def __init__(self, trace):
            self.trace = trace

    assert right_place(place, RING, Run(trace), Run(clean), "")
    assert not right_place(place, RING, Run(clean), Run(clean), "")


def test_the_guided_sample_is_a_place_only_where_it_is_wrong():
    case = make_case("transformer", "sd35_tiny", Layout("n300", "cfg2"), ModelShape((8, 8), 5, 2), guidance=3.5)
    ref = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))

    def place(scale):
        result = SimpleNamespace(tensors={"guided": guided_sample(ref, scale)})
        return Transformer._guided(case, result, ref, {"guided_rel_rmse": 5e-6})

    assert place(3.5) is None
    assert place(3.6).tensor == "guided"


def test_the_command_judges_what_is_drawn_and_tells_programs(monkeypatch):
    """In place of what the seed would draw a fault of attention, whose case takes a moment."""
    monkeypatch.setattr(recognition, "draw", lambda count, seed: ["lse-sign", "one-row"])
    result = CliRunner().invoke(faults_app, ["recognise", "--count", "1", "--seed", "3", "--json"])
    told = loads("faults recognise", result.stdout)
    (judged,) = told.pop("faults")
    assert result.exit_code == 0
    assert told == {"seed": 3, "judged": 1, "places_right": 1, "causes_right": 1, "unseen": []}
    assert judged["fault"] == "lse-sign" and judged["place_right"] and len(judged["causes"]) == 3


def test_one_case_runs_again_by_its_id():
    case_id = "attention-n300-sp2-ring-fp32-normal"
    known = find_case(CliRunner().invoke(app, ["list", "-k", "attention and n300"]).stdout.split()[0], "cpu").id
    result = CliRunner().invoke(app, ["why", known, "--json"])
    assert result.exit_code == 0, result.output
    shown = loads("parity why", result.stdout)
    assert shown["id"] == known and "trace_wrong_axis" in shown["metrics"]
    with pytest.raises(UserError, match="does not exist"):
        find_case(case_id + "-none", "cpu")
