"""Kinds of cases: every one has a class with bounds, a new one needs an entry only, and packages bring cases."""

import importlib.metadata
import subprocess
import sys
import types

import pytest
import torch

from parity.cases import AttentionShape, Case, Layout, ModelShape, Registry, make_case, suites
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import rounded
from parity.cases.kinds import KINDS, Entry
from parity.cases.oracles import oracle_of
from parity.cases.oracles.base import Oracle
from parity.cases.pipelines import PIPELINES
from parity.cases.selection import select
from parity.cases.suites import suite_cases
from parity.kinds import load, thresholds_for
from parity.kinds.base import CpuKind, TTNNKind
from parity.measure.digests import tensor_digests
from parity.measure.thresholds import Threshold
from parity.run.cpu import CpuRunner
from parity.run.suite import Asked, run_cases
from parity.run.ttnn import TTNNRunner
from refsim.api.text import TextResult
from refsim.base.errors import UserError
from refsim.models.registry import by_class_name
from refsim.pipelines.speculative import Decoded, Step
from refsim.runtime.launch import Result
from tests.tree import ROOT

EVERY = [*suite_cases("full"), *suite_cases("full", "ttnn-mock")]
N300 = Layout("n300", "sp2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_a_class_with_bounds_for_every_case(kind):
    made, mine = load(kind), [case for case in EVERY if case.kind == kind]
    assert issubclass(made, TTNNKind if KINDS[kind].backend == "ttnn" else CpuKind)
    assert mine
    for dtype in {case.dtype for case in mine}:
        assert all(t.reason for t in thresholds_for(kind, dtype))
    assert {case.backends for case in mine} == {KINDS[kind].backend}
    if not KINDS[kind].checkpoint:
        assert all(case.model not in MODELS for case in mine)


def test_every_case_has_the_kind_that_its_model_says():
    """A causal language model is no encoder: the registry of models and parity agree on what each model is."""
    kinds = {"generation": "drafter", "ttnn_generation": "drafter"}
    kinds |= {"ttnn_transformer": "transformer", "ttnn_block": "transformer", "ttnn_vae_decoder": "vae_decoder"}
    kinds |= {"ttnn_text_encoder": "text_encoder", "block": "transformer", "single_file": "transformer"}
    for case in EVERY:
        if KINDS[case.kind].checkpoint and case.model not in PIPELINES and case.kind not in ("refusals", "keys"):
            known = by_class_name(MODELS[case.model].class_name)
            if known is not None:  # transformers' name of the drafter is not the one that is published
                assert kinds.get(case.kind, case.kind) == known.kind, case.id


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: make_case("wing", "sd35_tiny", N300, ModelShape()), "kind of case 'wing' does not exist"),
        (lambda: thresholds_for("generation", "bf16"), "generation cases are judged in fp32 only"),
    ],
)
def test_a_kind_or_dtype_that_does_not_exist_is_one_sentence(call, says):
    with pytest.raises(UserError, match=says):
        call()


@pytest.mark.parametrize(("backend", "runner"), [("ttnn-mock", CpuRunner()), ("cpu", TTNNRunner("ttnn-mock"))])
def test_a_case_of_the_other_backends_is_refused(backend, runner):
    with pytest.raises(UserError, match=r"is for the ttnn backends|has no counterpart"):
        runner.run(suite_cases("smoke", backend)[0], 0)


class Doubling(CpuKind):
    """A kind of a package's own: twice one is two, and in another layout two times one."""

    thresholds = types.MappingProxyType({"fp32": (Threshold("error", 0, "a double is exact"),)})
    wrong = 0.0

    def run(self, case: Case, layout: Layout, seed: int, **more) -> Result:
        x = torch.tensor([2.0 + seed + self.wrong])
        return Result([{}], {"sample": x}, {"none": 0}, [], wall_s=0.25)

    def measure(self, case, seed, result):
        return {"error": abs(float(result.tensors["sample"]) - 2 - seed)}

    def measure_other_layout(self, case, result, other):
        return {"other_layout_error": float(other.tensors["sample"] - result.tensors["sample"])}

    def drop(self, case, seed):
        pass


@pytest.fixture
def doubling(monkeypatch):
    monkeypatch.setitem(KINDS, "doubling", Entry(f"{__name__}:Doubling", checkpoint=False))
    return make_case("doubling", "doubling", N300, AttentionShape(), other_layout=Layout("n300", "tp2"))


