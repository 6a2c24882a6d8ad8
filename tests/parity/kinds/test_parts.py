"""What judges single blocks, schedules, checkpoints in one file and published sizes: each wrong answer fails."""

from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from parity.cases import model_folders
from parity.cases.checkpoints import MODELS
from parity.cases.oracles import forward_shapes, library
from parity.cases.store import CheckpointStore
from parity.cases.suites import suite_cases
from parity.kinds import load
from parity.kinds.base import Measured
from parity.kinds.cpu import schedule, single_file
from parity.kinds.cpu.block import inputs_of
from parity.kinds.published import published
from parity.kinds.refusals import keys, pipeline_refusals, refusals, request
from parity.run.case import run_case
from parity.run.cpu import CpuRunner
from parity.run.runner import Runner
from refsim import api
from refsim.base.errors import UserError
from refsim.models.spec import blocks_alike, with_num_layers
from refsim.runtime.launch import Result

pytest.importorskip("diffusers")
CASES = {kind: [case for case in suite_cases("smoke") if case.kind == kind] for kind in ("block", "schedule")}
FILE = next(case for case in suite_cases("smoke") if case.kind == "single_file")


class Answered(Runner):
    """A runner whose runs have given these metrics."""

    def __init__(self, metrics):
        self._metrics = metrics

    def run(self, case, seed):
        return Measured(self._metrics)


def judged(case, metrics):
    record = run_case(Answered(metrics), case, "cpu", 0)
    return record.verdict, record.reason


@pytest.fixture(scope="module")
def store():
    with CheckpointStore() as held:
        yield held


@pytest.mark.parametrize("case", CASES["block"], ids=lambda case: case.model)
def test_a_block_is_judged_by_every_stream_and_by_what_it_adds(case, store):
    kind = load("block")(store)
    right, given = kind.reference(case, 0), inputs_of(case, 0)
    assert ("prompt" in right) == (case.model != "wan22_uneven64_block")

    def verdict(**changed):
        return judged(case, kind.measure(case, 0, Result([{}], {**right, **changed}, {}, [])))

    assert verdict() == ("passed", "")
    for stream, x in right.items():
        added = x - given[stream]
        assert "added_rel_rmse" in verdict(**{stream: x + 1e-3 * added})[1], f"a factor on what {stream} got"
        one = x.clone()
        one[:, -1] += added[:, -1]
        assert "one_minus_pcc_shard" in verdict(**{stream: one})[1], f"the last token of {stream}"


@pytest.mark.parametrize("case", CASES["schedule"], ids=lambda case: case.model)
def test_a_schedule_is_judged_step_by_step(case, monkeypatch):
    kind, right = load("schedule")(None), schedule.recurrences

    def verdict(step, **changes):
        def changed(given):
            steps = right(given)
            steps[step] = replace(steps[step], **{name: change(steps[step]) for name, change in changes.items()})
            return steps

        monkeypatch.setattr(schedule, "recurrences", changed)
        return judged(case, kind.measure(case, 0, kind.run(case, case.layout, 0)))

    assert verdict(0) == ("passed", "")
    for step in range(schedule.STEPS):
        wrong = verdict(step, predictions=lambda s: (s.predictions[0] + 1e-4, *s.predictions[1:]))
        assert "rel_rmse" in wrong[1] and "wrong_steps" not in wrong[1]
    assert "wrong_steps 1" in verdict(4, latents=lambda s: (*s.latents, *[0.0] * 4))[1]
    if case.model == "schedule_dpm":
        assert "rel_rmse" in verdict(2, draws=lambda s: s.draws + 1)[1]


def test_a_schedule_of_other_times_or_of_fewer_steps_fails():
    case, kind = CASES["schedule"][0], load("schedule")(None)
    result = kind.run(case, case.layout, 0)
    times = result.tensors["timesteps"] + torch.eye(schedule.STEPS)[2]
    other = replace(result, tensors=result.tensors | {"timesteps": times})
    assert judged(case, kind.measure(case, 0, other))[1] == "wrong_steps 1 is above 0"
    fewer = replace(result, tensors={name: x[:-1] for name, x in result.tensors.items()})
    assert "wrong_steps 1" in judged(case, kind.measure(case, 0, fewer))[1]


