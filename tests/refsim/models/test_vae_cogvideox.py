"""CogVideoX's video decoder, images cut over the mesh, against diffusers; seams; chunks of two and three."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.kinds.cpu.vae_decoder import compare_frames
from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from tests.refsim.tiny.sd35 import save
from tests.refsim.tiny.wan import randomise

SIDES = (6, 10)
"""Leave some of 2, 4 and 8 shards with less, some with nothing."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, diffusers' autoencoder)."""
    from diffusers import AutoencoderKLCogVideoX

    vae = randomise(
        AutoencoderKLCogVideoX(
            block_out_channels=(8, 8, 16, 24),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("CogVideoXDownBlock3D",) * 4,
            up_block_types=("CogVideoXUpBlock3D",) * 4,
        ),
        7,
    ).eval()
    return save(vae, tmp_path_factory.mktemp("vae")), vae


def latent(frames: int, batch: int = 1) -> torch.Tensor:
    return torch.randn((batch, 16, frames, *SIDES), generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize(
    ("mesh", "parallel", "frames", "batch", "options"),
    [
        ("n150", "sp1", 5, 1, {}),
        ("t3k", "sp2_tp4", 4, 2, {}),
        ("t3k", "sp8", 2, 1, {"attention": "usp", "ring": 2, "ulysses": 4}),
    ],
    ids=["serial", "parallel", "usp"],
)
def test_equals_diffusers(tiny, mesh, parallel, frames, batch, options):
    folder, vae = tiny
    z = latent(frames, batch)
    with torch.no_grad():
        expected = vae.decode(z, return_dict=False)[0]
    assert expected.shape[2] == (4 * frames if frames % 2 == 0 else 4 * frames - 3)
    assert expected.std() > 0.1
    result = refsim.run(folder, inputs={"z": z}, mesh=mesh, parallel=parallel, **options)
    config = parse_parallel(parallel, get_mesh(mesh), **options)
    found = compare_frames(result.tensors["sample"], expected, (frames, *SIDES), (config.sp, config.tp))
    assert found["rel_rmse"] <= 5e-6
    if config.num_devices > 1:
        assert 0 < found["seam_ratio"] <= 1.5
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"use_post_quant_conv": True}, "use_post_quant_conv"),
        ({"act_fn": "gelu"}, "act_fn"),
        ({"block_out_channels": 7}, "block_out_channels"),
        ({"block_out_channels": []}, "block_out_channels"),
        ({"block_out_channels": [32, 64, 48]}, "norm_num_groups"),
        ({"latent_channels": True}, "latent_channels"),
        ({"temporal_compression_ratio": 6}, "power of 2"),
        ({"temporal_compression_ratio": 16}, "power of 2"),
        ({"scaling_factor": 0}, "scaling_factor"),
    ],
)
def test_config_that_cannot_be(config, word):
    with pytest.raises(UserError, match=word):
        CogVideoXVAEConfig.from_dict(config)
