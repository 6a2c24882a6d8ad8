"""One expert of Wan2.2: tiny through every scheme, 3 x 4 x 6 patches, at real widths with 480 tokens, and in TTNN."""

from __future__ import annotations

from parity.cases import BlockShape, Layout, Registry, make_case
from parity.checkpoints import RandomModel, register
from parity.layouts import RING8, ULYSSES8, USP24, add_transformer
from refsim.models.registry import get_published

_CLASS = get_published("wan22-t2v-a14b")[1].class_name
_A14B = {key: value for key, value in get_published("wan22-t2v-a14b")[1].config.items() if key != "_class_name"}
_NARROW = {"attention_head_dim": 64, "num_layers": 2, "ffn_dim": 224, "text_dim": 40, "freq_dim": 64}

_MODELS = {
    # Whole tiles per head and per device, as the published ones have: four heads of 64 features over four devices.
    "wan22_tiny64": RandomModel(_A14B | _NARROW | {"num_attention_heads": 4}, class_name=_CLASS),
    # Three heads: one is padded, and so are 64 of 256 features.
    "wan22_uneven64": RandomModel(_A14B | _NARROW | {"num_attention_heads": 3}, class_name=_CLASS),
    "wan22_tiny64_block": RandomModel(_A14B | _NARROW | {"num_attention_heads": 4}, class_name=_CLASS, block=1),
    # Real widths, one block.
    "wan22_a14b_block": RandomModel(_A14B | {"num_layers": 1}, class_name=_CLASS, block=0),
}


def add(found: Registry) -> None:
    """Add the cases of the transformer, on CPU ranks and in TTNN."""
    for name, model in _MODELS.items():
        register(name, model)
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
        add_transformer(found, "wan22_tiny", layout, **tiny)
    for parallel in ("cfg2_sp2_tp2", "cfg2_tp4"):
        layout, fusion = Layout("t3k", parallel), Layout("t3k", "sp2_tp4")
        add_transformer(found, "wan22_tiny", layout, guidance=4.0, other_layout=fusion, **tiny)
    for layout in (Layout("t3k", "sp2_tp4"), USP24):
        add_transformer(found, "wan22_tiny", layout, dtype="bf16", **tiny)
    real = {"latent": (2, 24, 40), "text": 512, "batch": 1, "suite": "full", "needs_gb": 14}
    add_transformer(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), **real)
    add_transformer(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), dtype="bf16", **real)
    _ttnn(found)


def _ttnn(found: Registry) -> None:
    """Where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16", "latent": (3, 8, 12), "text": 29}
    for layout in (Layout("t3k", "sp2_tp4"), Layout("bh-loudbox", "sp4_tp2")):
        add_transformer(found, "wan22_tiny64", layout, batch=1, **kind)
    for layout in (Layout("t3k", "sp2_tp4"),):
        found.add(make_case("ttnn_block", "wan22_tiny64_block", layout, BlockShape(75, 29), dtype="bf16"))
