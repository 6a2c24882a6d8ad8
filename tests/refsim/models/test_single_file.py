"""Stable Diffusion 3.5 in one file of its authors' layout, against diffusers' own conversion of the same file."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import refsim
from parity.kinds.cpu.single_file import authors_names
from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.registry import open_checkpoint
from refsim.models.sd35.config import SD35Config
from tests.refsim.tiny.sd35 import make_inputs, make_model, save


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
