"""Qwen3 mixture of experts and DFlash, its drafter: heads, experts' features and vocabulary cut over tp."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import GenerationShape, Layout, ModelShape, Registry

_TTNN_SHAPE = GenerationShape(prompts=2, text=7, max_new_tokens=6)


def add(cases: Registry) -> None:
    """Add the forward of the target alone and generation by both, and generation in TTNN."""
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4"), ("t3k-1x8", "tp8")):  # 8 devices share 4 key-value heads
        cases.make("causal_lm", "qwen3_moe_tiny", Layout(*where), ModelShape((), 37, 2))
    cases.make("generation", "dflash_tiny", Layout("n300", "tp2"), GenerationShape())
    cases.make("generation", "dflash_tiny", Layout("bh-qb-1x4", "tp4"), GenerationShape(prompts=4))
    uncached = GenerationShape(prompts=4, cache="none")
    cases.make("generation", "dflash_tiny", Layout("n300", "tp2"), uncached, tag="uncached")
    paged = GenerationShape(text=40, least=26, cache="paged")  # more rows than a page has
    cases.make("generation", "dflash_tiny", Layout("n300", "tp2"), paged, tag="paged")
    _ttnn(cases)


def _ttnn(cases: Registry) -> None:
    """Add generation in TTNN: the target cut over tp, the drafter whole on every device."""
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4")):
        cases.make("ttnn_generation", "dflash_tiny32", Layout(*where), _TTNN_SHAPE)
    uncached = replace(_TTNN_SHAPE, cache="none")
    cases.make("ttnn_generation", "dflash_tiny32", Layout("bh-qb-1x4", "tp4"), uncached, tag="uncached")
    wide = replace(_TTNN_SHAPE, prompts=1, max_new_tokens=4)
    cases.make("ttnn_generation", "dflash_wide", Layout("bh-qb-1x4", "tp4"), wide, suite="full")
    paged = replace(_TTNN_SHAPE, text=32, least=28, cache="paged")  # the tokens behind fill another page
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4")):
        cases.make("ttnn_generation", "dflash_two_tiny32", Layout(*where), paged, tag="paged")
