"""On what every fault of the corpus is run: its own case and others for its signatures, one more to judge them by.

Those that judge share neither mesh, nor model or shape, nor seed with those that the signatures are made from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parity.cases import AttentionShape, Case, GenerationShape, Layout, ModelShape, make_case
from parity.cases.checkpoints import MODELS, RandomModel, register
from parity.faults import ref_attention, ref_cases, ref_decoder, ref_decoding
from parity.faults.registry import Fault

SEEDS = (7, 23)
"""Of the runs that signatures are made from: both of a fault's own case, the first of its other cases."""
JUDGED_SEED = 1009


@dataclass(frozen=True)
class Settings:
    """Where a fault is run: cases that its signatures are made from, and the case that judges them."""

    made: tuple[Case, ...]
    judged: Case


def _attention(layout: Layout, heads: int, n: int, text: int, rows: int, head_dim: int = 32) -> Case:
    shape = AttentionShape(heads=heads, n=n, text=text, logical_n=rows, head_dim=head_dim)
    return make_case("attention", "attention", layout, shape, family="outlier_text", tag="explain")


def _with(layout: Layout, mesh: str, parallel: str) -> Layout:
    return replace(layout, mesh=mesh, parallel=parallel)


def _model(
    model: str, mesh: str, parallel: str, latent: tuple[int, int], batch: int = 1, kind: str = "transformer"
) -> Case:
    text = 23 if kind == "transformer" else 0
    shape, guidance = ModelShape(latent, text, batch), 3.5 if batch > 1 and text else None
    return make_case(kind, model, Layout(mesh, parallel), shape, guidance=guidance, tag="explain")


def _register() -> None:
    """Models that no signature is made from: the tiny ones with other widths, depths and heads."""
    tiny = MODELS["sd35_tiny"]
    dual = [0, 2]
    changed = {"num_attention_heads": 5, "num_layers": 5, "caption_projection_dim": 80, "dual_attention_layers": dual}
    register("sd35_explain", replace(tiny, config=tiny.config | changed, float64_noise=False))
    vae = MODELS["sd35_vae_tiny"]
    register("sd35_vae_explain", replace(vae, config=vae.config | {"block_out_channels": (24, 32, 48)}))
    video = MODELS["cogvideox_vae_tiny"]
    register("cogvideox_vae_explain", replace(video, config=video.config | {"block_out_channels": (16,) * 4}))
    register("dflash_explain", _drafter("dflash_tiny", "qwen3_moe_explain"))
    register("dflash_six_explain", _drafter("dflash_six_tiny", "qwen3_moe_six_explain"))


def _drafter(name: str, target: str) -> RandomModel:
    drafter = MODELS[name]
    known = MODELS[drafter.target or ""]
    register(target, replace(known, config=known.config | {"hidden_size": 64, "num_experts": 5}))
    return replace(drafter, config=drafter.config | {"hidden_size": 64, "intermediate_size": 88}, target=target)


def settings() -> dict[Case, Settings]:
    """By the case that a fault of ``refsim`` belongs to."""
    _register()
    t, d, g = ref_cases, ref_decoder, ref_decoding
    ring, line, split = t.RING.layout, t.LINE.layout, t.SPLIT.layout
    loud, model = ("bh-loudbox", "sp4@1_tp2@0"), _model
    in_model = model("sd35_tiny", "bh-qb-1x4", "sp4", (12, 20))
    found = {
        t.RING: ((t.RING, in_model), _attention(_with(ring, *loud), 14, 128, 27, 107)),
        t.LINE: ((t.LINE,), _attention(_with(line, "quietbox", "sp4_tp2"), 14, 128, 27, 107)),
        t.GATHERED: ((t.GATHERED,), _attention(_with(t.GATHERED.layout, *loud), 14, 128, 27, 107)),
        t.ULYSSES: ((t.ULYSSES,), _attention(_with(t.ULYSSES.layout, *loud), 14, 128, 27, 107)),
        t.USP: ((t.USP,), _attention(_with(t.USP.layout, *loud), 14, 128, 27, 75)),
        t.SPLIT: ((t.SPLIT,), _attention(_with(split, *loud), 14, 128, 21, 107)),
        t.SERIAL: (
            (t.SERIAL, model("sd35_tiny", "n300", "sp2", (14, 16))),
            model("sd35_explain", "bh-p150", "sp1", (10, 18)),
        ),
        t.TP2: (
            (t.TP2, model("sd35_tiny", "bh-qb", "sp2_tp2", (14, 16))),
            model("sd35_explain", "t3k", "sp2_tp4", (10, 18)),
        ),
        t.SP2: ((t.SP2,), model("sd35_explain", "bh-qb-1x4", "sp4", (16, 24))),
        t.SP2_TP2: ((t.SP2_TP2,), model("sd35_explain", "t3k", "cfg2_sp2_tp2", (10, 18), 2)),
        t.CFG2: ((t.CFG2,), model("sd35_explain", "t3k", "cfg2_sp2_tp2", (10, 18), 2)),
        d.IMAGE: ((d.IMAGE,), model("sd35_vae_explain", "bh-loudbox", "sp2_tp4", (12, 14), 1, "vae_decoder")),
        d.VIDEO: ((d.VIDEO,), model("cogvideox_vae_explain", "bh-loudbox", "sp2_tp4", (4, 12, 14), 1, "vae_decoder")),
        d.CHANNELS: ((d.CHANNELS,), _channels("sd35_vae_explain", "bh-loudbox", (12, 14))),
        g.TP2: ((g.TP2,), _texts("dflash_explain")),
        g.SIX: ((g.SIX,), _texts("dflash_six_explain")),
    }
    return {case: Settings(*pair) for case, pair in found.items()}


def _channels(model: str, mesh: str, latent: tuple[int, int]) -> Case:
    layout = Layout(mesh, "sp2_tp4", vae_parallel="tensor")
    return make_case("vae_decoder", model, layout, ModelShape(latent, 0, 1), tag="explain")


def _texts(model: str) -> Case:
    return make_case("generation", model, Layout("bh-p300", "tp2"), GenerationShape(prompts=5), tag="explain")


def of_fault(fault: Fault, known: dict[Case, Settings]) -> Settings:
    """The settings of a fault; those that concern only attention run in a transformer as well."""
    found = known[fault.case]
    if fault.case == ref_cases.RING and fault.inject.__module__ != ref_attention.__name__:
        return replace(found, made=found.made[:1])
    return found
