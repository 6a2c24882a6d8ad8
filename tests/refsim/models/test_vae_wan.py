"""Wan's video decoder, images cut over the mesh, against diffusers; seams."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.kinds.cpu.vae_decoder import compare_frames
from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from tests.refsim.tiny.sd35 import save
from tests.refsim.tiny.wan import make_vae

LATENT = (1, 16, 3, 6, 10)
"""Three latent frames (9 frames); the sides leave some of 2, 4 and 8 shards with less, some with nothing."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, inputs, diffusers' frames)."""
    vae, z = make_vae(), torch.randn(LATENT, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        frames = vae.decode(z, return_dict=False)[0]
    assert frames.std() > 0.1
    assert (frames.abs() == 1).float().mean() < 0.1, "a clamped picture shows nothing"
    return save(vae, tmp_path_factory.mktemp("vae")), {"z": z}, frames


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("n150", "sp1", {}),
        ("t3k", "sp8", {"attention": "usp", "ring": 2, "ulysses": 4}),
    ],
    ids=["serial", "usp"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, inputs, expected = tiny
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    config = parse_parallel(parallel, get_mesh(mesh), **options)
    cuts = (config.sp, config.tp)
    found = compare_frames(result.tensors["sample"], expected, LATENT[2:], cuts)
    assert found["rel_rmse"] <= 5e-6
    if config.num_devices > 1:
        assert 0 < found["seam_ratio"] <= 1.5
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


def test_a_seam_is_noticed(tiny):
    """The measure itself: one row at a border that is off by little stands out."""
    _, _, expected = tiny
    cuts = (2, 4)
    off = expected + 1e-7 * torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    assert 0.5 < compare_frames(off, expected, LATENT[2:], cuts)["seam_ratio"] < 1.5
    off[..., 24, :] += 1e-6
    assert compare_frames(off, expected, LATENT[2:], cuts)["seam_ratio"] > 1.5


def test_config_that_cannot_be():
    from refsim.models.vae_wan.config import WanVAEConfig

    with pytest.raises(UserError, match="TI2V-5B"):
        WanVAEConfig.from_dict({"is_residual": True})
    with pytest.raises(UserError, match="temperal_downsample"):
        WanVAEConfig.from_dict({"dim_mult": [1, 2]})


def test_scale_factors_are_those_of_the_stages():
    """Where the folder does not give them, too: pictures would come out in another size than was asked for."""
    from refsim.models.vae_wan.config import WanVAEConfig

    stages = {"dim_mult": [1, 2, 4], "temperal_downsample": [False, True]}
    statistics = {"latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}
    config = WanVAEConfig.from_dict(stages | statistics)
    assert (config.scale_factor_spatial, config.scale_factor_temporal) == (4, 2)
    with pytest.raises(UserError, match="scale_factor_spatial = 8, but its stages make 4"):
        WanVAEConfig.from_dict(stages | statistics | {"scale_factor_spatial": 8})
