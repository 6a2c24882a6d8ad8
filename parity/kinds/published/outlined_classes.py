"""The classes that outlines stand for, what is taken out of each, and which of its weights are which of an outline's.

Pooled prompts give nothing, all tokens stand at position 0, ungated feed-forwards have an exact gelu and no biases
into them, gated ones no activation; Mochi's norms are layer norms, its gates have no tanh, its scales (which an outline
takes for shifts, too) are 0. Motif, which no library has, is SD3's class with wider linears of the time step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parity.cases.inputs import generator
from refsim.models.motif.config import MotifConfig
from refsim.models.outline import TIME, Outline

Tensors = dict[str, Tensor]
HEADS = 3
HEAD_DIM = 8
TEXT = 16
PROMPT = 5
ROWS = 3
COLUMNS = 4
"""Heads, features of a head and of the prompt, tokens of the prompt, patches of the picture down and across."""
WIDTH = HEADS * HEAD_DIM
CHANNELS = 4
INNER = 12


@dataclass(frozen=True)
class Outlined:
    """An outline and the class it stands for.

    Attributes:
        class_name, config: of the class.
        outline: its sizes.
        names: of the weights, of the outline's from those of the class.
        inputs: arguments of the class beyond tokens, prompt and time step.
        change: what is taken out of the class.
        pictures: it takes a picture (1) or a video (2) in place of its patches.
        times: what it multiplies time steps by.
        own_tokens: that the model has before those of a picture, and the class not.
    """

    class_name: str
    config: dict[str, Any]
    outline: Outline
    names: Callable[[Tensors], Tensors]
    inputs: dict[str, Any]
    change: Callable[[Any], None]
    pictures: int = 0
    times: float = 1.0
    own_tokens: int = 0


def _zero(model: nn.Module, *endings: str) -> None:
    for name, x in model.state_dict().items():
        if name.endswith(endings):
            x.zero_()


def _exact(model: Any) -> None:
    """Take out pooled prompts, approximate gelu, and biases where an outline's fused linears have none."""
    _zero(model, "text_embedder.linear_2.weight", "text_embedder.linear_2.bias", ".proj.bias", "proj_mlp.bias")
    for module in model.modules():
        if getattr(module, "approximate", None) == "tanh":
            module.approximate = "none"


def _sd35(model: Any) -> None:
    bias = model.pos_embed.proj.bias.clone()
    _exact(model)
    model.pos_embed.proj.bias.copy_(bias)
    model.pos_embed.pos_embed.zero_()


def _motif(model: Any) -> None:
    """Give SD3 linears of the time step as wide as Motif's: 256 -> 1024 -> the stream's width."""
    _sd35(model)
    embedder = model.time_text_embed.timestep_embedder
    g = generator(0, "outlined time")
    for name, a, b in (("linear_1", TIME, 4 * TIME), ("linear_2", 4 * TIME, WIDTH)):
        wide = nn.Linear(a, b)
        wide.weight.copy_(torch.randn(b, a, generator=g) * a**-0.5)
        wide.bias.copy_(torch.randn(b, generator=g) * 0.3)
        setattr(embedder, name, wide)


def _flux1(model: Any) -> None:
    _exact(model)
    for block in model.single_transformer_blocks:
        for each in (block.attn.to_q, block.attn.to_k, block.attn.to_v):
            each.bias.zero_()


