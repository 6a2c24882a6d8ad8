"""Published models as cases: their names, and which of them a library can judge."""

from __future__ import annotations

from refsim.models.registry import builtin
from refsim.models.spec import ModelSpec, Published

NO_LIBRARY = ("dflash", "motif")
"""Specs whose class neither diffusers nor transformers has."""


def published_models() -> dict[str, tuple[ModelSpec, Published]]:
    """Return spec and configuration of every published model that a library has.

    They go by the name of their case, such as ``published_sd35_large``.
    """
    return {
        f"published_{published.name.replace('-', '_').replace('.', '_')}": (spec, published)
        for spec in builtin()
        if spec.name not in NO_LIBRARY
        for published in spec.published
    }
