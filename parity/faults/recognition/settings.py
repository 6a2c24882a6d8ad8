"""On what every fault of the corpus is run: its own case and others for its signatures, one more to judge them by.

Those that judge share neither mesh, nor model or shape, nor seed with those that the signatures are made from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from parity.cases import AttentionShape, Case, GenerationShape, Layout, ModelShape, make_case
from parity.cases.checkpoints import MODELS, RandomModel, register
from parity.cases.suites import registry
from parity.faults import ref_attention, ref_decoder, ref_decoding, ref_flux2, ref_mochi, ref_qwenimage
from parity.faults import ref_cases as ref
from parity.faults.registry import Fault

SEEDS = (7, 23)
"""Of the runs that signatures are made from: both of a fault's own case, the first of its other cases."""
JUDGED_SEED = 1009


@dataclass(frozen=True)
class Settings:
    """Where a fault is run: cases that its signatures are made from, and the case that judges them."""

    made: tuple[Case, ...]
    judged: Case


def _attention(case: Case, mesh: str, parallel: str, *, text: int = 27, rows: int = 107) -> Case:
    """Make a case of another shape on another mesh, with all other choices of a fault's own case."""
    shape = AttentionShape(heads=14, n=128, text=text, logical_n=rows, head_dim=32)
    layout = replace(case.layout, mesh=mesh, parallel=parallel)
    return make_case("attention", "attention", layout, shape, family="outlier_text", tag="explain")


def _model(model: str, mesh: str, parallel: str, latent: tuple[int, ...], batch: int = 1) -> Case:
    guidance = 3.5 if batch > 1 else None
    layout = Layout(mesh, parallel)
    shape = ModelShape(latent, 23, batch)
    return make_case("transformer", model, layout, shape, guidance=guidance, tag="explain")


def _split(case: Case) -> Case:
    return replace(case, layout=replace(case.layout, prompt_layout="split"))


def _decoder(model: str, *latent: int, **options: Any) -> Case:
    layout = Layout("bh-loudbox", "sp2_tp4", **options)
    return make_case("vae_decoder", model, layout, ModelShape(latent, 0, 1), tag="explain")


def _texts(model: str) -> Case:
    return make_case("generation", model, Layout("bh-p300", "tp2"), GenerationShape(prompts=5), tag="explain")


def _register() -> None:
    """Register models that no signature is made from: the tiny ones with other widths, depths and heads."""
    changed = {"num_attention_heads": 5, "num_layers": 5, "caption_projection_dim": 80, "dual_attention_layers": [0, 2]}
    register("sd35_explain", MODELS["sd35_tiny"].but(**changed, float64_noise=False))
    register("sd35_vae_explain", MODELS["sd35_vae_tiny"].but(block_out_channels=(24, 32, 48)))
    register("cogvideox_vae_explain", MODELS["cogvideox_vae_tiny"].but(block_out_channels=(16,) * 4))
    registry()  # the suites register the models of theirs
    register("flux2_explain", MODELS["flux2_tiny"].but(num_attention_heads=5, num_layers=3, num_single_layers=3))
    register("qwenimage_explain", MODELS["qwenimage_edit_tiny"].but(num_attention_heads=5, num_layers=4))
    register("mochi_explain", MODELS["mochi_tiny"].but(num_attention_heads=5, num_layers=4, pooled_projection_dim=56))
    register("mochi_vae_explain", MODELS["mochi_vae_tiny"].but(decoder_block_out_channels=(64, 96, 32)))
    register("dflash_explain", _drafter("dflash_tiny", "qwen3_moe_explain"))
    register("dflash_six_explain", _drafter("dflash_six_tiny", "qwen3_moe_six_explain"))


def _drafter(name: str, target: str) -> RandomModel:
    drafter = MODELS[name]
    register(target, MODELS[drafter.target or ""].but(hidden_size=64, num_experts=5))
    return drafter.but(hidden_size=64, intermediate_size=88, target=target)


def settings() -> dict[Case, Settings]:
    """Return them by the case that a fault of ``refsim`` belongs to."""
    _register()
    loud = ("bh-loudbox", "sp4@1_tp2@0")
    judged = {
        ref.RING: _attention(ref.RING, *loud),
        ref.LINE: _attention(ref.LINE, "quietbox", "sp4_tp2"),
        ref.GATHERED: _attention(ref.GATHERED, *loud),
        ref.ULYSSES: _attention(ref.ULYSSES, *loud),
        ref.USP: _attention(ref.USP, *loud, rows=75),
        ref.SPLIT: _attention(ref.SPLIT, *loud, text=21),
        ref.SERIAL: _model("sd35_explain", "bh-p150", "sp1", (10, 18)),
        ref.TP2: _model("sd35_explain", "t3k", "sp2_tp4", (10, 18)),
        ref.SP2: _model("sd35_explain", "bh-qb-1x4", "sp4", (16, 24)),
        ref.SP2_TP2: _model("sd35_explain", "t3k", "cfg2_sp2_tp2", (10, 18), 2),
        ref.CFG2: _model("sd35_explain", "t3k", "cfg2_sp2_tp2", (10, 18), 2),
        ref_decoder.IMAGE: _decoder("sd35_vae_explain", 12, 14),
        ref_decoder.VIDEO: _decoder("cogvideox_vae_explain", 4, 12, 14),
        ref_decoder.CHANNELS: _decoder("sd35_vae_explain", 12, 14, vae_parallel="tensor"),
        ref_flux2.SERIAL: _model("flux2_explain", "bh-p150", "sp1", (10, 18)),
        ref_flux2.TP2: _model("flux2_explain", "t3k", "sp2_tp4", (10, 18)),
        ref_flux2.SP2: _model("flux2_explain", "bh-qb-1x4", "sp4", (10, 18)),
        ref_qwenimage.SERIAL: _model("qwenimage_explain", "bh-p150", "sp1", (10, 18)),
        ref_qwenimage.SP2: _model("qwenimage_explain", "bh-qb-1x4", "sp4", (10, 18)),
        ref_qwenimage.SPLIT: _split(_model("qwenimage_explain", "bh-qb-1x4", "sp4", (10, 18))),
        ref_qwenimage.SAMPLES: _model("qwenimage_explain", "bh-p150", "sp1", (10, 18), 2),
        ref_mochi.MOCHI: _model("mochi_explain", "t3k", "sp2_tp4", (2, 8, 10), 2),
        ref_mochi.FRAMES: _decoder("mochi_vae_explain", 3, 6, 10),
        ref_decoding.TP2: _texts("dflash_explain"),
        ref_decoding.SIX: _texts("dflash_six_explain"),
    }
    beside = {
        ref.RING: _model("sd35_tiny", "bh-qb-1x4", "sp4", (12, 20)),
        ref.SERIAL: _model("sd35_tiny", "n300", "sp2", (14, 16)),
        ref.TP2: _model("sd35_tiny", "bh-qb", "sp2_tp2", (14, 16)),
    }
    return {case: Settings((case, beside[case]) if case in beside else (case,), by) for case, by in judged.items()}


def of_fault(fault: Fault, known: dict[Case, Settings]) -> Settings:
    """Return the settings of a fault; those that concern only attention run in a transformer as well."""
    of_case = known[fault.case]
    if fault.case == ref.RING and fault.inject.__module__ != ref_attention.__name__:
        return replace(of_case, made=of_case.made[:1])
    return of_case
