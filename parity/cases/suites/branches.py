"""What only some configurations of a model take: a smoke case for each, on two devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import AttentionShape, GenerationShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, register

_SP = Layout("n300", "sp2")
_TP = Layout("n300", "tp2")
_SQUARE = Layout("bh-qb", "sp2_tp2")
_USP = Layout("bh-qb", "sp4", "usp", 2, 2)
_NOTHING = ModelShape((), 0, 1)
_PROMPTS = ModelShape((), 45, 2)


def add(cases: Registry) -> None:
    """Add the cases."""
    _attention(cases)
    _models(cases)
    _generation(cases)
    for layout in (_SQUARE, Layout("bh-qb-1x4", "tp4"), Layout("bh-qb-1x4", "sp4")):  # of four one has only padding
        for dtype in ("fp32", "bf16"):
            cases.make("norms", "norms", layout, _NOTHING, dtype=dtype)
    for layout in (_SP, _TP, replace(_SP, attention="ulysses"), Layout("n300", "cfg2"), _SQUARE, _USP):
        cases.make("placements", "placements", layout, _NOTHING)
    for layout in (Layout("n150", "sp1"), _SP, Layout("t3k-1x8", "sp8"), Layout("t3k", "sp4_tp2")):
        for dtype in ("fp32", "bf16"):
            suite = "smoke" if dtype == "fp32" or layout is _SP else "full"
            cases.make("collectives", "collectives", layout, _NOTHING, dtype=dtype, suite=suite)


def _attention(cases: Registry) -> None:
    """Add a split prompt whose rows lie behind padding of the image."""
    for layout, n, rows, text in ((_SP, 64, 40, 60), (_USP, 128, 70, 120)):
        shape = AttentionShape(n=n, logical_n=rows, text=text)
        tag = f"logical{rows}of{n}_prompt{text}"
        cases.make("attention", "attention", replace(layout, prompt_layout="split"), shape, tag=tag)
    alone = replace(_SP, attention="ulysses", ring_order="gather")  # nobody to gather from
    cases.make("attention", "attention", alone, AttentionShape(n=64, text=5))


def _models(cases: Registry) -> None:
    def add(kind: str, like: str, name: str, layout: Layout, shape: ModelShape, **changes: Any) -> None:
        register(name, MODELS[like].but(**changes, float64_noise=False))
        cases.make(kind, name, layout, shape)

    picture = ModelShape((16, 20), 29, 1)
    prompt = ModelShape((2, 4, 6), 520, 1)  # more than one block of 512 keys
    frames = ModelShape((2, 3, 4), 0, 1)
    image = ModelShape((7, 9), 0, 1)
    # Channels out: as many as there are in.
    add("transformer", "sd35_tiny", "sd3_tiny_no_qk_norm", _SP, picture, qk_norm=None, out_channels=None)
    add("transformer", "wan22_tiny", "wan22_tiny_long_prompt", _SP, prompt, out_channels=None)
    bright = {"gains": (("decoder.conv_out", 8.0),)}
    add("vae_decoder", "wan_vae_tiny", "wan_vae_tiny_clamped", _SP, frames, decoder_base_dim=12, **bright)
    cases.make("vae_decoder", "cogvideox_vae_tiny", _SP, ModelShape((1, 3, 4), 0, 1), tag="one_frame")
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
    cases.make("causal_lm", "qwen3_moe_tiny", _TP, ModelShape((), 2, 2), tag="two_tokens")


def _generation(cases: Registry) -> None:
    """Add a text that ends at a stop token, a cache of 64 rows that grows, no drafter, padding in the vocabulary."""
    for tag, shape in {
        "stopped": GenerationShape(prompts=4, max_new_tokens=12, stop=(3, 17, 36)),
        "growing": GenerationShape(prompts=1, least=30, text=30, max_new_tokens=21),
        "alone": GenerationShape(prompts=4, max_new_tokens=8, cache="alone", stop=(3,)),
    }.items():
        cases.make("generation", "dflash_tiny", _TP, shape, tag=tag)
    cases.make("generation", "dflash_six_tiny", _TP, GenerationShape(prompts=4))
    noise = GenerationShape(prompts=3, max_new_tokens=8, cache="noise")
    cases.make("generation", "dflash_tiny", _TP, noise, tag="noise_kept")
    for name in ("dflash_one_tiny", "dflash_spread_tiny"):  # layers of the target that config.json leaves to a rule
        cases.make("generation", name, _TP, GenerationShape(prompts=4, max_new_tokens=6))
    cases.make("refusals", "dflash_tiny", _TP, GenerationShape(prompts=1), tag="refusals")