def test_the_runner_and_the_gate_know_no_kind_by_name(doubling, monkeypatch):
    (record,) = run_cases([doubling], CpuRunner(), Asked(seed=3)).records
    assert (record.verdict, record.metrics) == ("passed", {"error": 0.0, "other_layout_error": 0.0})
    digest = tensor_digests({"sample": torch.tensor([5.0])})["sample"]
    assert record.digests == {"sample": digest, "other_layout.sample": digest}
    assert record.sim_s == 0.5
    monkeypatch.setattr(Doubling, "wrong", 1.0)
    (record,) = run_cases([doubling], CpuRunner()).records
    assert (record.verdict, record.reason) == ("failed", "error 1 is above 0")


def text_result(seconds=0.5, margin=0.25):
    step = Step(proposed=[4, 5], accepted=2, margin=margin, target_rows=7, draft_rows=5, seconds=seconds)
    return TextResult([Decoded([3, 4, 6], [step], 0.5)], {}, True, [], {}, 1.0)


def test_bits_of_a_generation_are_its_choices_and_no_times():
    answers = load("generation").answers
    first = tensor_digests(answers(None, text_result()))
    assert first.keys() == {"tokens", "proposed", "accepted", "rows", "margins"}
    assert tensor_digests(answers(None, text_result(seconds=9.0))) == first
    other = tensor_digests(answers(None, text_result(margin=0.25000001)))
    assert [name for name in first if first[name] != other[name]] == ["margins"]


def test_an_id_is_taken_once_per_family_of_backends():
    found = Registry()
    case = make_case("transformer", "sd35_tiny", N300, ModelShape())
    found.add(case)
    found.add(make_case("ttnn_transformer", "sd35_tiny", N300, ModelShape()))
    with pytest.raises(ValueError, match="two cases have the id sd35_tiny-n300-sp2-ring-fp32"):
        found.add(case)


def brings_a_case(found):
    found.add(make_case("attention", "attention", N300, AttentionShape(), tag="mine"))


def brings_an_error(found):
    raise KeyError("toy")


@pytest.fixture
def installed(monkeypatch):
    """A package with one good entry point and two bad ones."""

    def point(name, value):
        return importlib.metadata.EntryPoint(name, value, suites.ENTRY_POINTS)

    points = [point("good", f"{__name__}:brings_a_case"), point("bad", f"{__name__}:brings_an_error")]
    points.append(point("none", "no_such_module:add"))
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: points if group == suites.ENTRY_POINTS else []
    )
    suites.registry.cache_clear()
    yield
    suites.registry.cache_clear()


def test_packages_bring_cases_and_broken_ones_only_a_clause(installed):
    found = suites.registry()
    assert found.cases[-1].id == "attention-n300-sp2-ring-fp32-normal-mine"
    assert len(found.cases) == len(EVERY) + 1
    with pytest.raises(UserError, match="brings_an_error cannot add its cases") as e:
        select("smoke", "no_such_case")
    assert "no_such_module" in str(e.value)


def test_what_is_particular_to_a_class_is_found_by_its_name():
    shape = ModelShape((3, 8, 12), 13, 2)
    rotary = MODELS["cogvideox_5b_tiny"]
    tensors = oracle_of(rotary.class_name).inputs(rotary.config, shape, "normal", 0)
    assert tensors["hidden_states"].shape == (2, 3, 16, 8, 12), "frames stand before channels"
    clip = MODELS["clip_l_tiny"]
    assert oracle_of(clip.class_name).text_inputs(clip.config, ModelShape((), 9, 2), 0).keys() == {"input_ids"}
    assert type(oracle_of("AModelOfNobody")) is Oracle


def test_places_are_not_rounded():
    x = torch.tensor([[0.1, 1000.1]])
    made = rounded({"hidden_states": x, "img_ids": x, "timestep": x[0]}, "bf16", exact=("img_ids",))
    assert not torch.equal(made["hidden_states"], x)
    assert torch.equal(made["img_ids"], x)
    assert torch.equal(made["timestep"], x[0])


def test_cases_are_listed_without_torch():
    count = "len(select('full', None))"
    code = f"import sys; from parity.cases.selection import select; print({count}, 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(len(suite_cases("full"))), "False"]
