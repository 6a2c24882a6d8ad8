"""Calls in TTNN judged by themselves, where no value tells them apart: what is refused, and what each was given.

A mesh that computes golden values gives the same answer whatever the fidelity, the blocks of a matmul or where a tensor
lies, and whether or not a mistake that this program does not make would have been noticed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import Metrics, TTNNKind
from parity.kinds.ttnn.call_arguments import Where, wrong
from parity.measure.thresholds import Threshold
from refsim.base.mesh import get_mesh
from refsim.models.inputs import BATCH
from refsim.models.registry import get_published
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome


class _Calls(TTNNKind):
    """Nothing goes in from refsim, and nothing is compared with it."""

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return {}

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return {}

    def reference(self, case: Case, seed: int, inputs: Path) -> Result:
        return Result([], {}, {}, [])


class RefusedCalls(_Calls):
    """Calls that a mesh cannot do are refused in a sentence, and those beside them that it can do are made."""

    program = "tt_impl.programs.refused_calls:program"
    thresholds: ClassVar = {
        "bf16": (
            Threshold("accepted", 0, "what cannot be right is refused in a sentence, before ttnn sees it"),
            Threshold("refused", 0, "what is right is not refused"),
        )
    }

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        report = outcome.report
        return {name: len(report[name]) for name in ("accepted", "refused")}, report


class SpareTensors(RefusedCalls):
    """A tensor of a checkpoint that a model neither takes nor leaves is refused; encoders of autoencoders, second names
    and what old folders hold are left."""

    program = "tt_impl.programs.spare_tensors:program"
    values = False

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return {"models": [(_config(name), _LEFT.get(name, [])) for name in _BUILT]}


_AUTOENCODERS = ("sd35_vae_tiny", "wan_vae_tiny", "cogvideox_vae_tiny")
_BUILT = (
    "sd35_tiny64",
    "flux1_tiny64",
    "flux2_tiny64",
    "qwenimage_tiny64",
    "mochi_tiny64",
    "wan21_i2v_tiny64",
    "cogvideox_5b_tiny64",
    "t5_tiny64",
    "clip_g_tiny64",
)
_BUILT += ("qwen3_moe_tiny32", "dflash_tiny32", *_AUTOENCODERS)
_LEFT = {
    **{name: ["encoder.conv_in.weight", "quant_conv.weight"] for name in _AUTOENCODERS},
    "t5_tiny64": ["encoder.embed_tokens.weight", "shared.weight"],
    "clip_g_tiny64": ["text_model.embeddings.position_ids"],
    "wan21_i2v_tiny64": ["blocks.0.attn2.norm_added_q.weight", "blocks.1.attn2.norm_added_q.weight"],
}


def _config(name: str) -> dict[str, Any]:
    """Return config.json of a random model, whole."""
    class_name = {"dflash_tiny32": "DFlashDraftModel"}.get(name, MODELS[name].class_name)
    whole = MODELS["wan_vae"].config if name == "wan_vae_tiny" else {}  # spread and mean of every channel
    return whole | MODELS[name].config | {"_class_name": class_name}


class GivenCalls(_Calls):
    """Every call of a model's forward is given what documents ask for.

    A case's model is ``given_`` and the name of a published one, or of an image's tiny decoder in ``MODELS``.
    """

    program = "tt_impl.programs.recorded_calls:program"
    values = False
    thresholds: ClassVar = {
        "bf16": (
            Threshold("wrong", 0, "every call is given what its document asks for, or the best of what it may be"),
            Threshold("idle_semaphores", 0, "every global semaphore that takes L1 of all cores is given to a call"),
        )
    }

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        from tt_impl.reports import memory

        name = case.model.removeprefix("given_")
        shape = case.shape
        if name.endswith("_tiny"):
            config = MODELS[name].config | {"_class_name": MODELS[name].class_name}
            return {"model": config, "shapes": {"z": [shape.batch, config["latent_channels"], *shape.latent]}}
        spec, model = get_published(name.replace("_", "-"))
        if spec.kind == "text_encoder":
            sizes = {BATCH: shape.batch, "tokens": shape.text}
            shapes = {name: tuple(sizes[dim] for dim in dims) for name, dims in spec.inputs(model.config).items()}
        else:
            shapes = memory.input_shapes(model, shape.latent, case.layout.options("bf16"), shape.batch)
        arguments: dict[str, Any] = {
            "model": model.name,
            "shapes": {name: list(sizes) for name, sizes in shapes.items()},
        }
        if name == "wan22_ti2v_5b":  # in an image to video, the first frame's tokens have a time step of their own
            tokens = math.prod(n // p for n, p in zip(shape.latent, model.config["patch_size"], strict=True))
            arguments["again"] = {"timestep": [shape.batch, tokens]}
        return arguments

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        report = outcome.report
        sentences = _wrong(case, outcome.report)
        sentences += [f"a global semaphore begins with {n}, not with 0" for n in report["begins"] if n]
        metrics = {"wrong": len(sentences), "idle_semaphores": report["idle"], "calls": len(report["calls"])}
        return metrics, {"wrong": sentences}


class ChosenSizes(_Calls):
    """What is chosen for calls of sizes that no model here has: on either side of where a choice changes."""

    program = "tt_impl.programs.chosen_sizes:program"
    values = False
    thresholds: ClassVar = {
        "bf16": (
            Threshold("wrong", 0, "of all that fits and divides, no choice leaves fewer cores idle or waits less"),
        )
    }

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        sentences = _wrong(case, outcome.report)
        return {"wrong": len(sentences), "calls": len(outcome.report["calls"])}, {"wrong": sentences}


def _wrong(case: Case, report: dict[str, Any]) -> list[str]:
    """Return a sentence about everything that a report's calls should have been given and were not."""
    config = case.layout.config()
    where = Where(get_mesh(case.mesh), tuple(report["grid"]), tuple(report["shape"]), config.sp, config.tp)
    return [sentence for call in report["calls"] for sentence in wrong(call, where)]
