"""Angles of rotary positions against diffusers, on grids as large as published ones: small ones hide a wrong base."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from diffusers.models.embeddings import get_1d_rotary_pos_embed, get_3d_rotary_pos_embed
from diffusers.models.transformers.transformer_mochi import MochiRoPE
from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from torch import Tensor

from parity.cases.checkpoints import MODELS
from parity.cases.suites import registry
from refsim.base.errors import UserError
from refsim.models.mochi.config import MochiConfig
from refsim.models.registry import get

pytest.importorskip("ttnn")

from tt_impl.blocks import sequences
from tt_impl.models.cogvideox import embeddings as cogvideox
from tt_impl.models.flux1 import embeddings as flux1
from tt_impl.models.mochi import embeddings as mochi
from tt_impl.models.qwenimage import embeddings as qwenimage
from tt_impl.models.wan22 import embeddings as wan22
from tt_impl.parallel.sequence import valid_prompts

GRID = (5, 90, 300)
"""Frames, rows, columns; more columns than bf16 counts."""


class Whole:
    """What the tables ask of a context: one device that has all tokens."""

    sp = 1
    options = SimpleNamespace(splits_prompt=False)


@pytest.fixture(autouse=True)
def angles_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables stay the angles on the host that they are made of."""
    for module in (cogvideox, sequences, wan22):
        monkeypatch.setattr(module, "pair_rotary", lambda ctx, angles, **how: angles)


def config(model: str):
    registry()
    return get(MODELS[model].class_name).config_class.from_dict(MODELS[model].config)


def check(angles_NP: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Against diffusers' cosines and sines, each feature pair twice; it multiplies positions in fp32 here and there."""
    assert angles_NP.dtype == torch.float64
    for wanted, found in ((cos, angles_NP.cos()), (sin, angles_NP.sin())):
        torch.testing.assert_close(wanted.double().reshape(len(found), -1)[:, ::2], found, rtol=0, atol=5e-5)


def test_wan() -> None:
    oracle = WanRotaryPosEmbed(64, (1, 2, 2), 1024)
    cos, sin = oracle(torch.empty(1, 16, GRID[0], 2 * GRID[1], 2 * GRID[2]))
    check(wan22.rotary_tables(Whole, config("wan22_tiny64"), GRID), cos, sin)


def test_flux() -> None:
    model = config("flux1_tiny64")
    ids = torch.stack(torch.meshgrid(*map(torch.arange, (1, *GRID[1:])), indexing="ij"), -1).flatten(0, 2).float()
    parts = [
        get_1d_rotary_pos_embed(n, ids[:, i], theta=10000, repeat_interleave_real=True, use_real=True,
                                freqs_dtype=torch.float64)
        for i, n in enumerate(model.axes_dims_rope)
    ]  # fmt: skip
    cos, sin = (torch.cat([part[i] for part in parts], -1) for i in (0, 1))
    check(flux1.sequences_of(Whole, model, ids, ids).prompt_rotary, cos, sin)


def test_qwen_image() -> None:
    """Two pictures, of which one side is odd, and a prompt that has lost a token."""
    model = config("qwenimage_tiny64")
    sizes = [[1, 45, 90], [1, 31, 64]]
    oracle = QwenEmbedRope(10000, list(model.axes_dims_rope), scale_rope=True)
    image, prompt = oracle([[tuple(size) for size in sizes]], max_txt_seq_len=40)
    valid = torch.arange(40) != 7
    found = qwenimage.sequences_of(Whole, model, torch.tensor(sizes), len(image), torch.arange(40)[valid])
    for angles, wanted in ((found.rotary[: len(image)], image), (found.prompt_rotary, prompt[valid])):
        turns = wanted.repeat_interleave(2, -1)
        check(angles, turns.real, turns.imag)
    assert qwenimage.image_positions(sizes)[1].bincount().tolist() == [45 * 90, 31 * 64]


def test_mochi() -> None:
    """Odd sides; diffusers turns each head by frequencies of its own, which are ones here."""
    cos, sin = MochiRoPE()(torch.ones(3, 1, 1), *GRID, dtype=torch.float32)
    angles = mochi.positions(GRID).sum(1)
    for wanted, found in ((cos, angles.cos()), (sin, angles.sin())):
        torch.testing.assert_close(wanted.flatten(), found, rtol=0, atol=5e-5)


def test_mochi_refuses_heads_that_are_no_whole_tiles() -> None:
    config = MochiConfig.from_dict({"text_embed_dim": 8 * 24})
    with pytest.raises(UserError, match="a head size of 24 must be a multiple of 32"):
        mochi.Conditioning(None, None, config)


def test_prompts_are_cut_to_their_valid_tokens() -> None:
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0]])
    found = [(samples, tokens.tolist()) for samples, tokens in valid_prompts(mask)]
    assert found == [(slice(0, 2), [0, 2, 3]), (slice(2, 3), [0, 1, 2, 3, 4]), (slice(3, 4), [0, 2, 3])]
    assert [tokens.tolist() for _, tokens in valid_prompts(mask.to("meta"))] == [[0, 1, 2, 3, 4]]
    with pytest.raises(UserError, match="sample 1 has no valid token"):
        list(valid_prompts(torch.tensor([[1, 1], [0, 0]])))


@pytest.mark.parametrize("name,grid_type", [("cogvideox_5b_tiny64", "linspace"), ("cogvideox_15_tiny64", "slice")])
def test_cogvideox(name: str, grid_type: str) -> None:
    model, (frames, rows, columns) = config(name), GRID
    if grid_type == "slice":
        crops, more = (rows, columns), {"max_size": (rows, columns)}
    else:  # stretched over the trained grid of 4 x 6: as wide as that, and centred in its height
        height = round(6 / columns * rows)
        start = round((4 - height) / 2.0)
        crops, more = ((start, 0), (start + height, 6)), {}
    cos, sin = get_3d_rotary_pos_embed(64, crops, (rows, columns), frames, grid_type=grid_type, **more)
    found = cogvideox.rotary_tables(Whole, model, GRID)
    assert len(found) == math.prod(GRID)
    check(found, cos, sin)
