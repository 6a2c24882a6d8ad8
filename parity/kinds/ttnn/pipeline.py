"""A whole pipeline in TTNN, prompt to pictures, against refsim's ranks on the same mesh in the same dtype.

refsim's pipelines are judged by diffusers (kind ``pipeline``). Both get the same tokens and the same noise of the host;
everything after that is computed twice.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.pipelines import PIPELINES
from parity.kinds.base import Metrics, TTNNKind
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, Threshold
from refsim.api.images import Generated, generate_images, to_pixels
from refsim.pipelines.pipeline import find_pipeline

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome


class TTNNPipeline(TTNNKind):
    """A tiny pipeline of ``parity.cases.pipelines``, each run once by refsim."""

    program = "tt_impl.pipelines.denoise:program"
    thresholds: ClassVar = {
        "bf16": (
            Threshold(
                "one_minus_pcc",
                5e-4,
                "PCC 0.9995 of the latents after the worst step, between two bf16 programs; each step starts from the "
                "last one's error",
            ),
            Threshold(
                "change_one_minus_pcc",
                5e-4,
                "the same of what the steps have changed since the noise, which a first step would hide",
            ),
            Threshold(
                "change_rel_rmse",
                4.5e-2,
                "the error that PCC 0.999 stands for, sqrt(2 * 1e-3), so that the length of a step counts; refsim's "
                "Euler rounds latents to bf16, and the first step is short",
            ),
            Threshold(
                "picture_error",
                4.5e-2,
                "8-bit values behind a decoder in bf16: what PCC 0.999 stands for, sqrt(2 * 1e-3); refsim's own in "
                "bf16 are 2e-4 (Wan, Flux) to 1e-3 (CogVideoX) of 1 - PCC from those in fp32, and here two bf16 "
                "programs differ",
            ),
            Threshold("wrong_experts", 0, "every step is run by the expert that refsim takes for it"),
            Threshold("flat_picture", 0, "a grey picture would equal any other grey picture"),
            FINITE,
        )
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        folder = self.store.folder(case.model, seed)
        return find_pipeline(folder).prepare(folder, PIPELINES[case.model].request)

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return {"folder": str(self.store.folder(case.model, seed)), "request": asdict(PIPELINES[case.model].request)}

    def reference(self, case: Case, seed: int, inputs: Path) -> Generated:
        options = case.layout.options(case.dtype)
        return generate_images(self.store.folder(case.model, seed), PIPELINES[case.model].request, options=options)

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Generated) -> tuple[Metrics, dict[str, Any]]:
        """Return the worst step's error, the picture's, and by step what there is to read of them."""
        steps = outcome.tensors["steps"].float()
        pixels = to_pixels(outcome.tensors["frames"])
        noise = self.inputs(case, seed)["latents"]
        pairs = list(zip(steps, reference.steps.float(), strict=True))
        by_step = [m.one_minus_pcc(a, b) for a, b in pairs]
        changes = [m.one_minus_pcc(a - noise, b - noise) for a, b in pairs]
        lengths = [m.rel_rmse(a - noise, b - noise) for a, b in pairs]
        ours = outcome.report["experts"]
        theirs = reference.notes["experts"]
        metrics = {
            "one_minus_pcc": m.worst(by_step),
            "change_one_minus_pcc": m.worst(changes),
            "change_rel_rmse": m.worst(lengths),
            "picture_error": m.picture_error(pixels, reference.pixels),
            "max_pixel_difference": int((pixels.int() - reference.pixels.int()).abs().max()),
            "wrong_experts": sum(a != b for a, b in zip(ours, theirs, strict=True)),
            "flat_picture": int(m.is_flat(reference.pixels)),
            "non_finite": m.non_finite(steps),
        }
        notes = ("experts", "seconds", "dram_left", "dram_of_experts")
        return metrics, {
            "steps": by_step,
            "changes": changes,
            "lengths": lengths,
            "collectives": outcome.collectives,
            **{name: outcome.report[name] for name in notes},
        }
