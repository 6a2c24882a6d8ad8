"""Decoders of the autoencoders: a picture cut by rows and columns, or by channels; tiny and published widths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import Layout, ModelShape, Registry, make_case
from parity.cases.checkpoints import MODELS, register


def add(found: Registry) -> None:
    """Add the cases of the decoders."""
    _wan(found)
    _cogvideox(found)
    _sd35(found)
    _sd35_ttnn(found)
    _wan_ttnn(found)
    _cogvideox_ttnn(found)


def _wan(found: Registry) -> None:
    for where in (
        ("n300", "sp2"),
        ("t3k", "sp2_tp4"),
        ("t3k", "cfg2_sp2_tp2"),
        ("tg", "sp8_tp4"),
        ("galaxy", "sp8_tp4"),
    ):
        shape = ModelShape((3, 10, 13), 0, 2 if "cfg" in where[1] else 1)
        found.add(make_case("vae_decoder", "wan_vae_tiny", Layout(*where), shape, suite="full"))


def _cogvideox(found: Registry) -> None:
    for where, frames in ((("t3k", "sp2_tp4"), 4), (("tg", "sp8_tp4"), 3), (("galaxy", "sp4_tp8"), 3)):
        shape = ModelShape((frames, 10, 13), 0, 1)
        found.add(make_case("vae_decoder", "cogvideox_vae_tiny", Layout(*where), shape, suite="full"))
    found.add(
        make_case("vae_decoder", "cogvideox_vae", Layout("t3k", "sp2_tp4"), ModelShape((3, 2, 8), 0, 1), suite="full")
    )


def _sd35(found: Registry) -> None:
    for where in (("n300", "sp2"), ("t3k", "sp2_tp4"), ("tg", "sp8_tp4"), ("galaxy", "sp4_tp8")):
        found.add(make_case("vae_decoder", "sd35_vae_tiny", Layout(*where), ModelShape((10, 13), 0, 1), suite="full"))
    for where in (("n300", "tp2"), ("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("tg", "sp8_tp4")):
        layout, suite = Layout(*where, vae_parallel="tensor"), "smoke" if where[0] == "n300" else "full"
        shape = ModelShape((10, 13), 0, 2 if suite == "smoke" else 1)
        found.add(make_case("vae_decoder", "sd35_vae_tiny", layout, shape, suite=suite))
    for vae in ("spatial", "tensor"):
        layout = Layout("t3k", "sp2_tp4", vae_parallel=vae)
        found.add(make_case("vae_decoder", "sd35_vae", layout, ModelShape((10, 13), 0, 1), suite="full"))


def _sd35_ttnn(found: Registry) -> None:
    """Sizes that divide over the mesh and sizes that do not (13 columns over tp4 are 4 + 4 + 4 + 1 of 4)."""

    def add(model: str, where: tuple[str, str], latent: tuple[int, int], suite: str = "full", **more: Any) -> None:
        layout, shape = Layout(*where, **more), ModelShape(latent, 0, 2 if "cfg" in where[1] else 1)
        found.add(make_case("ttnn_vae_decoder", model, layout, shape, dtype="bf16", suite=suite))

    add("sd35_vae_tiny", ("n300", "sp2"), (10, 13), "smoke")
    add("sd35_vae_tiny", ("t3k", "sp2_tp4"), (10, 13), "smoke")
    add("sd35_vae_tiny", ("bh-qb", "sp2_tp2"), (8, 12), "smoke")
    for where in (("t3k", "cfg2_sp2_tp2"), ("galaxy", "sp4_tp8"), ("tg", "sp8_tp4"), ("bh-loudbox", "sp4_tp2")):
        add("sd35_vae_tiny", where, (10, 13))
    add("sd35_vae_tiny64", ("n300", "tp2"), (6, 7), "smoke", vae_parallel="tensor")  # whole pictures: ttnn's group norm
    # Channels that are no whole tiles; and norms that see a variance as small as their epsilon.
    add("sd35_vae_tiny_quiet", ("n300", "tp2"), (6, 7), "smoke", vae_parallel="tensor")
    for where in (("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("bh-qb", "sp2_tp2")):
        add("sd35_vae_tiny", where, (9, 13), vae_parallel="tensor")
    for form in ("spatial", "tensor"):
        add("sd35_vae", ("t3k", "sp2_tp4"), (4, 8), vae_parallel=form)


def _wan_ttnn(found: Registry) -> None:
    """Three latent frames: the first one, whose time is not doubled, one behind zeros, and one behind two kept ones."""
    base, uneven = MODELS["wan_vae_tiny"], "wan_vae_uneven"  # no two stages are as wide
    register(uneven, replace(base, config=base.config | {"dim_mult": [1, 2, 3, 4]}))
    shape = ModelShape((2, 4, 6), 0, 1)
    found.add(make_case("ttnn_vae_decoder", uneven, Layout("n300", "sp2"), shape, dtype="bf16"))
    for where, latent, suite in (
        (("n300", "sp2"), (2, 4, 6), "full"),
        (("bh-qb", "sp2_tp2"), (3, 5, 4), "smoke"),
        (("t3k", "sp2_tp4"), (3, 3, 7), "full"),
        (("t3k", "cfg2_sp2_tp2"), (2, 4, 6), "full"),
        (("galaxy", "sp8_tp4"), (2, 10, 7), "full"),
        (("bh-loudbox", "sp4_tp2"), (2, 8, 5), "full"),
    ):
        shape = ModelShape(latent, 0, 2 if "cfg" in where[1] else 1)
        found.add(make_case("ttnn_vae_decoder", "wan_vae_tiny", Layout(*where), shape, dtype="bf16", suite=suite))
    published = ModelShape((2, 2, 4), 0, 1)
    found.add(
        make_case("ttnn_vae_decoder", "wan_vae", Layout("bh-qb", "sp2_tp2"), published, dtype="bf16", suite="full")
    )


def _cogvideox_ttnn(found: Registry) -> None:
    """One chunk of two latent frames; one of three, statistics over all of them; two chunks, kept frames between."""
    base, uneven = MODELS["cogvideox_vae_tiny"], "cogvideox_vae_uneven"  # stages that take more channels than they give
    register(uneven, replace(base, config=base.config | {"block_out_channels": (8, 4, 8, 16)}))
    shape = ModelShape((2, 4, 5), 0, 1)
    found.add(make_case("ttnn_vae_decoder", uneven, Layout("n300", "sp2"), shape, dtype="bf16"))
    for where, latent, suite in (
        (("n300", "sp2"), (2, 4, 5), "full"),
        (("bh-qb", "sp2_tp2"), (4, 4, 5), "smoke"),
        (("t3k", "sp2_tp4"), (5, 3, 7), "full"),
        (("t3k", "cfg2_sp2_tp2"), (3, 4, 6), "full"),
        (("galaxy", "sp4_tp8"), (2, 5, 9), "full"),
        (("bh-loudbox", "sp4_tp2"), (1, 8, 5), "full"),
    ):
        shape = ModelShape(latent, 0, 2 if "cfg" in where[1] else 1)
        found.add(make_case("ttnn_vae_decoder", "cogvideox_vae_tiny", Layout(*where), shape, dtype="bf16", suite=suite))
    published = ModelShape((2, 2, 4), 0, 1)
    found.add(
        make_case(
            "ttnn_vae_decoder", "cogvideox_vae", Layout("bh-qb", "sp2_tp2"), published, dtype="bf16", suite="full"
        )
    )
