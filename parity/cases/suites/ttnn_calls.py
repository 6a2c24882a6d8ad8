"""Calls in TTNN: those that a mesh must refuse, and what each call of a published model's forward is given."""

from __future__ import annotations

from parity.cases import Layout, ModelShape, Registry

_LINES = Layout("t3k", "sp2_tp4")
_MIXED = Layout("bh-loudbox", "sp2_tp4")
_RING = Layout("t3k-1x8", "tp8")
_WIDE = Layout("bh-galaxy", "cfg2_sp4_tp4")  # where attention's chunks are not the usual ones
_PAIR = Layout("n300", "tp2")
_ROWS = Layout("n300", "sp2")
_SQUARE = Layout("bh-qb", "sp2_tp2")
_FEW = ModelShape((32, 32), 333, 1)
_MANY = ModelShape((128, 128), 333, 1)
"""Latents of 256 and of 4096 image tokens: activations on a device lie in L1, and in DRAM."""


def add(cases: Registry) -> None:
    """Add the cases."""
    for layout, suite in ((_LINES, "smoke"), (_RING, "smoke"), (_MIXED, "full"), (_PAIR, "full")):
        cases.make("ttnn_refused", "refused", layout, ModelShape((), 0, 1), dtype="bf16", suite=suite)
    cases.make("ttnn_spare", "spare_tensors", _PAIR, ModelShape((), 0, 1), dtype="bf16")
    cases.make("ttnn_chosen", "chosen_sizes", _MIXED, ModelShape((), 0, 1), dtype="bf16")
    for model, layout, shape, tag in (
        ("sd35_large", _MIXED, _MANY, "4096tokens"),
        ("sd35_large", _LINES, _FEW, "256tokens"),
        ("flux1_dev", _RING, _MANY, "4096tokens"),
        ("flux2_dev", _WIDE, _MANY, "4096tokens"),
        ("wan22_ti2v_5b", _MIXED, ModelShape((3, 22, 40), 0, 1), "video"),
        ("cogvideox_5b", _SQUARE, ModelShape((4, 20, 30), 0, 1), "video"),
        ("t5_xxl", _PAIR, ModelShape((), 256, 1), "prompt"),
        ("clip_g", _SQUARE, ModelShape((), 77, 1), "prompt"),
        ("sd35_vae_tiny", _ROWS, ModelShape((4, 4), 0, 1), "picture"),
        ("wan21_vae", _ROWS, ModelShape((1, 4, 4), 0, 1), "frame"),
        ("sd35_medium", _WIDE, _MANY, "4096tokens"),
    ):
        suite = (
            "full" if model in ("cogvideox_5b", "clip_g", "sd35_medium", "flux2_dev") else "smoke"
        )  # calls like the others'
        cases.make("ttnn_given", f"given_{model}", layout, shape, dtype="bf16", suite=suite, tag=tag)
