"""The image decoder against diffusers: whole, at the seams, in sizes that do not divide."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.metrics import seam_ratio
from tests.refsim.models.tiny_sd35 import relative_rmse


def make_vae(seed: int = 0, **changes):
    """AutoencoderKL with three stages, eight groups, every weight random."""
    from diffusers import AutoencoderKL

    sizes = {"block_out_channels": (16, 24, 32), "layers_per_block": 1, "latent_channels": 16, "norm_num_groups": 8}
    sizes |= {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
    sizes |= {"use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 1.5305, "shift_factor": 0.0609}
    vae = AutoencoderKL(**{**sizes, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            spread = 0.2 if norm or p.ndim == 1 else p[0].numel() ** -0.5
            p.normal_(1.0 if norm else 0.0, spread, generator=generator)
    return vae


@pytest.mark.parametrize("size", [(8, 12), (7, 9)], ids=["even", "odd"])
@pytest.mark.parametrize(("mesh", "parallel"), [("t3k", "sp2_tp4"), ("tg", "sp8_tp4"), ("n150", "sp1")], ids=str)
def test_equals_diffusers(tmp_path, mesh, parallel, size):
    vae = make_vae()
    vae.save_pretrained(tmp_path)
    z = torch.randn(1, 16, *size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    result = refsim.run(tmp_path, inputs={"z": z}, mesh=mesh, parallel=parallel)
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
        assert seam_ratio(*rows, [(i * step, (i + 1) * step) for i in range(parts)]) < 1.5


def test_a_post_quant_convolution_and_no_attention(tmp_path):
    vae = make_vae(use_post_quant_conv=True, mid_block_add_attention=False)
    vae.save_pretrained(tmp_path)
    z = torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    sample = refsim.run(tmp_path, inputs={"z": z}, mesh="n300", parallel="tp2").tensors["sample"]
    assert relative_rmse(sample, expected) <= 5e-6
