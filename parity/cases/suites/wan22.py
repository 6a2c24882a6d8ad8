"""One expert of Wan2.2: tiny through every scheme, 3 x 4 x 6 patches, at real widths with 480 tokens, and in TTNN."""

from __future__ import annotations

from parity.cases import BlockShape, Layout, Registry
from parity.cases.checkpoints import MODELS, quiet, register
from parity.cases.layouts import USP24, add_transformer, layouts


def add(cases: Registry) -> None:
    """Add the cases of the transformer, on CPU ranks and in TTNN."""
    tiny = {"latent": (3, 8, 12), "text": 29, "suite": "full"}
    for layout in layouts(
        "t3k-sp2_tp4 t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k-sp8-usp_r2u4 t3k_1x8-tp8 tg-sp8_tp4 tg-sp4_tp8 galaxy-sp8_tp4"
    ):
        add_transformer(cases, "wan22_tiny", layout, **tiny)
    for parallel in ("cfg2_sp2_tp2", "cfg2_tp4"):
        layout = Layout("t3k", parallel)
        fusion = Layout("t3k", "sp2_tp4")
        add_transformer(cases, "wan22_tiny", layout, guidance=4.0, other_layout=fusion, **tiny)
    for layout in (Layout("t3k", "sp2_tp4"), USP24):
        add_transformer(cases, "wan22_tiny", layout, dtype="bf16", **tiny)
    _image_to_video(cases)
    real = {"latent": (2, 24, 40), "text": 512, "batch": 1, "suite": "full", "needs_gb": 14}
    add_transformer(cases, "wan22_a14b", Layout("t3k", "sp2_tp4"), **real)
    add_transformer(cases, "wan22_a14b", Layout("t3k", "sp2_tp4"), dtype="bf16", **real)
    _ttnn(cases)


def _image_to_video(cases: Registry) -> None:
    """Add A14B (36 channels), 2.1 (an image beside a prompt of 512 rows), TI2V-5B (time steps of tokens)."""
    square = Layout("bh-qb", "sp2_tp2")
    oblong = Layout("t3k", "sp2_tp4")
    shapes = {"wan22_i2v_tiny": {"text": 29}, "wan21_i2v_tiny": {"text": 512}, "wan22_ti2v_tiny": {"text": 29}}
    for model, more in shapes.items():
        shape = {"latent": (3, 8, 12), **more}
        add_transformer(cases, model, oblong, **shape)  # sp and tp that differ
        for layout in (square, Layout("t3k", "sp4_tp2", "ulysses")):
            suite = "smoke" if model == "wan21_i2v_tiny" and layout is square else "full"
            add_transformer(cases, model, layout, dtype="bf16", suite=suite, **shape)
        add_transformer(cases, model, Layout("galaxy", "sp8_tp4"), suite="full", **shape)


_EVERYWHERE = layouts(  # 72 tokens over sp8 are two full shards, one of 8, five of padding; four heads on 8 devices
    "n300-tp2 n300-sp2 t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k-sp8-usp_r2u4 t3k_1x8-tp8 tg-sp8_tp4 galaxy-sp8_tp4 "
    "bh_loudbox-sp2_tp4 bh_galaxy-sp8_tp4"
)


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16", "latent": (3, 8, 12), "text": 29}
    t3k = Layout("t3k", "sp2_tp4")
    for layout in (t3k, Layout("bh-loudbox", "sp4_tp2")):
        add_transformer(cases, "wan22_tiny64", layout, batch=1, **kind)
    for layout in _EVERYWHERE:
        add_transformer(cases, "wan22_tiny64", layout, batch=1, suite="full", **kind)
    for layout in (t3k, Layout("t3k", "cfg2_sp2_tp2")):
        add_transformer(cases, "wan22_tiny64", layout, guidance=4.0, suite="full", tag="guided", **kind)
    for layout in layouts("t3k-sp2_tp4 t3k_1x8-tp8 bh_qb-sp2_tp2"):
        add_transformer(cases, "wan22_uneven64", layout, suite="full", **kind)
    faint = "wan21_i2v_tiny64_faint"  # its norm of the image sees a variance as small as its epsilon
    register(faint, MODELS["wan21_i2v_tiny64"].but(gains=quiet("image_embedder.ff.net.2")))
    for model, text in ((faint, 512), ("wan22_ti2v_tiny64", 29)):  # sp and tp that differ
        add_transformer(cases, model, t3k, batch=1, **kind | {"text": text})
    for model in ("wan22_tiny64_block", "wan22_uneven64_block"):  # 192 features are 256 lanes over four devices
        cases.make("ttnn_block", model, t3k, BlockShape(75, 45), dtype="bf16")
    for layout in (t3k, Layout("galaxy", "sp8_tp4")):
        cases.make("ttnn_block", "wan22_a14b_block", layout, BlockShape(), dtype="bf16", needs_gb=6, suite="full")
