"""Stable Diffusion 3.5 in one file of its authors' layout, against diffusers' own conversion of the same file."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file

import refsim
from refsim.checkpoint import Weights
from refsim.errors import UserError
from refsim.models.registry import open_checkpoint
from refsim.models.sd35.config import SD35Config
from tests.refsim.models.tiny_sd35 import make_inputs, make_model, save

BLOCK = {"norm1.linear": "x_block.adaLN_modulation.1", "norm1_context.linear": "context_block.adaLN_modulation.1"}
BLOCK |= {"ff.net.0.proj": "x_block.mlp.fc1", "ff.net.2": "x_block.mlp.fc2"}
BLOCK |= {"ff_context.net.0.proj": "context_block.mlp.fc1", "ff_context.net.2": "context_block.mlp.fc2"}
BLOCK |= {"attn.norm_q": "x_block.attn.ln_q", "attn.norm_k": "x_block.attn.ln_k", "attn.to_out.0": "x_block.attn.proj"}
BLOCK |= {"attn.norm_added_q": "context_block.attn.ln_q", "attn.norm_added_k": "context_block.attn.ln_k"}
BLOCK |= {"attn.to_add_out": "context_block.attn.proj", "attn2.to_out.0": "x_block.attn2.proj"}
BLOCK |= {"attn2.norm_q": "x_block.attn2.ln_q", "attn2.norm_k": "x_block.attn2.ln_k"}
REST = {"pos_embed.proj": "x_embedder.proj", "context_embedder": "context_embedder", "proj_out": "final_layer.linear"}
REST |= {f"time_text_embed.timestep_embedder.linear_{n + 1}": f"t_embedder.mlp.{2 * n}" for n in (0, 1)}
REST |= {f"time_text_embed.text_embedder.linear_{n + 1}": f"y_embedder.mlp.{2 * n}" for n in (0, 1)}
REST |= {"norm_out.linear": "final_layer.adaLN_modulation.1"}
QKV = {"attn.to_q": "x_block.attn", "attn.add_q_proj": "context_block.attn", "attn2.to_q": "x_block.attn2"}


def authors_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a model as a file of its authors might hold them."""
    found = {"pos_embed": state["pos_embed.pos_embed"]}
    for name, x in state.items():
        module, _, kind = name.rpartition(".")
        block = re.fullmatch(r"transformer_blocks\.(\d+)\.(.+)", module)
        if block and block[2] in QKV:
            parts = (state[name], state[name.replace("q", "k")], state[name.replace("q", "v")])
            found[f"joint_blocks.{block[1]}.{QKV[block[2]]}.qkv.{kind}"] = torch.cat(parts)
        elif block and block[2] in BLOCK:
            found[f"joint_blocks.{block[1]}.{BLOCK[block[2]]}.{kind}"] = x
        elif module in REST:
            found[f"{REST[module]}.{kind}"] = x
    return {f"model.diffusion_model.{name}": x.contiguous() for name, x in found.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(file, folder of what diffusers makes of it)."""
    from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers as convert

    root, model = tmp_path_factory.mktemp("both"), make_model()
    tensors = authors_names(model.state_dict())
    others = {"first_stage_model.decoder.conv_in.weight": torch.ones(3), "text_encoders.clip_l.x": torch.ones(2)}
    save_file(tensors | others, root / "sd3.5_tiny.safetensors")
    model.load_state_dict(convert(dict(tensors)))
    return root / "sd3.5_tiny.safetensors", save(model, root / "folder")


def test_every_weight_and_size_is_diffusers_own(both):
    file, folder = map(open_checkpoint, both)
    assert file.names == folder.names and len(file.names) > 50
    for name in sorted(folder.names):
        shape = folder.file(name).shape(name)
        found, expected = (Weights(each, torch.float32).take(name, shape) for each in (file, folder))
        assert torch.equal(found, expected), name
    configs = [SD35Config.from_dict(each.config | {"sample_size": 16}) for each in (file, folder)]
    assert configs[0] == configs[1]


def test_a_run_gives_the_same_bits(both):
    found = [refsim.run(x, inputs=make_inputs(), mesh="n300", parallel="tp2").tensors["sample"] for x in both]
    assert torch.equal(*found)


def test_files_that_cannot_be_run(both, tmp_path):
    other, text = tmp_path / "other.safetensors", tmp_path / "text.safetensors"
    save_file({"blocks.0.weight": torch.ones(2)}, other)
    text.write_text("no tensors")
    save_file({"joint_blocks.0.x_block.attn.qkv.weight": torch.ones(6, 2)}, tmp_path / "part.safetensors")
    for path, said, options in (
        (other, "a file of no known layout", {}),
        (text, "not a readable safetensors file", {}),
        (tmp_path / "part.safetensors", "lacks 'context_embedder.weight'", {}),
        (both[0], "has no variants", {"variant": "fp16"}),
    ):
        with pytest.raises(UserError, match=said):
            refsim.run(path, inputs=make_inputs(), mesh="n150", **options)
