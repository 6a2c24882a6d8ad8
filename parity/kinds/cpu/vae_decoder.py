"""An autoencoder's decoder, a picture or a video cut in space or by channels, judged by diffusers in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from parity.cases import Case
from parity.explain import pictures
from parity.explain.places import Evidence
from parity.kinds.base import Metrics, ModelKind, latent_inputs
from parity.measure import metrics as m
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC, Threshold
from refsim.runtime.launch import Result


class VAEDecoder(ModelKind):
    """Latents in, frames out."""

    thresholds: ClassVar = {
        "fp32": (
            *SAME_ARITHMETIC,
            REPLICAS,
            FINITE,
            Threshold(
                "seam_ratio",
                1.5,
                "rounding is alike all over a picture, so that a border is as good as its worst strip; one that is not "
                "exchanged, or whose padding is not zero, stands out a thousandfold",
                optional=True,
            ),
        ),
        "bf16": (*BF16, REPLICAS),
    }

    inputs = staticmethod(latent_inputs)

    def call(self, model: Any, tensors: dict[str, Any]) -> Tensor:
        return model.decode(**tensors, return_dict=False)[0]

    def compare(self, case: Case, out: Tensor, ref: Tensor) -> Metrics:
        return compare_frames(out, ref, case.shape.latent, cuts(case))

    def explain(self, case: Case, seed: int, result: Result, limits: Mapping[str, float]) -> Evidence:
        ref = self.reference(case, seed)
        sample = result.tensors["sample"]
        return pictures.find(sample, ref, case.shape.latent, case.layout, limits["rel_rmse"])


def cuts(case: Case) -> tuple[int, int]:
    """Return how many parts a decoder cuts a picture into by rows and by columns."""
    config = case.layout.config()
    return config.sp, config.tp if case.layout.vae_parallel == "spatial" else 1


def compare_frames(out: Tensor, ref: Tensor, latent: tuple[int, ...], factors: tuple[int, int]) -> Metrics:
    """Measure frames (B, C, [T,] H, W) and their seams, of a latent cut by ``factors`` by rows and by columns.

    Rows are judged as the tokens of the first cut, columns as those of the second; of each metric the worse counts.
    """
    metrics: Metrics = {}
    for dim, factor in zip((-2, -1), factors, strict=True):
        shards = m.cut(latent[dim], factor, ref.shape[dim] // latent[dim])
        # (B, [T,] lines, across, C) -> (B [T], lines, everything of a line)
        ours, theirs = (x.movedim(1, -1).movedim(dim - 1, -3).flatten(0, -4).flatten(-2) for x in (out, ref))
        seam = {"seam_ratio": m.seam_ratio(ours, theirs, shards)}
        for name, value in (m.compare(ours, theirs, shards) | seam).items():
            values = [v for v in (metrics.get(name), value) if v is not None]
            metrics[name] = m.worst(values) if values else None
    return metrics
