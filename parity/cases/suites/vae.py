"""Decoders of the autoencoders: a picture cut by rows and columns, or by channels; tiny and published widths."""

from __future__ import annotations

from typing import Any

from parity.cases import Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, register

_UNEVEN = {
    "wan_vae_uneven": MODELS["wan_vae_tiny"].but(dim_mult=[1, 2, 3, 4]),  # no two stages are as wide
    # Stages that take more channels than they give.
    "cogvideox_vae_uneven": MODELS["cogvideox_vae_tiny"].but(block_out_channels=(8, 4, 8, 16)),
}
_TENSOR: dict[str, Any] = {"vae_parallel": "tensor"}


def add(cases: Registry) -> None:
    """Add the cases of the decoders, on CPU ranks and in TTNN."""
    for name, model in _UNEVEN.items():
        register(name, model)
    _reference(cases)
    _sd35_ttnn(cases)
    for row in _VIDEOS:
        _ttnn(cases, *row)


def _reference(cases: Registry) -> None:
    def add(model: str, mesh: str, parallel: str, latent: tuple[int, ...], suite: str = "full", **layout: Any) -> None:
        batch = 2 if suite == "smoke" or "cfg" in parallel else 1
        cases.make("vae_decoder", model, Layout(mesh, parallel, **layout), ModelShape(latent, 0, batch), suite=suite)

    for where in _LINE, _OBLONG, ("t3k", "cfg2_sp2_tp2"), ("tg", "sp8_tp4"), ("galaxy", "sp8_tp4"):
        add("wan_vae_tiny", *where, (3, 10, 13))
    for where, frames in (_OBLONG, 4), (("tg", "sp8_tp4"), 3), (("galaxy", "sp4_tp8"), 3):
        add("cogvideox_vae_tiny", *where, (frames, 10, 13))
    add("cogvideox_vae", *_OBLONG, (3, 2, 8))
    for where in _LINE, _OBLONG, ("tg", "sp8_tp4"), ("galaxy", "sp4_tp8"):
        add("sd35_vae_tiny", *where, (10, 13))
    add("sd35_vae_tiny", "n300", "tp2", (10, 13), "smoke", **_TENSOR)
    for where in _OBLONG, ("t3k-1x8", "tp8"), ("tg", "sp8_tp4"):
        add("sd35_vae_tiny", *where, (10, 13), **_TENSOR)
    for layout in {}, _TENSOR:
        add("sd35_vae", *_OBLONG, (10, 13), **layout)


_LINE = ("n300", "sp2")
_OBLONG = ("t3k", "sp2_tp4")


def _ttnn(
    cases: Registry, model: str, mesh: str, parallel: str, latent: tuple[int, ...], suite: str = "full", **layout: Any
) -> None:
    shape = ModelShape(latent, 0, 2 if "cfg" in parallel else 1)
    cases.make("ttnn_vae_decoder", model, Layout(mesh, parallel, **layout), shape, dtype="bf16", suite=suite)


def _sd35_ttnn(cases: Registry) -> None:
    """Add sizes that divide over the mesh and sizes that do not (13 columns over tp4 are 4 + 4 + 4 + 1 of 4)."""
    _ttnn(cases, "sd35_vae_tiny", *_LINE, (10, 13), "smoke")
    _ttnn(cases, "sd35_vae_tiny", *_OBLONG, (10, 13), "smoke")
    _ttnn(cases, "sd35_vae_tiny", "bh-qb", "sp2_tp2", (8, 12), "smoke")
    for where in (("t3k", "cfg2_sp2_tp2"), ("galaxy", "sp4_tp8"), ("tg", "sp8_tp4"), ("bh-loudbox", "sp4_tp2")):
        _ttnn(cases, "sd35_vae_tiny", *where, (10, 13))
    # Whole pictures: ttnn's group norm; channels that are no whole tiles, and norms that see a variance as small as
    # their epsilon.
    for model in ("sd35_vae_tiny64", "sd35_vae_tiny_quiet"):
        _ttnn(cases, model, "n300", "tp2", (6, 7), "smoke", **_TENSOR)
    for where in (_OBLONG, ("t3k-1x8", "tp8"), ("bh-qb", "sp2_tp2")):
        _ttnn(cases, "sd35_vae_tiny", *where, (9, 13), **_TENSOR)
    for layout in ({}, _TENSOR):
        _ttnn(cases, "sd35_vae", *_OBLONG, (4, 8), **layout)


_VIDEOS = (
    # Of Wan three latent frames: the first, whose time is not doubled, one behind zeros, one behind two cached ones.
    ("wan_vae_uneven", "n300", "sp2", (2, 4, 6), "smoke"),
    ("wan_vae_tiny", "n300", "sp2", (2, 4, 6)),
    ("wan_vae_tiny", "bh-qb", "sp2_tp2", (3, 5, 4), "smoke"),
    ("wan_vae_tiny", "t3k", "sp2_tp4", (3, 3, 7)),
    ("wan_vae_tiny", "t3k", "cfg2_sp2_tp2", (2, 4, 6)),
    ("wan_vae_tiny", "galaxy", "sp8_tp4", (2, 10, 7)),
    ("wan_vae_tiny", "bh-loudbox", "sp4_tp2", (2, 8, 5)),
    ("wan_vae", "bh-qb", "sp2_tp2", (2, 2, 4)),
    # Of CogVideoX one chunk of two; one of three, statistics over all of them; two chunks, cached frames between.
    ("cogvideox_vae_uneven", "n300", "sp2", (2, 4, 5), "smoke"),
    ("cogvideox_vae_tiny", "n300", "sp2", (2, 4, 5)),
    ("cogvideox_vae_tiny", "bh-qb", "sp2_tp2", (4, 4, 5), "smoke"),
    ("cogvideox_vae_tiny", "t3k", "sp2_tp4", (5, 3, 7)),
    ("cogvideox_vae_tiny", "t3k", "cfg2_sp2_tp2", (3, 4, 6)),
    ("cogvideox_vae_tiny", "galaxy", "sp4_tp8", (2, 5, 9)),
    ("cogvideox_vae_tiny", "bh-loudbox", "sp4_tp2", (1, 8, 5)),
    ("cogvideox_vae", "bh-qb", "sp2_tp2", (2, 2, 4)),
)
