"""The registry: every case of the smoke and the full suite.

Cases are ordered so that those that share a checkpoint stand together and the heavy ones come last.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from parity.cases import FAMILIES, AttentionShape, BlockShape, DecodeShape, Layout, ModelShape, Registry, make_case

RING8 = Layout("t3k-1x8", "sp8")
ULYSSES8 = Layout("t3k-1x8", "sp8", "ulysses")
USP24 = Layout("t3k", "sp8", "usp", 2, 4)
USP42 = Layout("t3k", "sp8", "usp", 4, 2)


@cache
def registry() -> Registry:
    """All cases; the smoke suite is the part of them whose ``suite`` says so."""
    found = Registry()
    _attention_families(found)
    _attention_layouts(found)
    _attention_edges(found)
    _attention_bf16(found)
    _tiny(found)
    _decoding(found)
    _real_widths(found, "sd35_medium")
    _real_widths(found, "sd35_large")
    _full_size(found)
    _wan(found)
    _pipelines(found)
    return found


def _attention(found: Registry, layout: Layout, **more: Any) -> None:
    shape = AttentionShape(**{k: more.pop(k) for k in list(more) if k in AttentionShape.__dataclass_fields__})
    found.add(make_case("attention", "attention", layout, shape, **more))


def _attention_families(found: Registry) -> None:
    """Every input family through every scheme, the prompt replicated, fp32; three of them agreeing with a twin."""
    for family in FAMILIES:
        _attention(found, RING8, family=family, twin=ULYSSES8 if family == "normal" else None)
        _attention(found, ULYSSES8, family=family, twin=USP24 if family == "normal" else None)
        _attention(found, USP24, family=family, twin=RING8 if family == "normal" else None)
    for seed in range(1, 4):
        for family in FAMILIES:
            for layout in (RING8, ULYSSES8, USP24, USP42, Layout("t3k", "sp4_tp2"), Layout("tg", "sp8_tp4")):
                _attention(found, layout, family=family, seed=seed, suite="full", tag=f"seed{seed}")


def _attention_layouts(found: Registry) -> None:
    """Where the schemes run: meshes, axes, topologies, inside tensor parallel groups; fp32, normal."""
    for layout in (
        Layout("n300", "sp2"),
        Layout("n300", "sp2", "ulysses"),
        Layout("n300", "tp2"),
        Layout("t3k-1x8", "tp8"),
        USP42,
        Layout("t3k-1x8", "sp8", "usp", 2, 4),
        Layout("t3k-1x8", "sp8", "usp", 4, 2),
        Layout("t3k", "sp2_tp4"),
        Layout("t3k", "sp4_tp2"),
        Layout("t3k", "sp4_tp2", "ulysses"),
        Layout("t3k", "sp4_tp2", "usp", 2, 2),
        Layout("tg", "sp8_tp4"),
        Layout("tg", "sp4_tp8"),
        Layout("tg", "sp8_tp4", "ulysses"),
        Layout("tg", "sp8_tp4", "usp", 2, 4),
        Layout("tg", "sp32", "usp", 8, 4),
        Layout("tg", "sp32", "usp", 4, 8),
    ):
        _attention(found, layout)
    for mesh, parallel in (
        ("galaxy", "sp8_tp4"),
        ("bh-loudbox", "sp4_tp2"),
        ("bh-qb", "sp2_tp2"),
        ("bh-qb-1x4", "sp4"),
    ):
        _attention(found, Layout(mesh, parallel), suite="full")


def _attention_edges(found: Registry) -> None:
    """Schedules, prompts, masked padding, heads that do not divide, several chunks, batches, real length."""
    line4 = ("t3k", "sp4_tp2")
    for where in (("t3k-1x8", "sp8"), line4):
        for ring_order in ("gather", "block"):
            _attention(
                found, Layout(*where, ring_order=ring_order, chunks=(48, 20)), family="fa_rand", tag="chunks48x20"
            )
    for layout in (RING8, ULYSSES8, USP24, Layout(*line4)):
        _attention(found, layout, text=0, family="large_logits")
    for where in (("t3k-1x8", "sp8"), ("t3k-1x8", "sp8", "ulysses"), ("t3k", "sp8", "usp", 2, 4), line4):
        _attention(found, Layout(*where, prompt_layout="split"), text=300, family="outlier_text")
    _attention(found, RING8, n=256, logical_n=200, tag="logical200of256")
    _attention(found, RING8, n=512, logical_n=130, tag="logical130of512")
    _attention(found, ULYSSES8, n=512, logical_n=130, tag="logical130of512")
    _attention(found, USP24, n=512, logical_n=130, family="constant_rows", tag="logical130of512")
    _attention(found, Layout(*line4), n=512, logical_n=130, family="constant_rows", tag="logical130of512")
    _attention(found, Layout("t3k-1x8", "sp8", prompt_layout="split"), n=256, logical_n=200, tag="logical200of256")
    for layout in (ULYSSES8, USP24, Layout("t3k-1x8", "tp8"), Layout("tg", "sp8_tp4", "ulysses")):
        _attention(found, layout, heads=38, tag="38heads")
    _attention(found, Layout("t3k", "sp2_tp4"), heads=38, batch=2, tag="38heads_batch2")
    _attention(found, Layout("t3k", "sp2_tp4"), heads=8, n=4096, text=333, tag="4096tokens")
    for layout in (RING8, ULYSSES8, USP24):
        _attention(found, layout, heads=38, n=4096, text=333, tag="4096tokens_38heads", suite="full", needs_gb=6)


def _attention_bf16(found: Registry) -> None:
    for layout in (Layout("n300", "sp2"), RING8, ULYSSES8, USP24, Layout("t3k", "sp2_tp4"), Layout("tg", "sp8_tp4")):
        _attention(found, layout, dtype="bf16")
    _attention(found, RING8, dtype="bf16", family="fa_rand")
    _attention(found, USP24, dtype="bf16", family="outlier_text")
    for family in FAMILIES[1:]:
        for layout in (ULYSSES8, Layout("t3k", "sp2_tp4"), Layout("tg", "sp8_tp4")):
            _attention(found, layout, dtype="bf16", family=family, suite="full")


def _model(found: Registry, model: str, layout: Layout, **more: Any) -> None:
    shape = ModelShape(**{k: more.pop(k) for k in list(more) if k in ModelShape.__dataclass_fields__})
    found.add(make_case("model", model, layout, shape, **more))


def _tiny(found: Registry) -> None:
    """Four blocks, every branch, 3 heads, 240 image tokens of a latent that is not square; batch 2."""
    small = {"text": 29}
    for layout in (
        Layout("n300", "sp2"),
        Layout("n300", "sp2", "ulysses"),
        Layout("n300", "sp2", prompt_layout="split"),
        Layout("n300", "tp2"),
        RING8,
        ULYSSES8,
        Layout("t3k-1x8", "tp8"),
        Layout("t3k-1x8", "sp8", ring_order="gather"),
        Layout("t3k-1x8", "sp8", ring_order="block"),
        Layout("t3k-1x8", "sp8", "ulysses", prompt_layout="split"),
        Layout("t3k-1x8", "sp8", "usp", 4, 2),
        USP24,
        USP42,
        Layout("t3k", "sp2_tp4"),
        Layout("t3k", "sp4_tp2", "ulysses"),
        Layout("t3k", "sp4_tp2", "usp", 2, 2),
        Layout("t3k", "sp4_tp2", prompt_layout="split"),
        Layout("tg", "sp8_tp4"),
    ):
        _model(found, "sd35_tiny", layout, **small)
    for layout, fusion in (
        (Layout("n300", "cfg2"), Layout("n300", "tp2")),
        (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4")),
        (Layout("t3k", "cfg2_sp4"), Layout("t3k", "sp4_tp2")),
        (Layout("t3k", "cfg2_tp4"), None),
        (Layout("t3k", "cfg2_sp4", "usp", 2, 2), USP24),
        (Layout("tg", "cfg2_sp4_tp4"), None),
        (Layout("tg", "cfg2_sp16", "usp", 4, 4), None),
    ):
        _model(found, "sd35_tiny", layout, guidance=4.5, twin=fusion, **small)
    _model(found, "sd35_tiny", RING8, latent=(12, 20), batch=1, tag="60tokens_6empty_shards", **small)
    for layout in (Layout("n300", "sp2"), RING8, USP24):
        _model(found, "sd35_tiny", layout, dtype="bf16", **small)
    _model(found, "sd35_tiny", Layout("t3k", "cfg2_sp2_tp2"), dtype="bf16", guidance=4.5, **small)
    for seed in (1, 2):
        for layout in (RING8, ULYSSES8, USP42, Layout("t3k", "sp2_tp4"), Layout("tg", "cfg2_sp4_tp4")):
            more = {"suite": "full", "seed": seed, "tag": f"seed{seed}", **small}
            _model(found, "sd35_tiny", layout, **more)
            _model(found, "sd35_tiny", layout, family="fa_rand", **more)


def _real_widths(found: Registry, model: str) -> None:
    """Two blocks at full width, 240 image tokens: shards of 32 rows of which the last holds 16."""
    for layout, guidance in (
        (Layout("t3k", "cfg2_sp2_tp2"), 4.5),
        (RING8, None),
        (USP24, None),
        (Layout("tg", "cfg2_sp4_tp4"), None),
    ):
        _model(found, model, layout, guidance=guidance, needs_gb=6)
    _model(found, model, Layout("t3k", "cfg2_sp2_tp2"), dtype="bf16", guidance=4.5, needs_gb=6)
    _model(found, model, RING8, dtype="bf16", needs_gb=6)
    for layout in (ULYSSES8, Layout("t3k-1x8", "tp8"), Layout("t3k", "sp4_tp2", "usp", 2, 2), Layout("tg", "sp4_tp8")):
        _model(found, model, layout, suite="full", needs_gb=6)
        _model(found, model, layout, dtype="bf16", suite="full", needs_gb=8)


def _full_size(found: Registry) -> None:
    """SD3.5 large at 1024 px: 4096 + 333 tokens, 38 heads.

    One whole ordinary block and, since a transformer of one block would only have the last kind, the last block,
    which drops the prompt.
    """
    size = {"latent": (128, 128), "text": 333, "tag": "1024px"}
    _model(found, "sd35_large", Layout("t3k", "sp2_tp4"), dtype="bf16", batch=1, needs_gb=10, **size)
    full = {"suite": "full", "needs_gb": 14, **size}
    _model(found, "sd35_large", Layout("t3k", "sp2_tp4"), batch=1, **full)
    _model(found, "sd35_large", Layout("t3k", "cfg2_sp2_tp2"), dtype="bf16", guidance=4.5, **full)
    _model(found, "sd35_large", USP24, dtype="bf16", batch=1, **full)
    _model(found, "sd35_medium", Layout("t3k", "sp2_tp4"), dtype="bf16", batch=1, **full)


def _wan(found: Registry) -> None:
    """One Wan2.2 expert: tiny through every scheme, 3 x 4 x 6 patches; then at real widths, 480 of its tokens."""
    tiny = {"latent": (3, 8, 12), "text": 29, "suite": "full"}
    for layout in (
        Layout("t3k", "sp2_tp4"),
        RING8,
        ULYSSES8,
        USP24,
        Layout("t3k-1x8", "tp8"),
        Layout("tg", "sp8_tp4"),
        Layout("tg", "sp4_tp8"),
        Layout("galaxy", "sp8_tp4"),
    ):
        _model(found, "wan22_tiny", layout, **tiny)
    for parallel in ("cfg2_sp2_tp2", "cfg2_tp4"):
        layout, fusion = Layout("t3k", parallel), Layout("t3k", "sp2_tp4")
        _model(found, "wan22_tiny", layout, guidance=4.0, twin=fusion, **tiny)
    for layout in (Layout("t3k", "sp2_tp4"), USP24):
        _model(found, "wan22_tiny", layout, dtype="bf16", **tiny)
    for where in (
        ("n300", "sp2"),
        ("t3k", "sp2_tp4"),
        ("t3k", "cfg2_sp2_tp2"),
        ("tg", "sp8_tp4"),
        ("galaxy", "sp8_tp4"),
    ):
        shape = ModelShape((3, 10, 13), 0, 2 if "cfg" in where[1] else 1)
        found.add(make_case("decoder", "wan_vae_tiny", Layout(*where), shape, suite="full"))
    for where, frames in ((("t3k", "sp2_tp4"), 4), (("tg", "sp8_tp4"), 3), (("galaxy", "sp4_tp8"), 3)):
        shape = ModelShape((frames, 10, 13), 0, 1)
        found.add(make_case("decoder", "cogvideox_vae_tiny", Layout(*where), shape, suite="full"))
    found.add(
        make_case("decoder", "cogvideox_vae", Layout("t3k", "sp2_tp4"), ModelShape((3, 6, 10), 0, 1), suite="full")
    )
    for where in (("n300", "sp2"), ("t3k", "sp2_tp4"), ("tg", "sp8_tp4"), ("galaxy", "sp4_tp8")):
        found.add(make_case("decoder", "sd35_vae_tiny", Layout(*where), ModelShape((10, 13), 0, 1), suite="full"))
    for where in (("n300", "tp2"), ("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("tg", "sp8_tp4")):
        layout = Layout(*where, vae_parallel="tensor")
        found.add(make_case("decoder", "sd35_vae_tiny", layout, ModelShape((10, 13), 0, 1), suite="full"))
    for vae in ("spatial", "tensor"):
        layout = Layout("t3k", "sp2_tp4", vae_parallel=vae)
        found.add(make_case("decoder", "sd35_vae", layout, ModelShape((16, 24), 0, 1), suite="full"))
    for model in ("t5_tiny", "umt5_tiny"):
        for where in (("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("tg", "sp8_tp4"), ("galaxy", "sp8_tp4")):
            found.add(make_case("encoder", model, Layout(*where), ModelShape((), 150, 2), suite="full"))
    for model in ("clip_l_tiny", "clip_g_tiny"):
        for where in (("t3k", "sp2_tp4"), ("tg", "sp8_tp4")):
            found.add(make_case("encoder", model, Layout(*where), ModelShape((), 77, 2), suite="full"))
    for model in ("cogvideox_2b_tiny", "cogvideox_5b_tiny"):
        for layout in (
            USP24,
            RING8,
            ULYSSES8,
            Layout("t3k-1x8", "tp8"),
            Layout("tg", "sp8_tp4"),
            replace(USP24, prompt_layout="split"),
            replace(RING8, prompt_layout="split"),
        ):
            _model(found, model, layout, latent=(3, 8, 12), text=13, suite="full")
        guided = {"guidance": 6.0, "twin": Layout("t3k", "sp2_tp4"), "latent": (3, 8, 12), "text": 13, "suite": "full"}
        _model(found, model, Layout("t3k", "cfg2_sp2_tp2"), **guided)
        _model(found, model, Layout("t3k", "sp2_tp4"), dtype="bf16", latent=(3, 8, 12), text=13, suite="full")
    real = {"latent": (2, 24, 40), "text": 512, "batch": 1, "suite": "full", "needs_gb": 14}
    _model(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), **real)
    _model(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), dtype="bf16", **real)


def _pipelines(found: Registry) -> None:
    """Prompt to pictures: encoders, transformer, scheduler and decoder together."""
    usp = replace(USP24, prompt_layout="split")
    for model, layouts in {
        "sd3_pipeline_tiny": (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4"), Layout("tg", "cfg2_sp4_tp4")),
        "wan_pipeline_tiny": (Layout("t3k", "sp2_tp4"), Layout("t3k", "cfg2_sp2_tp2"), Layout("galaxy", "sp8_tp4")),
        "cogvideox_2b_pipeline_tiny": (USP24, usp),
        "cogvideox_5b_pipeline_tiny": (USP24, usp, Layout("t3k", "cfg2_sp2_tp2")),
    }.items():
        for layout in layouts:
            found.add(make_case("pipeline", model, layout, ModelShape((), 13, 2), suite="full"))


def _decoding(found: Registry) -> None:
    """Qwen3 mixture of experts, and DFlash drafting for it: heads, experts' features and vocabulary cut over tp."""
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4"), ("t3k-1x8", "tp8")):  # 8 devices share 4 key-value heads
        found.add(make_case("encoder", "qwen3_moe_tiny", Layout(*where), ModelShape((), 37, 2)))
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4")):
        found.add(make_case("decode", "dflash_tiny", Layout(*where), DecodeShape()))
    uncached = DecodeShape(cache="none")
    found.add(make_case("decode", "dflash_tiny", Layout("n300", "tp2"), uncached, tag="uncached"))


