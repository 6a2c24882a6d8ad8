"""Wan's video decoder, images cut over the mesh, against diffusers; seams."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from refsim.config import parse_parallel
from refsim.errors import UserError
from refsim.launch import execute
from refsim.mesh import get_mesh
from tests.refsim.models.tiny_sd35 import relative_rmse, save
from tests.refsim.models.tiny_wan import make_vae

LATENT = (1, 16, 3, 10, 13)
"""Three latent frames (9 frames), sides that divide neither by 2, 4 nor 8 shards evenly."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, file with the latent, diffusers' frames)."""
    vae, latent = make_vae(), torch.randn(LATENT, generator=torch.Generator().manual_seed(3))
    folder = save(vae, tmp_path_factory.mktemp("vae"))
    save_file({"latent": latent}, folder / "latent")
    with torch.no_grad():
        frames = vae.decode(latent, return_dict=False)[0]
    assert 0.1 < frames.std() and (frames.abs() == 1).float().mean() < 0.1, "a clamped picture shows nothing"
    return folder, frames


def decode(folder, mesh: str, parallel: str, **options) -> torch.Tensor:
    spec = get_mesh(mesh)
    arguments = {"checkpoint": str(folder), "inputs": str(folder / "latent")}
    config = parse_parallel(parallel, spec, **options)
    result = execute("tests.refsim.models.wan_programs:decode", spec, config, arguments)
    assert len({value["digest"] for value in result.values}) == 1
    assert not result.hazards
    return result.tensors["frames"]


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("n150", "sp1", {}),
        ("t3k", "sp2_tp4", {}),
        ("t3k", "sp8", {"attention": "usp", "ring": 2, "ulysses": 4}),
        ("galaxy", "sp8_tp4", {}),
    ],
    ids=lambda value: str(value),
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, expected = tiny
    got = decode(folder, mesh, parallel, **options)
    assert got.shape == expected.shape
    assert relative_rmse(got, expected) <= 5e-6
    assert seam_ratio(got, expected, parse_parallel(parallel, get_mesh(mesh), **options)) <= 1.5


def seam_ratio(got: torch.Tensor, expected: torch.Tensor, config) -> float:
    """Error (RMS) of the two rows and columns at every shard border, in units of the error of the rest."""
    error = (got.double() - expected.double()).square()
    seam = torch.zeros(error.shape[-2:], dtype=torch.bool)
    for dim, factor in ((0, config.sp), (1, config.tp)):
        local = -(-LATENT[3 + dim] // factor) * 8
        for border in range(local, seam.shape[dim], local):
            seam.narrow(dim, border - 1, 2).fill_(True)
    if not seam.any():
        return 0.0
    return float((error[..., seam].mean() / error[..., ~seam].mean()).sqrt())


def test_a_seam_is_noticed(tiny):
    """The measure itself: a border that is off by little stands out."""
    _, expected = tiny
    config = parse_parallel("sp2_tp4", get_mesh("t3k"))
    off = expected + 1e-7 * torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    assert 0.5 < seam_ratio(off, expected, config) < 1.5
    off[..., 40, :] += 1e-6
    assert seam_ratio(off, expected, config) > 1.5


def test_config_that_cannot_be():
    from refsim.models.vae_wan.config import WanVAEConfig

    with pytest.raises(UserError, match="TI2V-5B"):
        WanVAEConfig.from_dict({"is_residual": True})
    with pytest.raises(UserError, match="temperal_downsample"):
        WanVAEConfig.from_dict({"dim_mult": [1, 2]})
