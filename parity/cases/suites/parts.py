"""What no whole model runs: single blocks, schedules as recurrences, a checkpoint in one file, published sizes."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, ModelShape, Registry, make_case
from parity.cases.checkpoints import MODELS, register
from parity.cases.published import published_models

_ALONE, _TP = Layout("n150", "tp1"), Layout("n300", "tp2")
_LINE, _SQUARE, _OBLONG = Layout("n300", "sp2"), Layout("bh-qb", "sp2_tp2"), Layout("t3k", "sp2_tp4")


def add(found: Registry) -> None:
    """Add the cases."""
    _blocks(found)
    for scheduler in ("euler", "ddim", "dpm", "unipc", "unipc_3"):
        found.add(make_case("schedule", f"schedule_{scheduler}", _ALONE, ModelShape((2, 3, 5), 0, 1)))
    for published in published_models():
        found.add(make_case("published", published, _ALONE, ModelShape((), 0, 1)))
    for model in ("motif", "mochi", "flux1", "flux2", "qwenimage"):
        found.add(make_case("outlined", f"outlined_{model}", _OBLONG, ModelShape((), 0, 1)))
    old = "sd3_tiny64_no_qk_norm"  # as the first Stable Diffusion 3, whose file does not tell how wide a head is: 64
    register(old, replace(MODELS["sd35_tiny64"], config=MODELS["sd35_tiny64"].config | {"qk_norm": None}))
    for model in ("sd35_tiny", old):
        found.add(make_case("single_file", model, _TP, ModelShape((14, 22), 29, 1), tag="single_file"))


def _blocks(found: Registry) -> None:
    """One block of every model; 60 tokens are boxes of three sides that differ."""
    register("flux1_tiny64_single_block", replace(MODELS["flux1_tiny64"], block=3))
    split = replace(_LINE, prompt_layout="split")
    for model, layout in (
        ("sd35_tiny64_dual_block", split),
        ("flux1_tiny64_single_block", _SQUARE),
        ("wan22_uneven64_block", _OBLONG),  # 192 features are 256 over four devices
        ("cogvideox_5b_tiny64_block", split),
    ):
        found.add(make_case("block", model, layout, BlockShape(60, 45)))
