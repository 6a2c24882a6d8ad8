"""Small cases of tt_dit's own tests, for running the same place of its code many times."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = "models/tt_dit/tests/"


@dataclass(frozen=True)
class Case:
    """One of upstream's cases, the mesh it runs on, and the values of its parameters that are made smaller."""

    path: str
    smaller: dict[str, Any] = field(default_factory=dict, hash=False)
    mesh: str = "t3k"


def _case(file: str, function: str, parameters: str, smaller: dict[str, Any] | None = None, mesh: str = "t3k") -> Case:
    return Case(f"{TESTS}{file}.py::{function}[wormhole_b0-{parameters}]", smaller or {}, mesh)


_FEW = {"batch_size": 1, "spatial_seq_len": 300, "prompt_seq_len": 64}  # 300: the padding of the sequence is used
_WHOLE = _FEW | {"spatial_seq_len": 1024}  # the test of Flux compares the padding, too

COLUMN = _case("unit/test_linear", "test_col_parallel_linear", "True-sd35_timestep_embedder-yes_fsdp-1-2x4-fabric_1d")
ROW = _case("unit/test_linear", "test_row_parallel_linear", "True-1-1-256-2432-yes_fsdp-1-2x4-fabric_1d")
FEED_FORWARD = _case(
    "unit/test_feedforward", "test_parallel_feedforward", "sd35_timestep_embedder-yes_fsdp-1-2x4-fabric_1d"
)
SWIGLU = _case("unit/test_feedforward", "test_parallel_feedforward", "mochi_prompt_ff-yes_fsdp-1-2x4-fabric_1d")
LAYER_NORM = _case(
    "unit/test_normalization", "test_distributed_layernorm", "tp2_axis1-static_affine-b1_len0-dim_motif", mesh="n300"
)
RMS_NORM = _case("unit/test_normalization", "test_distributed_rms_norm", "fabric1d-yes_eltwise_no_bias-shape2-2x4_0")
MOTIF_ATTENTION = _case("blocks/test_attention", "test_attention_motif", "device_params0-motif-2x4sp0tp1", _FEW)
MOTIF_BLOCK = _case(
    "blocks/test_transformer_block",
    "test_transformer_block_motif",
    "device_params0-False-2-4100-334-2x4sp0tp1",
    _FEW,
)
FLUX_BLOCK = _case(
    "blocks/test_transformer_block", "test_transformer_block_flux", "device_params0-1-4096-512-2x4sp0tp1", _WHOLE
)
PATCHES = _case(
    "models/sd35/test_patch_embed_sd35", "test_patch_embed_sd35", "1-128-128-2-16-2432-192-mesh_device5-0-1"
)
TIMESTEP = _case("unit/test_embeddings", "test_combined_timestep_text_proj_embeddings", "1-1024-768-mesh_device0")
TRACED = Case(str(Path(__file__).with_name("traced_loop.py")) + "::test_denoising")
"""A loop of this project's over tt_dit's parts."""
