"""Qwen3 mixture of experts against transformers, with and without cache."""

from __future__ import annotations

import json

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.models.qwen3_moe.decoder import Qwen3MoeForCausalLM
from refsim.runtime.device import Device
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.dflash import KEEP, make_target

VOCAB = 101


@pytest.fixture(scope="module")
def target():
    return make_target(vocab=VOCAB)


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    target.save_pretrained(path)
    return path


def load(folder, mesh: str = "n150", parallel: str = "sp1", **changed) -> Qwen3MoeForCausalLM:
    spec = get_mesh(mesh)
    checkpoint = Checkpoint(folder)
    config = Qwen3MoeConfig.from_dict(checkpoint.config | changed)
    device = Device(RunOptions.of(mesh=spec, parallel=parallel))
    return Qwen3MoeForCausalLM(Weights(checkpoint, torch.float32), device, config)


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("mesh", "parallel"), [("n150", "sp1"), ("t3k-1x8", "tp8")])
def test_equals_transformers(target, folder, mesh, parallel):
    """tp8 has more devices than the four key-value heads."""
    with torch.no_grad():
        expected = target(ids(2, 37)).logits
    result = refsim.run(folder, inputs={"input_ids": ids(2, 37)}, mesh=mesh, parallel=parallel)
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1


def test_hidden_states_logits_and_cache(target, folder):
    model, words = load(folder), ids(1, 20)
    with torch.no_grad():
        expected = target(words, output_hidden_states=True)
    whole = model.hidden(words, keep=KEEP)
    kept = torch.cat([expected.hidden_states[index + 1] for index in KEEP], -1)
    assert relative_rmse(whole.layers, kept) <= 5e-6
    cache = model.new_cache()
    parts = [model.hidden(part, cache, KEEP) for part in words.split([11, 1, 8], 1)]
    assert relative_rmse(torch.cat([part.last for part in parts], 1), whole.last) <= 5e-6
    for layer in cache:
        layer.crop(12)  # the last eight rows were rejected
    again = model.hidden(words[:, 12:], cache, KEEP)
    assert torch.equal(again.last, parts[2].last)
    assert torch.equal(model.argmax(whole.last)[0], expected.logits.argmax(-1))


def test_cache_refuses_to_grow_by_cropping(folder):
    cache = load(folder).new_cache()
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache[0].crop(1)


@pytest.mark.parametrize("norm", [True, False])
def test_router(target, folder, norm):
    """The chosen experts' weights sum to one, or are those of the softmax over all experts."""
    model = load(folder, norm_topk_prob=norm)
    x = torch.randn(9, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    weight, expert = model._layers[0]._experts.route(x)
    probability = torch.softmax(x @ target.model.layers[0].mlp.gate.weight.T, -1).detach()
    wanted = probability.gather(-1, expert)
    assert torch.allclose(weight, wanted / wanted.sum(-1, keepdim=True) if norm else wanted, atol=1e-6)
    assert torch.equal(expert.sort(-1).values, probability.topk(2).indices.sort(-1).values)


def test_published_and_transformers_configs_say_the_same(folder):
    written = json.loads((folder / "config.json").read_text())
    published = {k: v for k, v in written.items() if k not in ("num_local_experts", "rope_parameters")}
    published |= {"num_experts": 6, "rope_theta": 10000.0}
    assert Qwen3MoeConfig.from_dict(published) == Qwen3MoeConfig.from_dict(written)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_experts_per_tok": 7}, "of 6 experts"),
        ({"attention_bias": True}, "without bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "default is supported"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"mlp_only_layers": [0]}, "mixture of experts"),
        ({"head_dim": "16"}, "whole number"),
    ],
)
def test_configs_that_do_not_fit(folder, changed, said):
    with pytest.raises(UserError, match=said):
        Qwen3MoeConfig.from_dict(Checkpoint(folder).config | changed)


def test_heads_that_cannot_be_cut(folder):
    """Twelve heads over eight devices leave some with half a group."""
    config = {"num_attention_heads": 12, "num_key_value_heads": 3}
    with pytest.raises(UserError, match="tp of 1, 3, 6, 12 would work"):
        load(folder, "t3k-1x8", "tp8", **config)


def test_pages_give_what_a_whole_cache_gives(folder):
    """Two users in turn, rows rejected in between, more rows than a page has."""
    model, ids = load(folder), torch.arange(90).reshape(2, 45) % VOCAB
    whole = [model.new_cache() for _ in range(2)]
    model.use_pages(4)
    paged = [model.new_cache() for _ in range(2)]
    for user, start, stop, kept in ((0, 0, 30, 30), (1, 0, 3, 3), (0, 30, 45, 33), (1, 3, 40, 40), (0, 33, 40, 40)):
        rows = ids[user : user + 1, start:stop]
        ours, theirs = (model.hidden(rows, cache[user]).last for cache in (paged, whole))
        assert torch.equal(ours, theirs)
        for cache in (paged[user], whole[user]):
            for layer in cache:
                layer.crop(kept)
    with pytest.raises(UserError, match=r"all 4 pages of 32 rows are taken"):
        model.hidden(ids[:1], model.new_cache())
