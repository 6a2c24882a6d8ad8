"""What only some configurations of a model take: a smoke case for each, on two devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import AttentionShape, GenerationShape, Layout, ModelShape, Registry, make_case
from parity.cases.checkpoints import MODELS, register

_SP, _TP = Layout("n300", "sp2"), Layout("n300", "tp2")
_SQUARE, _USP = Layout("bh-qb", "sp2_tp2"), Layout("bh-qb", "sp4", "usp", 2, 2)
_PROMPTS = ModelShape((), 45, 2)


def add(found: Registry) -> None:
    """Add the cases."""
    _attention(found)
    _models(found)
    _generation(found)
    for layout in (_SQUARE, Layout("bh-qb-1x4", "tp4"), Layout("bh-qb-1x4", "sp4")):  # of four one has only padding
        for dtype in ("fp32", "bf16"):
            found.add(make_case("norms", "norms", layout, ModelShape((), 0, 1), dtype=dtype))
    for layout in (_SP, _TP, replace(_SP, attention="ulysses"), Layout("n300", "cfg2"), _SQUARE, _USP):
        found.add(make_case("placements", "placements", layout, ModelShape((), 0, 1)))
    for layout in (Layout("n150", "sp1"), _SP, Layout("t3k-1x8", "sp8"), Layout("t3k", "sp4_tp2")):
        for dtype in ("fp32", "bf16"):
            suite = "smoke" if dtype == "fp32" or layout is _SP else "full"
            found.add(make_case("collectives", "collectives", layout, ModelShape((), 0, 1), dtype=dtype, suite=suite))


def _attention(found: Registry) -> None:
    """A split prompt whose rows lie behind padding of the image."""
    split, shape = replace(_SP, prompt_layout="split"), AttentionShape(n=64, logical_n=40, text=60)
    found.add(make_case("attention", "attention", split, shape, tag="logical40of64_prompt60"))
    usp = replace(_USP, prompt_layout="split")
    shape = AttentionShape(n=128, logical_n=70, text=120)
    found.add(make_case("attention", "attention", usp, shape, tag="logical70of128_prompt120"))
    alone = replace(_SP, attention="ulysses", ring_order="gather")  # nobody to gather from
    found.add(make_case("attention", "attention", alone, AttentionShape(n=64, text=5)))


def _models(found: Registry) -> None:
    def add(kind: str, like: str, name: str, layout: Layout, shape: ModelShape, **changes: Any) -> None:
        base = MODELS[like]
        more = {key: changes.pop(key) for key in ("gains",) if key in changes}
        register(name, replace(base, config=base.config | changes, float64_noise=False, **more))
        found.add(make_case(kind, name, layout, shape))

    picture, prompt = ModelShape((16, 20), 29, 1), ModelShape((2, 4, 6), 520, 1)
    add("transformer", "sd35_tiny", "sd3_tiny_no_qk_norm", _SP, picture, qk_norm=None, out_channels=None)
    long = {"out_channels": None}  # as many as there are channels; and more than one block of 512 keys
    add("transformer", "wan22_tiny", "wan22_tiny_long_prompt", _SP, prompt, **long)
    frames = ModelShape((2, 3, 4), 0, 1)
    bright = {"gains": (("decoder.conv_out", 8.0),)}
    add("vae_decoder", "wan_vae_tiny", "wan_vae_tiny_clamped", _SP, frames, decoder_base_dim=12, **bright)
    one = ModelShape((1, 3, 4), 0, 1)
    found.add(make_case("vae_decoder", "cogvideox_vae_tiny", _SP, one, tag="one_frame"))
    image = ModelShape((7, 9), 0, 1)
    add("vae_decoder", "sd35_vae_tiny", "sd_vae_tiny_post_quant", _SP, image, use_post_quant_conv=True)
    near = {"relative_attention_max_distance": 20}  # nearer than the prompt is long: the last bucket holds the rest
    add("text_encoder", "t5_tiny", "t5_tiny_near", _TP, _PROMPTS, **near)
    add("text_encoder", "clip_l_tiny", "clip_tiny_legacy_end", _TP, _PROMPTS, eos_token_id=2)
    add("causal_lm", "qwen3_moe_tiny", "qwen3_moe_tiny_tied", _TP, _PROMPTS, tie_word_embeddings=True)
    add("causal_lm", "qwen3_moe_tiny", "qwen3_moe_tiny_plain_weights", _TP, _PROMPTS, norm_topk_prob=False)
    slow = {"rope_type": "default", "rope_theta": 500.0}  # as transformers writes it, with another base than its own
    add("causal_lm", "qwen3_moe_tiny", "qwen3_moe_tiny_other_base", _TP, _PROMPTS, rope_parameters=slow)
    four = Layout("bh-qb-1x4", "tp4")  # which cannot share out 14 features, but heads
    add("causal_lm", "qwen3_moe_tiny", "qwen3_moe_tiny_narrow", four, _PROMPTS, head_dim=14)
    found.add(make_case("causal_lm", "qwen3_moe_tiny", _TP, ModelShape((), 2, 2), tag="two_tokens"))


def _generation(found: Registry) -> None:
    """A text that ends at a stop token, a cache of 64 rows that grows, no drafter, and padding in the vocabulary."""
    stopped = GenerationShape(prompts=4, max_new_tokens=12, stop=(3, 17, 36))
    found.add(make_case("generation", "dflash_tiny", _TP, stopped, tag="stopped"))
    growing = GenerationShape(prompts=1, least=30, text=30, max_new_tokens=21)
    found.add(make_case("generation", "dflash_tiny", _TP, growing, tag="growing"))
    alone = GenerationShape(prompts=4, max_new_tokens=8, cache="alone", stop=(3,))
    found.add(make_case("generation", "dflash_tiny", _TP, alone, tag="alone"))
    found.add(make_case("generation", "dflash_six_tiny", _TP, GenerationShape(prompts=4)))
    kept = GenerationShape(prompts=3, max_new_tokens=8, cache="noise")
    found.add(make_case("generation", "dflash_tiny", _TP, kept, tag="noise_kept"))
    for name in ("dflash_one_tiny", "dflash_spread_tiny"):  # layers of the target that config.json leaves to a rule
        found.add(make_case("generation", name, _TP, GenerationShape(prompts=4, max_new_tokens=6)))
    found.add(make_case("refusals", "dflash_tiny", _TP, GenerationShape(prompts=1), tag="refusals"))
