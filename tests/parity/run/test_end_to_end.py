"""Real ranks, real oracles: right answers pass, spoilt ones fail, inputs and weights are what they claim."""

import dataclasses

import pytest
import torch

from parity.cases import FAMILIES, AttentionShape, Layout, ModelShape, inputs, make_case
from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import load_oracle
from parity.cases.oracles import formulas
from parity.cases.oracles.base import patches
from parity.cases.store import CheckpointStore
from parity.kinds.cpu import attention
from parity.run.cpu import CpuRunner
from parity.run.suite import run_cases

SHAPE = AttentionShape(heads=2, n=96, text=20, head_dim=16, logical_n=80)
CASE = make_case("attention", "attention", Layout("n300", "sp2"), SHAPE, tag="test")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_bits(family):
    first, again, other = (inputs.attention_inputs(SHAPE, family, seed) for seed in (1, 1, 2))
    assert first.keys() == {"q", "k", "v", "joint_q", "joint_k", "joint_v"}
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_families_are_what_they_say():
    made = {family: inputs.attention_inputs(SHAPE, family, 0) for family in FAMILIES}
    assert made["large_logits"]["q"][:, :, :80].std() > 2.5
    assert made["outlier_text"]["joint_v"].mean() > 0.8
    uniform_k = torch.cat([made["constant_rows"]["k"][:, 1, :80], made["constant_rows"]["joint_k"][:, 1]], 1)
    assert torch.equal(uniform_k, uniform_k[:, :1].expand_as(uniform_k))
    assert float(made["constant_rows"]["v"][:, 0].std(-1).max()) == 0.0
    big = inputs.attention_inputs(AttentionShape(n=4096), "fa_rand", 0)["q"]
    assert 0.0005 < float((big.abs() > 6).float().mean()) < 0.001
    assert made["normal"]["k"][:, :, 80:].std() > 50, "padding rows must be loud"


def test_rounding_keeps_the_time_step():
    tensors = inputs.model_inputs(ModelShape(), 64, 40, "normal", 0)
    bf16 = inputs.rounded(tensors, "bf16")
    assert torch.equal(bf16["timestep"], tensors["timestep"])
    assert torch.equal(bf16["hidden_states"], tensors["hidden_states"].bfloat16().float())
    assert not torch.equal(bf16["hidden_states"], tensors["hidden_states"])


def test_tokens_are_rows_of_patches():
    sample = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    tokens = patches(sample)
    assert tokens.shape == (2, 6, 12)
    assert set(tokens[1, 4].tolist()) == set(sample[1, :, 2:4, 2:4].flatten().tolist())


def test_float64_attention_in_blocks_is_the_formula(monkeypatch):
    tensors = inputs.attention_inputs(SHAPE, "normal", 0)
    monkeypatch.setattr(formulas, "_SCORES_BYTES", 8 * 100 * 40)
    out, lse = formulas.attention_float64(tensors, SHAPE)
    q, k, v = (formulas.joint_rows(tensors, name, 80).double() for name in ("q", "k", "v"))
    scores = q @ k.transpose(-1, -2) / 4.0
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, scores.exp().sum(-1).log(), rtol=1e-12, atol=1e-12)


def test_ranks_pass_and_spoilt_answers_do_not(monkeypatch, tmp_path):
    cases = [CASE, dataclasses.replace(CASE, id="bf16", dtype="bf16")]
    done = run_cases(cases, CpuRunner(), out_dir=tmp_path)
    assert done.exit_code == 0, [r.reason for r in done.records]
    assert done.records[0].bytes_by_collective and done.records[1].noise["one_minus_pcc"] > 1e-7

    honest = attention.attention_result

    def spoilt(tensor, spoil):
        def result(*args, **kwargs):
            answer = honest(*args, **kwargs)
            answer.tensors[tensor] = spoil(answer.tensors[tensor])
            return answer

        return result

    for tensor, spoil, seen_by in (
        ("out", lambda x: x * 1.01, "rel_rmse"),
        ("joint_out", lambda x: x.roll(1, 2), "one_minus_pcc"),
        ("lse", lambda x: x / 0.6931, "lse_rel_max"),
        ("lse", lambda x: torch.where(x > 4, torch.nan, x), "non_finite"),
        ("joint_out", lambda x: x.double(), "wrong_dtypes"),
    ):
        monkeypatch.setattr(attention, "attention_result", spoilt(tensor, spoil))
        (record,) = run_cases([CASE], CpuRunner()).records
        assert record.verdict == "failed" and seen_by in record.reason, (tensor, record.reason)


@pytest.fixture(scope="module")
def store():
    pytest.importorskip("diffusers")
    with CheckpointStore() as store:
        yield store


def test_no_weight_of_the_tiny_checkpoint_is_inert(store):
    """A weight that changes nothing would be judged by nobody; the last block's prompt queries are discarded."""
    spec = MODELS["sd35_tiny"]
    folder = store.folder("sd35_tiny", 0)
    assert len(list(folder.glob("*.safetensors"))) > 1, "the index of a checkpoint in several files is tested too"
    model = load_oracle(folder, torch.float64)
    tensors = inputs.model_inputs(ModelShape(text=9), 64, 40, "normal", 0)
    sample = model(**{n: x.double() for n, x in tensors.items()}, return_dict=False)[0]
    loss = sample.square().sum()
    loss.backward()
    last = spec.config["num_layers"] - 1
    discarded = (f"transformer_blocks.{last}.attn.add_q_proj", f"transformer_blocks.{last}.attn.norm_added_q")
    for name, p in model.named_parameters():
        moved = p.grad is not None and float((p.grad * p.detach()).abs().max()) > 1e-6 * loss.item()
        assert moved != name.startswith(discarded), name


def test_checkpoints_are_seeded_and_dropped(store):
    folder = store.folder("sd35_tiny", 1)
    weights = load_oracle(folder, torch.float32).state_dict()
    store.drop("sd35_tiny", 1)
    assert not folder.exists()
    again = load_oracle(store.folder("sd35_tiny", 1), torch.float32, rounded=True).state_dict()
    assert all(torch.equal(weights[name].bfloat16().float(), again[name]) for name in weights)


def test_one_model_case(store):
    model = make_case("transformer", "sd35_tiny", Layout("n300", "cfg2"), ModelShape(text=9), guidance=3.0, tag="test")
    done = run_cases([dataclasses.replace(model, other_layout=Layout("n300", "sp2"))], CpuRunner())
    (record,) = done.records
    assert record.verdict == "passed", record.reason
    assert record.metrics["distinct_replicas"] == 1 and record.metrics["other_layout_rel_rmse"] < 5e-6