_DOUBLE = r"transformer_blocks\.(\d)\."
_SINGLE = r"single_transformer_blocks\.0\."
_TIME = r"time_(?:text_|guidance_)?embed\."
_NAMES = {
    r"(?:pos_embed\.proj|x_embedder|img_in|patch_embed\.proj)\.": "x_embedder.",
    rf"(?:context_embedder|txt_in|{_TIME}caption_proj)\.": "context_embedder.",
    rf"{_TIME}timestep_embedder\.linear_1\.": "time.0.",
    rf"{_TIME}timestep_embedder\.linear_2\.": "time.1.",
    r"norm_out\.linear\.": "mod_out.",
    r"proj_out\.": "proj_out.",
    rf"{_DOUBLE}(?:norm1\.linear(?:_1)?|img_mod\.1)\.": r"blocks.\1.spatial.mod.",
    rf"{_DOUBLE}(?:norm1_context\.linear(?:_1)?|txt_mod\.1)\.": r"blocks.\1.prompt.mod.",
    rf"{_DOUBLE}attn1?\.to_([qkv])\.": r"blocks.\1.spatial.to_\2.",
    rf"{_DOUBLE}attn1?\.add_([qkv])_proj\.": r"blocks.\1.prompt.to_\2.",
    rf"{_DOUBLE}attn1?\.norm_([qk])\.": r"blocks.\1.spatial.norm_\2.",
    rf"{_DOUBLE}attn1?\.norm_added_([qk])\.": r"blocks.\1.prompt.norm_\2.",
    rf"{_DOUBLE}attn1?\.to_out\.0\.": r"blocks.\1.spatial.out.",
    rf"{_DOUBLE}attn1?\.to_add_out\.": r"blocks.\1.prompt.out.",
    rf"{_DOUBLE}(?:ff\.linear_out|(?:ff|img_mlp)\.net\.2)\.": r"blocks.\1.spatial.ff.out.",
    rf"{_DOUBLE}(?:ff_context\.linear_out|(?:ff_context|txt_mlp)\.net\.2)\.": r"blocks.\1.prompt.ff.out.",
    rf"{_DOUBLE}(?:ff\.linear_in|(?:ff|img_mlp)\.net\.0\.proj)\.weight": r"blocks.\1.spatial.ff.in",
    rf"{_DOUBLE}(?:ff_context\.linear_in|(?:ff_context|txt_mlp)\.net\.0\.proj)\.weight": r"blocks.\1.prompt.ff.in",
    rf"{_SINGLE}norm\.linear\.": "single_blocks.0.mod.",
    rf"{_SINGLE}(?:proj_out|attn\.to_out)\.": "single_blocks.0.down.",
    rf"{_SINGLE}attn\.norm_([qk])\.": r"single_blocks.0.norm_\1.",
    **{rf"{_SINGLE}attn\.to_{n}\.weight": f"single_blocks.0.in.{i}" for i, n in enumerate("qkv")},
    rf"{_SINGLE}proj_mlp\.weight": "single_blocks.0.in.3",
}
"""What the name of a weight begins with in any of the classes, and in an outline."""


def _renamed(tensors: Tensors, parts: int = 1) -> Tensors:
    """Rename the weights of a class; those into a feed-forward are cut: ``ff.in.0``, and ``ff.in.1`` if it is gated."""
    renamed: Tensors = {}
    for theirs, x in tensors.items():
        matches = ((re.match(pattern, theirs), ours) for pattern, ours in _NAMES.items())
        match, ours = next(((match, ours) for match, ours in matches if match), (None, ""))
        if match:
            name = match.expand(ours) + theirs[match.end() :]
            cut = x.chunk(parts) if name.endswith(".ff.in") else ()
            renamed |= {f"{name}.{i}": part for i, part in enumerate(cut)} or {name: x}
    renamed["x_embedder.weight"] = renamed["x_embedder.weight"].flatten(1)  # of a patch
    return renamed


def _of_sd35(tensors: Tensors) -> Tensors:
    weights = _renamed(tensors)
    for kind in ("weight", "bias"):  # diffusers' last prompt has scale before shift
        name = f"blocks.1.prompt.mod.{kind}"
        weights[name] = torch.cat(weights[name].chunk(2)[::-1])
    return weights


_SIZES: dict[str, Any] = {"num_layers": 2, "num_attention_heads": HEADS, "attention_head_dim": HEAD_DIM}
_FLUX = {**_SIZES, "num_single_layers": 1, "in_channels": INNER, "joint_attention_dim": TEXT}
_MOTIF = {**_SIZES, "modulation_dim": WIDTH, "time_embed_dim": TIME, "patch_size": 2, "in_channels": CHANNELS}
_MOTIF |= {"text_dim": TEXT}
_SD3 = {**_SIZES, "sample_size": 2 * COLUMNS, "caption_projection_dim": WIDTH, "in_channels": CHANNELS}
_SD3 |= {"joint_attention_dim": TEXT, "pooled_projection_dim": 6, "pos_embed_max_size": COLUMNS}
_SD3 |= {"qk_norm": "rms_norm", "out_channels": CHANNELS}
_POOLED = {"pooled_projections": torch.zeros(2, 6)}
_IDS = {"img_ids": torch.zeros(ROWS * COLUMNS, 3), "txt_ids": torch.zeros(PROMPT, 3)}
_FLUX1 = Outline(
    **_SIZES,
    num_single_layers=1,
    token_features=INNER,
    out_features=INNER,
    hidden=4 * WIDTH,
    prompt_hidden=4 * WIDTH,
    text_features=TEXT,
    time=(TIME, WIDTH, WIDTH),
    prompt_features=WIDTH,
)
OUTLINED = {
    "outlined_motif": Outlined(
        "SD3Transformer2DModel",
        _SD3,
        MotifConfig.from_dict(_MOTIF),
        names=_of_sd35,
        inputs=_POOLED,
        change=_motif,
        pictures=1,
        own_tokens=4,
    ),
    "outlined_flux1": Outlined(
        "FluxTransformer2DModel",
        {**_FLUX, "pooled_projection_dim": 6, "axes_dims_rope": (2, 2, 4)},
        _FLUX1,
        names=_renamed,
        inputs=_IDS | _POOLED,
        change=_flux1,
        times=1000.0,
    ),
}
