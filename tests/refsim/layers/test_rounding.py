"""What is rounded where, and what is not: the parts of layers that thresholds of whole models cannot see."""

from __future__ import annotations

import pytest
import torch

from refsim.base.options import RunOptions
from refsim.layers.norm import DistributedRMSNorm, RMSNorm
from refsim.layers.rope import rotary_angles, text_rotary, token_positions
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.embeddings import rotary_tables as cogvideox_tables
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.embeddings import sequences_of
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.embeddings import rotary_tables as wan_tables
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor
from tests.refsim.helpers import Held

FEATURES, EPS = 64, 1e-6
EXACT = 1e-6
"""Tables are stored in fp32; an angle of 500 computed in it would be off by 3e-5."""


@pytest.fixture
def device():
    return Device(RunOptions.of(mesh="n150", parallel="sp1"))


def draw(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def norms_of_others(weight: torch.Tensor) -> dict[str, torch.nn.Module]:
    """RMS norms of diffusers and transformers with this weight, which round before they multiply by it."""
    from diffusers.models.normalization import RMSNorm as Diffusers
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    theirs = {
        "diffusers": Diffusers(FEATURES, eps=EPS),
        "t5": T5LayerNorm(FEATURES, eps=EPS),
        "qwen3": Qwen3MoeRMSNorm(FEATURES, eps=EPS),
    }
    for module in theirs.values():
        module.weight.data = weight
    return theirs


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["usual", "near_zero"])
@pytest.mark.parametrize("other", ["diffusers", "t5", "qwen3"])
def test_rms_norm_rounds_in_their_order(device, other, scale):
    """The same bits in bf16, also where the variance is as small as epsilon."""
    weight, x = (1 + 0.3 * draw(FEATURES)).bfloat16(), (scale * draw(2, 5, 40, FEATURES, seed=1)).bfloat16()
    ours = RMSNorm(Held({"norm.weight": weight}, torch.bfloat16), device, "norm", features=FEATURES, eps=EPS)
    with torch.no_grad():
        theirs = norms_of_others(weight)[other](x)
    assert torch.equal(ours(x), theirs)
    assert not torch.equal(
        (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + EPS) * weight).bfloat16(), theirs
    )


def test_the_norm_over_heads_rounds_once(device):
    """As ``torch.nn.RMSNorm``, which Wan's attention has."""
    heads, e = 4, 16
    weight, x = (1 + 0.3 * draw(FEATURES)).bfloat16(), (1e-3 * draw(1, 50, FEATURES, seed=1)).bfloat16()
    held = Held({"norm.weight": weight}, torch.bfloat16)
    ours = DistributedRMSNorm(held, device, "norm", num_heads=heads, head_dim=e, eps=EPS)
    theirs = torch.nn.functional.rms_norm(x.float(), (FEATURES,), weight.float(), EPS).bfloat16()
    x_BHNE = MeshTensor(x.unflatten(-1, (heads, e)).transpose(1, 2))
    found = ours(x_BHNE).local.transpose(1, 2).flatten(2)
    assert (found != theirs).float().mean() < 0.01  # sums in another order, then one rounding


def test_wan_positions_far_from_the_corner():
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    grid, head = (2, 3, 1000), 128
    cos, sin = WanRotaryPosEmbed(head, (1, 1, 1), 1024)(torch.empty(1, 1, *grid))
    ours = wan_tables(WanConfig(attention_head_dim=head), grid, TokenShards.of(6000, 1), 0)
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        assert (mine - theirs[0, :, 0, ::2]).abs().max() <= EXACT


def test_cogvideox_positions_far_from_the_corner():
    """Against the formula in float64: 1.5 counts patches from the corner."""
    grid, config = (2, 3, 700), CogVideoXConfig(use_rotary_positional_embeddings=True, patch_size_t=2)
    positions = [p.double() for p in token_positions(grid, (0, 4200))]
    ours = cogvideox_tables(config, grid, TokenShards.of(4200, 1), 0)
    frequencies = [10000.0 ** -(torch.arange(0, n, 2, dtype=torch.float64) / n) for n in (16, 24, 24)]
    angles = torch.cat([torch.outer(p, f) for p, f in zip(positions, frequencies, strict=True)], -1)
    for mine, theirs in zip(ours, (angles.cos(), angles.sin()), strict=True):
        assert (mine - theirs).abs().max() <= EXACT


def test_flux_positions_far_from_the_corner(device):
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed

    ids = torch.stack([torch.zeros(900), torch.arange(900.0), 2 * torch.arange(900.0)], -1)
    cos, sin = FluxPosEmbed(10000, [16, 56, 56])(ids)
    ours = sequences_of(device, FluxConfig.from_dict({"axes_dims_rope": [16, 56, 56]}), ids, ids[:1]).rotary
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        assert (mine - theirs[:, ::2]).abs().max() <= EXACT


def test_angles_are_float64():
    assert rotary_angles((torch.arange(3),), (4,)).dtype == torch.float64


def test_text_is_turned_as_it_was_trained():
    """By angles in fp32, bit by bit, also at row 40000."""
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

    theirs = Qwen3MoeRotaryEmbedding(Qwen3MoeConfig(head_dim=FEATURES, rope_theta=1e6, max_position_embeddings=40960))
    rows = torch.tensor([0, 1, 77, 40000])
    for mine, wanted in zip(text_rotary(rows, FEATURES, 1e6), theirs(draw(1), rows[None]), strict=True):
        assert torch.equal(mine, wanted[0, :, : FEATURES // 2])