def test_a_file_that_diffusers_reads_otherwise_is_no_reference(monkeypatch):
    """Shift and scale of the last norm in diffusers' order, which its converter turns round."""
    monkeypatch.setattr(single_file, "shift_first", lambda x: x)
    with CpuRunner() as runner:
        record = run_case(runner, FILE, "cpu", 0)
    assert record.verdict == "failed" and "wrong_weights 4 is above 0" in record.reason


@pytest.mark.parametrize(
    ("model", "wrong", "reason"),
    [
        ("published_sd35_large", {"num_layers": 37}, "wrong_parameters"),
        ("published_wan22_ti2v_5b", {"ffn_dim": 14337}, "wrong_parameters"),
        ("published_qwen_image", {"num_layers": 59}, "wrong_parameters"),
        ("published_flux2_dev", {"num_single_layers": 47}, "wrong_parameters"),
    ],
)
def test_a_published_size_that_is_wrong_fails(monkeypatch, model, wrong, reason):
    spec, right = published.published_models()[model]
    other = {model: (spec, right.but(config=right.config | wrong))}
    monkeypatch.setattr(published, "published_models", lambda: other)
    assert reason in judge_published(model, reason)


SPEC, PUBLISHED = "spec", "published"


@pytest.mark.parametrize(
    ("model", "of", "wrong", "reason"),
    [
        ("published_sd35_large", PUBLISHED, {"text": 332}, "unlike_pipeline"),
        ("published_cogvideox_5b", PUBLISHED, {"steps": 49}, "unlike_pipeline"),
        ("published_mochi_1", PUBLISHED, {"steps": 64}, "unlike_pipeline"),
        ("published_qwen_image", PUBLISHED, {"branches": 1}, "unlike_pipeline"),
        ("published_ltx_video_2b", PUBLISHED, {"sizes": {"512p": (20, 16, 22)}}, "unlike_pipeline"),
        ("published_wan22_t2v_a14b", PUBLISHED, {"decoder": "cogvideox-vae"}, "unlike_pipeline"),
        ("published_sd35_medium", PUBLISHED, {"sizes": {"1024": (128, 127)}}, "wrong_shapes"),
        ("published_flux1_dev", SPEC, {"more_dims": lambda config, size: {"image tokens": 7}}, "wrong_shapes"),
        ("published_flux2_dev", SPEC, {"more_dims": lambda config, size: {"image tokens": 4095}}, "wrong_shapes"),
        ("published_wan22_t2v_a14b", SPEC, {"diffusers": ("rotary_emb", 2)}, "wrong_shapes"),
        ("published_cogvideox_2b", SPEC, {"channel_dim": 1}, "wrong_shapes"),
        ("published_cogvideox_5b", SPEC, {"diffusers": ("rotary_emb", 0)}, "wrong_shapes"),
        ("published_sd35_medium", SPEC, {"block_counts": blocks_alike}, "wrong_blocks"),
        ("published_flux1_schnell", SPEC, {"with_block_counts": with_num_layers}, "wrong_blocks"),
        ("published_clip_g", PUBLISHED, {"parameters": 694_659_841}, "wrong_parameters 1"),
        ("published_clip_l", PUBLISHED, {"steps": 1}, "unlike_pipeline 1"),
    ],
)
def test_what_a_library_has_otherwise_fails(monkeypatch, model, of, wrong, reason):
    spec, right = published.published_models()[model]
    if isinstance(wrong.get("diffusers"), tuple):
        wrong = wrong | {"diffusers": replace(spec.diffusers, rotary=wrong["diffusers"])}
    changed = (replace(spec, **wrong), right) if of == SPEC else (spec, right.but(**wrong))
    monkeypatch.setattr(published, "published_models", lambda: {model: changed})
    assert reason in judge_published(model, reason)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [("published_sd35_vae", "norm_num_groups", 16), ("published_qwen3_30b_a3b", "rms_norm_eps", 1e-5)],
)
def test_a_key_that_differs_from_the_class_is_known(monkeypatch, model, key, value):
    spec, right = published.published_models()[model]
    other = right.but(config=right.config | {key: value})
    monkeypatch.setattr(published, "published_models", lambda: {model: (spec, other)})
    assert "wrong_keys 1 is above 0" in judge_published(model)


def test_a_model_that_is_not_found_in_its_folder_fails(monkeypatch):
    found = published.registry.find
    monkeypatch.setattr(published.registry, "find", lambda name: (name, found(name)[1].but(experts=2)))
    assert judge_published("published_sd35_large", "not_found") == "not_found 4 is above 0"


