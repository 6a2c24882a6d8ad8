"""What no whole model runs: single blocks, schedules as recurrences, a checkpoint in one file, published sizes."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, register
from parity.cases.published import published_models

_ALONE = Layout("n150", "tp1")
_TP = Layout("n300", "tp2")
_LINE = Layout("n300", "sp2")
_SQUARE = Layout("bh-qb", "sp2_tp2")
_OBLONG = Layout("t3k", "sp2_tp4")


def add(cases: Registry) -> None:
    """Add the cases."""
    _blocks(cases)
    for scheduler in ("euler", "ddim", "dpm", "unipc", "unipc_3"):
        cases.make("schedule", f"schedule_{scheduler}", _ALONE, ModelShape((2, 3, 5), 0, 1))
    for published in published_models():
        cases.make("published", published, _ALONE, ModelShape((), 0, 1))
    old = "sd3_tiny64_no_qk_norm"  # as the first Stable Diffusion 3, whose file does not tell how wide a head is: 64
    register(old, MODELS["sd35_tiny64"].but(qk_norm=None))
    for model in ("sd35_tiny", old):
        cases.make("single_file", model, _TP, ModelShape((14, 22), 29, 1), tag="single_file")


def _blocks(cases: Registry) -> None:
    """Add one block of every model; 60 tokens are boxes of three sides that differ."""
    register("flux1_tiny64_single_block", MODELS["flux1_tiny64"].but(block=3))
    split = replace(_LINE, prompt_layout="split")
    for model, layout in (
        ("sd35_tiny64_dual_block", split),
        ("flux1_tiny64_single_block", _SQUARE),
        ("wan22_uneven64_block", _OBLONG),  # 192 features are 256 over four devices
        ("cogvideox_5b_tiny64_block", split),
    ):
        cases.make("block", model, layout, BlockShape(60, 45))
