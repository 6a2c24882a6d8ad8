"""The DFlash drafter against transformers' implementation of the same architecture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.cache_utils import DFlashCache

from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.dflash.config import DFlashConfig, spread_layer_ids
from refsim.models.dflash.draft import DFlashDraftModel, check_pair
from refsim.models.dflash.spec import SPEC
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.runtime.device import Device
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.dflash import BLOCK, HIDDEN, KEEP, make_drafter, save_drafter


@pytest.fixture(scope="module")
def oracle():
    return make_drafter()


@pytest.fixture(scope="module")
def model(oracle, tmp_path_factory):
    checkpoint = Checkpoint(save_drafter(oracle, tmp_path_factory.mktemp("drafter")))
    spec = get_mesh("n150")
    device = Device(RunOptions.of(mesh=spec))
    return DFlashDraftModel(Weights(checkpoint, torch.float32), device, DFlashConfig.from_dict(checkpoint.config))


def rows(count: int, seed: int, *, features: int = HIDDEN) -> torch.Tensor:
    return torch.randn(1, count, features, generator=torch.Generator().manual_seed(seed))


def test_one_call(oracle, model):
    noise, kept = rows(BLOCK, 0), rows(23, 1, features=HIDDEN * len(KEEP))
    with torch.no_grad():
        expected = oracle(noise_embeds=noise, context_hidden_states=kept).last_hidden_state
    assert relative_rmse(model(noise, kept, model.new_cache(), start=23), expected) <= 5e-6


def test_calls_with_a_cache(oracle, model):
    """Context rows come a few at a time; the oracle's cache is cropped as its own generation does it."""
    cache, theirs, start = model.new_cache(), DFlashCache(config=oracle.config), 0
    whole = rows(40, 2, features=HIDDEN * len(KEEP))
    for call, count in enumerate((19, 1, 16, 4)):
        noise, kept = rows(BLOCK, 10 + call), whole[:, start : start + count]
        start += count
        theirs.set_previous_accepted_tokens(count)
        with torch.no_grad():
            expected = oracle(
                noise_embeds=noise, context_hidden_states=kept, past_key_values=theirs, use_cache=True
            ).last_hidden_state
        theirs.crop(start - theirs.get_seq_length())  # as many rows off the end
        assert relative_rmse(model(noise, kept, cache, start=start), expected) <= 5e-6
        for layer in cache:
            layer.crop(start)
        again = model(noise, whole[:, :start], model.new_cache(), start=start)
        assert relative_rmse(again, expected) <= 5e-6, "cached is not what computing everything gives"


def test_noise_left_in_the_cache_changes_the_answer(model):
    noise, whole = rows(BLOCK, 3), rows(24, 4, features=HIDDEN * len(KEEP))
    clean, dirty = model.new_cache(), model.new_cache()
    for cache in (clean, dirty):
        model(noise, whole[:, :20], cache, start=20)
    for layer in clean:
        layer.crop(20)
    expected = model(noise, whole[:, 20:], clean, start=24)
    for layer in dirty:
        layer.crop(24)
    assert relative_rmse(model(noise, whole[:, :0], dirty, start=24), expected) > 1e-2


def test_context_rows_must_end_where_the_block_starts(model):
    noise, kept = rows(BLOCK, 3), rows(5, 4, features=HIDDEN * len(KEEP))
    with pytest.raises(ValueError, match="do not end"):
        model(noise, kept, model.new_cache(), start=4)


def test_layers_spread_over_the_target():
    assert spread_layer_ids(48, 5) == (1, 12, 23, 34, 45)
    assert spread_layer_ids(48, 8) == (1, 7, 14, 20, 26, 32, 39, 45)
    assert spread_layer_ids(48, 1) == (24,)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": 32}, "hidden_size 32 but the target 64"),
        ({"target_layer_ids": (0, 3)}, "layers 0 to 2"),
    ],
)
def test_drafter_of_another_target(changed, said):
    sizes = {"vocab_size": 12, "hidden_size": HIDDEN}
    target = Qwen3MoeConfig.from_dict(sizes | {"num_hidden_layers": 3})
    with pytest.raises(UserError, match=said):
        draft = DFlashConfig.from_dict(SPEC.published[0].config)
        check_pair(target, replace(draft, **sizes | {"target_layer_ids": KEEP} | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dflash_config": 3}, "an object"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": []}}, "list of numbers"),
        ({"dflash_config": {"mask_token_id": 12}}, "vocabulary ends at 11"),
        ({"block_size": 1}, "2 tokens or more"),
        ({"layer_types": ["sliding_attention"]}, "full_attention"),
    ],
)
def test_configs_that_do_not_fit(changed, said):
    with pytest.raises(UserError, match=said):
        small = SPEC.published[0].config | {"vocab_size": 12, "dflash_config": {"mask_token_id": 3}}
        DFlashConfig.from_dict(small | changed)


def test_what_a_folder_has_to_say():
    for key in ("num_key_value_heads", "rope_theta", "block_size"):
        lacking = {name: value for name, value in SPEC.published[0].config.items() if name != key}
        with pytest.raises(UserError, match=f"lacks {key}"):
            DFlashConfig.from_dict(lacking)
    with pytest.raises(UserError, match="lacks mask_token_id"):
        DFlashConfig.from_dict(SPEC.published[0].config | {"dflash_config": {}})