def test_what_folders_are_taken_for_is_like_the_pipeline(monkeypatch):
    spec, right = published.published_models()["published_flux1_dev"]
    turned = replace(spec, published=spec.published[::-1])
    monkeypatch.setattr(published, "published_models", lambda: {"published_flux1_dev": (turned, right)})
    assert "unlike_pipeline 1" in judge_published("published_flux1_dev")


def test_figures_that_are_not_found_fail(monkeypatch):
    monkeypatch.setattr(published.registry, "figures", dict)
    assert judge_published("published_sd35_large", "not_found") == "not_found 1 is above 0"


def test_what_predictions_cannot_read_fails(monkeypatch):
    monkeypatch.setattr(forward_shapes, "read", lambda *given: 1 // 0)
    assert judge_published("published_ltx_video_2b", "wrong_shapes") == "wrong_shapes 1 is above 0"


def test_a_number_that_the_class_has_none_of_is_0():
    spec, right = published.published_models()["published_sd35_vae"]
    assert published.unsaid_that_count(spec, right) == []
    shifted = make_dataclass("Shifted", [("shift_factor", float, 0.5)])
    other = SimpleNamespace(timing_only=False, config_class=shifted)
    assert published.unsaid_that_count(other, right) == ["shift_factor"]


COSTLY = {
    "wrong_blocks": ("wrong_blocks", "wrong_of_one_kind"),
    "wrong_shapes": ("wrong_shapes",),
    "not_found": ("not_found",),
}
"""By metric, what finds it out."""


def judge_published(model, asked=""):
    """Why the case of a published model fails, of what is costly by the metric ``asked`` alone.

    That nothing else is wrong is judged by the case itself, ``published_...``.
    """
    case = next(case for case in suite_cases("smoke") if case.model == model)
    kind = load("published")(None)
    with pytest.MonkeyPatch.context() as patch:
        for name in (name for metric, names in COSTLY.items() if metric != asked for name in names):
            patch.setattr(published, name, lambda *given: [])
        return judged(case, kind.measure(case, 0, kind.run(case, case.layout, 0)))[1]


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("published_qwen3_30b_a3b", "norm_topk_prob", True),
        ("published_umt5_xxl", "vocab_size", 32128),
        ("published_wan22_ti2v_5b", "out_channels", 48),
    ],
)
def test_a_key_read_otherwise_than_by_the_library_fails(monkeypatch, model, key, value):
    """Each was read so once: what config.json lacked was taken for another model's."""
    right = published.defaults
    monkeypatch.setattr(published, "defaults", lambda *given: right(*given) | {key: value})
    assert judge_published(model) == "wrong_defaults 1 is above 0"


def test_weights_that_no_checkpoint_has_fail(monkeypatch):
    right = published.stacked
    monkeypatch.setattr(published, "stacked", lambda shapes: right(shapes) | {"proj_out.bias": (3,)})
    assert "wrong_weights" in judge_published("published_sd35_medium")


def test_a_priced_model_of_another_size_fails(monkeypatch):
    right = published.asked_for

    def more(spec, config):
        asked = right(spec, config)
        asked.shapes |= {f"more.{i}": (2048, 2048) for i in range(config["num_layers"])}
        return asked

    monkeypatch.setattr(published, "asked_for", more)
    reason = judge_published("published_ltx_video_2b")
    assert "block_parameters_off" in reason and " parameters_off" in f" {reason}"


@pytest.mark.parametrize("model", ["clip_l_tiny_quiet", "dflash_tiny"])
def test_what_is_run_though_it_cannot_be_right_fails(monkeypatch, store, model):
    """A way that spoils nothing stands for one that refsim does not see."""
    case = next(case for case in suite_cases("smoke") if case.kind == "refusals" and case.model == model)
    monkeypatch.setitem(refusals.WAYS, "nothing at all", lambda *given: "")
    with CpuRunner() as runner:
        record = run_case(runner, case, "cpu", 0)
    assert record.reason == "accepted 1 is above 0" and record.extra["accepted"] == ["nothing at all"]


PIPELINES = [case for case in suite_cases("smoke") if case.kind in ("request", "pipeline_refusals")]
FLUX, WAN = ([case for case in PIPELINES if case.model == f"{name}_pipeline_small"] for name in ("flux1", "wan"))


