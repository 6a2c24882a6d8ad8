"""The image decoder against diffusers: whole, at the seams, in sizes that do not divide."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.measure.metrics import seam_ratio
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.runtime.device import Device
from tests.refsim.helpers import assert_one_sentence, relative_rmse
from tests.refsim.tiny.sd_vae import make_vae


@pytest.mark.parametrize(
    ("mesh", "parallel", "vae_parallel"),
    [("n150", "sp1", "spatial"), ("t3k", "sp2_tp4", "spatial"), ("t3k", "sp2_tp4", "tensor")],
    ids=["serial", "spatial", "tensor"],
)
def test_equals_diffusers(tmp_path, mesh, parallel, vae_parallel):
    vae = make_vae()
    vae.save_pretrained(tmp_path)
    z = torch.randn(1, 16, 7, 9, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    result = refsim.run(tmp_path, inputs={"z": z}, mesh=mesh, parallel=parallel, vae_parallel=vae_parallel)
    sample = result.tensors["sample"]
    assert sample.shape == expected.shape
    assert relative_rmse(sample, expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


def test_seams_are_no_worse_than_the_rest(tmp_path):
    vae = make_vae()
    vae.save_pretrained(tmp_path)
    z = torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    sample = refsim.run(tmp_path, inputs={"z": z}, mesh="t3k", parallel="sp2_tp4").tensors["sample"]
    for dim, parts in ((2, 2), (3, 4)):
        rows = [x.movedim(dim, 1).flatten(2) for x in (sample, expected)]
        step = rows[0].shape[1] // parts
        assert seam_ratio(rows[0], rows[1], [(i * step, (i + 1) * step) for i in range(parts)]) < 1.5


def test_a_post_quant_convolution_and_no_attention(tmp_path):
    vae = make_vae(use_post_quant_conv=True, mid_block_add_attention=False)
    vae.save_pretrained(tmp_path)
    z = torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    result = refsim.run(tmp_path, inputs={"z": z}, mesh="n300", parallel="tp2", vae_parallel="tensor")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


def test_channels_are_cut_and_so_are_the_weights(tmp_path):
    """Every member of tp sends its channels before a convolution, and no column of pixels."""
    make_vae().save_pretrained(tmp_path)
    z = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(3))
    sent = {
        vae: refsim.run(tmp_path, inputs={"z": z}, mesh="n300", parallel="tp2", vae_parallel=vae).bytes_by_collective
        for vae in ("spatial", "tensor")
    }
    assert any("neighbor_pad" in name for name in sent["spatial"])
    assert not any("neighbor_pad" in name for name in sent["tensor"])
    assert any("all_gather" in name for name in sent["tensor"])
    decoders = [load_decoder(tmp_path, vae_parallel) for vae_parallel in ("spatial", "tensor")]
    spatial, tensor = (d._stages[0][0][0]._conv1.weight.numel() for d in decoders)
    assert spatial == 2 * tensor


def load_decoder(folder, vae_parallel):
    checkpoint = Checkpoint(folder)
    device = Device(RunOptions.of(mesh="n300", parallel="tp2", vae_parallel=vae_parallel))
    return VAEDecoder(Weights(checkpoint, torch.float32, meta=True), device, VAEConfig.from_dict(checkpoint.config))


@pytest.mark.parametrize(
    ("changes", "options", "word"),
    [
        ({"norm_num_groups": 4}, {"mesh": "t3k-1x8", "parallel": "tp8", "vae_parallel": "tensor"}, "4 norm groups"),
        ({}, {"mesh": "n300", "parallel": "tp2", "vae_parallel": "channels"}, "choose one of spatial, tensor"),
    ],
)
def test_what_cannot_be_cut(tmp_path, changes, options, word):
    make_vae(**changes).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=word) as caught:
        refsim.run(tmp_path, inputs={"z": torch.zeros(1, 16, 4, 4)}, **options)
    assert_one_sentence(str(caught.value))
