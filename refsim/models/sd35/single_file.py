"""Stable Diffusion 3 and 3.5 in one file, as Stability AI publishes it: ``model.diffusion_model.joint_blocks...``.

The file may hold text encoders and an autoencoder too, which are left alone. Source of the names: diffusers'
``convert_sd3_transformer_checkpoint_to_diffusers``.
"""

from __future__ import annotations

import math
import re

from refsim.base.errors import UserError
from refsim.files.single_file import Layout, Piece
from refsim.files.tensor_file import TensorFile
from refsim.models.sd35.spec import CLASS_NAME

_PREFIX = "model.diffusion_model."
_QKV = ("to_q", "to_k", "to_v")
_MODULES: dict[str, tuple[str, ...]] = {
    r"x_embedder\.proj": ("pos_embed.proj",),
    r"t_embedder\.mlp\.0": ("time_text_embed.timestep_embedder.linear_1",),
    r"t_embedder\.mlp\.2": ("time_text_embed.timestep_embedder.linear_2",),
    r"y_embedder\.mlp\.0": ("time_text_embed.text_embedder.linear_1",),
    r"y_embedder\.mlp\.2": ("time_text_embed.text_embedder.linear_2",),
    r"context_embedder": ("context_embedder",),
    r"joint_blocks\.(\d+)\.x_block\.(attn2?)\.qkv": tuple(rf"transformer_blocks.\1.\2.{x}" for x in _QKV),
    r"joint_blocks\.(\d+)\.x_block\.(attn2?)\.ln_([qk])": (r"transformer_blocks.\1.\2.norm_\3",),
    r"joint_blocks\.(\d+)\.x_block\.(attn2?)\.proj": (r"transformer_blocks.\1.\2.to_out.0",),
    r"joint_blocks\.(\d+)\.context_block\.attn\.qkv": tuple(rf"transformer_blocks.\1.attn.add_{x}_proj" for x in "qkv"),
    r"joint_blocks\.(\d+)\.context_block\.attn\.ln_([qk])": (r"transformer_blocks.\1.attn.norm_added_\2",),
    r"joint_blocks\.(\d+)\.context_block\.attn\.proj": (r"transformer_blocks.\1.attn.to_add_out",),
    r"joint_blocks\.(\d+)\.x_block\.adaLN_modulation\.1": (r"transformer_blocks.\1.norm1.linear",),
    r"joint_blocks\.(\d+)\.context_block\.adaLN_modulation\.1": (r"transformer_blocks.\1.norm1_context.linear",),
    r"joint_blocks\.(\d+)\.x_block\.mlp\.fc1": (r"transformer_blocks.\1.ff.net.0.proj",),
    r"joint_blocks\.(\d+)\.x_block\.mlp\.fc2": (r"transformer_blocks.\1.ff.net.2",),
    r"joint_blocks\.(\d+)\.context_block\.mlp\.fc1": (r"transformer_blocks.\1.ff_context.net.0.proj",),
    r"joint_blocks\.(\d+)\.context_block\.mlp\.fc2": (r"transformer_blocks.\1.ff_context.net.2",),
    r"final_layer\.linear": ("proj_out",),
    r"final_layer\.adaLN_modulation\.1": ("norm_out.linear",),
}
"""A module of the file, and those of diffusers that have its rows, one after the other."""


def read(file: TensorFile) -> Layout | None:
    """Return what the file is, None for a file of another model.

    Raises:
        UserError: it is Stable Diffusion 3, but lacks what its sizes are told from.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in file.names) else ""
    shapes = {name.removeprefix(prefix): file.shape(name) for name in file.names if name.startswith(prefix)}
    blocks = {int(match[1]) for name in shapes if (match := re.match(r"joint_blocks\.(\d+)\.", name))}
    if not blocks:
        return None
    pieces = {}
    for name in shapes:
        for new, piece in _pieces(name, max(blocks)).items():
            pieces[new] = Piece(prefix + piece.name, piece.part, piece.parts, piece.swapped)
    try:
        return Layout(_config(shapes, len(blocks)), pieces)
    except (KeyError, IndexError) as e:
        raise UserError(f"the single file of Stable Diffusion 3 lacks {e}, from which its sizes are told.") from e


def _pieces(name: str, last: int) -> dict[str, Piece]:
    """Return the weights that a tensor holds, itself where it is of no known module."""
    if name == "pos_embed":
        return {"pos_embed.pos_embed": Piece(name)}
    module, _, kind = name.rpartition(".")
    for pattern, modules in _MODULES.items():
        if match := re.fullmatch(pattern, module):
            # scale before shift in diffusers, where nothing but a norm is modulated
            swapped = modules == ("norm_out.linear",) or module.startswith(f"joint_blocks.{last}.context_block.adaLN")
            parts = len(modules)
            return {f"{match.expand(m)}.{kind}": Piece(name, i, parts, swapped) for i, m in enumerate(modules)}
    return {name: Piece(name)}


def _config(shapes: dict[str, tuple[int, ...]], layers: int) -> dict[str, object]:
    features, joint = shapes["context_embedder.weight"]
    _, channels, patch, _ = (*shapes["x_embedder.proj.weight"], 1, 1)[:4]
    normed = shapes.get("joint_blocks.0.x_block.attn.ln_q.weight")
    head_dim = normed[0] if normed else 64
    return {
        "_class_name": CLASS_NAME,
        "patch_size": patch,
        "in_channels": channels,
        "out_channels": shapes["final_layer.linear.weight"][0] // patch**2,
        "num_layers": layers,
        "attention_head_dim": head_dim,
        "num_attention_heads": features // head_dim,
        "joint_attention_dim": joint,
        "caption_projection_dim": features,
        "pooled_projection_dim": shapes["y_embedder.mlp.0.weight"][1],
        "pos_embed_max_size": math.isqrt(shapes["pos_embed"][1]),
        "dual_attention_layers": [i for i in range(layers) if f"joint_blocks.{i}.x_block.attn2.qkv.weight" in shapes],
        "qk_norm": "rms_norm" if normed else None,
    }