@pytest.mark.parametrize(
    ("case", "change"),
    [
        (FLUX[0], {"noise": lambda x: x.flip(1)}),
        (FLUX[0], {"times": lambda x: x * 1.001}),
        (FLUX[0], {"rows": lambda n: n + 1}),
        (WAN[0], {"mask": lambda x: None}),
        (WAN[0], {"ids": lambda found: [x.flip(0) for x in found]}),
        (WAN[0], {"experts": lambda names: names[::-1]}),
        (WAN[0], {"picture": lambda size: (*size[:1], size[2], size[1])}),
        (WAN[0], {"samples": lambda n: 3 - n}),
    ],
)
def test_a_request_that_comes_to_something_else_fails(monkeypatch, case, change):
    right = request.ours

    def changed(root, asked):
        found = right(root, asked)
        return found | {key: way(found[key]) for key, way in change.items()}

    monkeypatch.setattr(request, "ours", changed)
    monkeypatch.setattr(request, "WAYS", {"as its cases": request.WAYS["as its cases"]})
    with CpuRunner() as runner:
        record = run_case(runner, case, "cpu", 0)
    assert "unlike_diffusers" in record.reason and next(iter(change)) in record.extra["unlike"][0]


def test_a_pipeline_that_is_run_though_it_cannot_be_right_fails(monkeypatch):
    monkeypatch.setattr(pipeline_refusals, "REQUESTS", {"nothing": (("steps", 1),)})
    monkeypatch.setattr(pipeline_refusals, "FOLDERS", {"nothing at all": (lambda folder: None, "")})
    monkeypatch.setattr(pipeline_refusals, "_reads_weights", lambda *given: True)
    monkeypatch.setattr(pipeline_refusals, "generate_images", lambda *given, **options: None)
    with CpuRunner() as runner:
        record = run_case(runner, FLUX[1], "cpu", 0)
    assert record.reason == "accepted 5 is above 0; weights_read 1 is above 0; code_ran 1 is above 0"


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [("sd35_vae_tiny_quiet", "act_fn", "gelu"), ("t5_tiny_quiet", "is_gated_act", False)],
)
def test_a_key_that_is_overlooked_fails(monkeypatch, model, key, value):
    """Each was overlooked once."""
    case = next(case for case in suite_cases("smoke") if case.kind == "keys" and case.model == model)
    right = keys.taken
    monkeypatch.setattr(keys, "taken", lambda folder: right(folder) | {key: value})
    with CpuRunner() as runner:
        record = run_case(runner, case, "cpu", 0)
    assert record.reason == "overlooked 1 is above 0" and record.extra["overlooked"] == [f"{key} = {value}"]


def test_a_class_that_no_library_has_is_named():
    with pytest.raises(UserError, match=r"nor transformers .* has NoSuchModel; install the versions of constraints"):
        library.library_class("NoSuchModel")


@pytest.mark.parametrize("model", ["wan22_tiny", "sd35_tiny"])
def test_a_folder_stored_in_bf16_gives_the_same_bits(store, model, tmp_path):
    """Wan's has weights that diffusers keeps in fp32."""
    case = next(c for c in suite_cases("smoke") if c.model == f"{model}_quiet" and c.dtype == "bf16")
    inputs = load("transformer")(store).inputs(case, 0)
    model_folders.build(replace(MODELS[model], in_bf16=True), 0, tmp_path / "stored")
    both = store.folder(model, 0), tmp_path / "stored"
    sizes = [sum(path.stat().st_size for path in folder.glob("*.safetensors")) for folder in both]
    assert sizes[1] < 0.7 * sizes[0]
    plain, stored = (api.run(folder, inputs=inputs, options=case.layout.options("bf16")) for folder in both)
    assert torch.equal(plain.tensors["sample"], stored.tensors["sample"])


def test_a_call_that_only_one_rank_accepts_fails():
    case = next(case for case in suite_cases("smoke") if case.kind == "placements")
    answers = [{"accepted": [], "failed": []}, {"accepted": ["linear of a term"], "failed": []}]
    result = Result(answers, {}, {}, [])
    assert judged(case, load("placements")(None).measure(case, 0, result)) == ("failed", "accepted 1 is above 0")
    assert load("placements")(None).extra(result) == {"accepted": ["linear of a term"]}
