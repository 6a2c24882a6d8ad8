"""Encoders of prompts: T5 and UMT5 with padding, CLIP with its projection and without; on the CPU and in TTNN."""

from __future__ import annotations

from parity.cases import Layout, ModelShape, Registry
from parity.cases.checkpoints import published, register

_T5_PROMPTS = ModelShape((), 150, 2)
_CLIP_PROMPTS = ModelShape((), 77, 2)
"""Two prompts, one of them padded; neither 150 nor 77 tokens are whole tiles."""


_WIDE = {
    # Real widths: one layer; of CLIP two, as what its penultimate states show is the first. Words are few, since a
    # table of them is only looked up in.
    "t5_xxl_layer": published("t5-xxl", vocab_size=64, num_layers=1),
    "umt5_xxl_layer": published("umt5-xxl", vocab_size=64, num_layers=1),
    "clip_g_layers": published("clip-g", vocab_size=64, num_hidden_layers=2, eos_token_id=1, bos_token_id=0),
}


def add(cases: Registry) -> None:
    """Add the cases of the encoders; heads and features are cut over tp."""
    for name, model in _WIDE.items():
        register(name, model)
    for model in ("t5_tiny", "umt5_tiny"):
        for where in (("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("tg", "sp8_tp4"), ("galaxy", "sp8_tp4")):
            cases.make("text_encoder", model, Layout(*where), _T5_PROMPTS, suite="full")
    for model in ("clip_l_tiny", "clip_g_tiny"):
        for where in (("t3k", "sp2_tp4"), ("tg", "sp8_tp4")):
            cases.make("text_encoder", model, Layout(*where), _CLIP_PROMPTS, suite="full")
    _ttnn(cases)


_WIDE_CASES = (
    ("clip_g_layers", ("t3k", "sp2_tp4"), _CLIP_PROMPTS, "full"),
    ("clip_g_layers", ("bh-qb-1x4", "tp4"), _CLIP_PROMPTS, "smoke"),
    ("t5_xxl_layer", ("t3k", "sp2_tp4"), ModelShape((), 256, 1), "full"),  # as SD3.5 and Flux.1 ask for
    ("umt5_xxl_layer", ("bh-qb-1x4", "tp4"), ModelShape((), 512, 1), "full"),  # as Wan does
)
_SMOKE = (("t3k", "sp2_tp4"), ("n300", "tp2"), ("bh-qb-1x4", "tp4"))
_FULL = (("galaxy", "sp8_tp4"), ("bh-qb", "sp2_tp2"), ("t3k-1x8", "tp8"))


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN programs run, judged against refsim in bf16."""
    kind = {"kind": "ttnn_text_encoder", "dtype": "bf16"}
    for where in (*_SMOKE, *_FULL):
        suite = "smoke" if where in _SMOKE else "full"
        for model in ("t5_tiny64", "umt5_tiny64"):
            cases.make(model=model, layout=Layout(*where), shape=_T5_PROMPTS, suite=suite, **kind)
        for model in ("clip_l_tiny64", "clip_g_tiny64"):
            cases.make(model=model, layout=Layout(*where), shape=_CLIP_PROMPTS, suite=suite, **kind)
    for model, where, shape, suite in _WIDE_CASES:
        cases.make(model=model, layout=Layout(*where), shape=shape, suite=suite, needs_gb=4, **kind)
    shorter = ModelShape((), 50, 2)  # than the table of positions
    cases.make(model="clip_plain_tiny64", layout=Layout("n300", "tp2"), shape=shorter, **kind)
    cases.make(model="t5_tiny64", layout=Layout("t3k", "cfg2_sp2_tp2"), shape=_T5_PROMPTS, **kind)