_WING_LAYOUTS = (
    ("n300", "tp2"),
    ("t3k", "cfg2_sp2_tp2"),
    ("t3k", "sp2_tp4"),
    ("t3k-1x8", "tp8"),  # 38 heads become 40
    ("galaxy", "cfg2_sp4_tp4"),
    ("bh-qb-1x4", "tp4"),
    ("bh-loudbox", "sp2_tp4"),
)


_WING_DECODE = DecodeShape(prompts=2, text=7, max_new_tokens=6)


@cache
def wing_registry() -> Registry:
    """The device wing's cases: where the TTNN program runs, judged against refsim in bf16."""
    found = Registry()
    # What real widths below do not cover, at three heads of 64.
    for layout, guidance in (
        (Layout("n300", "cfg2"), 4.5),
        (Layout("t3k", "sp4_tp2", "ulysses"), None),
        (USP24, None),
        (USP42, None),
        (RING8, None),
        (Layout("tg", "cfg2_sp4_tp4"), 4.5),
        (Layout("bh-qb", "sp2_tp2"), None),
    ):
        _wing(found, "sd35_tiny64", layout, guidance=guidance, text=29)
    _wing_decode(found)
    for model in ("sd35_medium", "sd35_large"):
        for where in _WING_LAYOUTS:
            found.add(make_case("wing_block", f"{model}_block", Layout(*where), BlockShape(), dtype="bf16", needs_gb=4))
        for where in _WING_LAYOUTS:
            guidance = 4.5 if where[1].startswith("cfg") else None
            _wing(found, model, Layout(*where), guidance=guidance, batch=2 if guidance else 1, needs_gb=8)
    return found


def _wing_decode(found: Registry) -> None:
    """Target cut over tp, drafter whole on every device."""
    for where in (("n300", "tp2"), ("bh-qb-1x4", "tp4")):
        found.add(make_case("wing_decode", "dflash_tiny32", Layout(*where), _WING_DECODE))
    uncached = replace(_WING_DECODE, cache="none")
    found.add(make_case("wing_decode", "dflash_tiny32", Layout("bh-qb-1x4", "tp4"), uncached, tag="uncached"))


def _wing(found: Registry, model: str, layout: Layout, **more: Any) -> None:
    shape = ModelShape(**{k: more.pop(k) for k in list(more) if k in ModelShape.__dataclass_fields__})
    found.add(make_case("wing", model, layout, shape, dtype="bf16", **more))
