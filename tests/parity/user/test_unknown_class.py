"""A class of diffusers that refsim has no model of: what it would take is said, block by block and key by key."""

from __future__ import annotations

import json

import pytest

from parity.user.unknown_class import what_it_takes
from refsim.cli import process

diffusers = pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def hunyuan(tmp_path_factory):
    """A folder of a model whose blocks are Flux.1's by name, and whose config.json is not."""
    folder = tmp_path_factory.mktemp("hunyuan")
    sizes = {"num_layers": 2, "num_single_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 2}
    heads = {"attention_head_dim": 8, "rope_axes_dim": (2, 2, 4)}
    diffusers.HunyuanVideoTransformer3DModel(**sizes, **heads).save_pretrained(folder)
    return folder


def words(folder, tmp_path):
    return ["run", str(folder), "--mesh", "n300", "--parallel", "tp2", "--inputs", str(tmp_path / "i"), "--out", "o"]


def test_the_nearest_blocks_and_unknown_keys_are_said(hunyuan, tmp_path, capsys):
    assert process.run_command([*words(hunyuan, tmp_path), "--check-against", "diffusers"]) == 2
    printed = capsys.readouterr().err
    assert "is a HunyuanVideoTransformer3DModel; supported: " in printed.splitlines()[-1]
    assert "2 HunyuanVideoTransformerBlock (transformer_blocks): nearest is FluxTransformerBlock" in printed
    assert "refsim/models/flux1, with 32 of its 32 weights by name." in printed
    assert (
        "1 HunyuanVideoSingleTransformerBlock (single_transformer_blocks): nearest is FluxSingleTransformer" in printed
    )
    assert "num_refiner_layers = 1" in printed and "that the configuration of flux1 does not know." in printed
    assert "num_single_layers = " not in printed


def test_without_the_option_the_sentence_is_as_it_was(hunyuan, tmp_path, capsys):
    assert process.run_command(words(hunyuan, tmp_path)) == 2
    assert "nearest" not in capsys.readouterr().err


def test_a_weight_that_the_nearest_block_lacks_is_named(tmp_path):
    sizes = {"num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2}
    widths = {"joint_attention_dim": 16, "caption_projection_dim": 16, "pos_embed_max_size": 16, "sample_size": 8}
    diffusers.AuraFlowTransformer2DModel(**sizes, **widths).save_pretrained(tmp_path)
    printed = what_it_takes(tmp_path)
    assert "(joint_transformer_blocks)" in printed and "not there: ff.linear_1.weight" in printed


def test_a_block_in_a_shell_is_looked_into_and_one_that_shares_nothing_says_so(tmp_path):
    sizes = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8}
    widths = {"caption_channels": [16, 16], "axes_dims_rope": (4, 2, 2), "patch_size": 2, "max_resolution": (8, 8)}
    experts = {"num_routed_experts": 2, "num_activated_experts": 1, "text_emb_dim": 8, "llama_layers": (0,)}
    diffusers.HiDreamImageTransformer2DModel(**sizes, **widths, **experts).save_pretrained(tmp_path)
    printed = what_it_takes(tmp_path)
    assert "(double_stream_blocks): nearest is" in printed and "not there: block." not in printed
    assert "(caption_projection): no block here has one of its 1 weights." in printed


@pytest.mark.parametrize(
    "config",
    [
        {"_class_name": "NobodysTransformer2DModel"},
        {"_class_name": "load_image"},
        {"_class_name": "AutoencoderDC"},
        {"_class_name": "HunyuanVideoTransformer3DModel", "num_layers": 10**9},
        {"_class_name": "HunyuanVideoTransformer3DModel", "num_layers": "many"},
        {"_class_name": "FluxTransformer2DModel"},
    ],
    ids=["no_class", "no_model", "no_list_of_blocks", "too_many", "wrong_value", "a_class_that_refsim_has"],
)
def test_where_diffusers_cannot_say_more_nothing_is_added(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert what_it_takes(tmp_path) == ""
