"""One forward of a denoising transformer, judged by diffusers in fp32 with the same folder and inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from parity import metrics as m
from parity.cases import Case
from parity.checkpoints import MODELS
from parity.inputs import rounded
from parity.kinds.base import DIGITS, Metrics, ModelKind, distinct_replicas, noise_of, token_shards
from parity.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC, Threshold
from refsim.runtime.launch import Result


class Transformer(ModelKind):
    """A whole transformer: latents in, latents out, guidance where it is asked for."""

    thresholds: ClassVar = {
        "fp32": (
            *SAME_ARITHMETIC,
            Threshold("guided_rel_rmse", 5e-6, "guidance is judged like the sample it is made of", optional=True),
            Threshold(
                "other_layout_rel_rmse",
                5e-6,
                "both must equal the same oracle, so they equal each other",
                optional=True,
            ),
            REPLICAS,
            FINITE,
        ),
        "bf16": (
            *BF16,
            Threshold(
                "guided_one_minus_pcc",
                5e-4,
                "guidance is judged like the sample it is made of",
                optional=True,
            ),
            REPLICAS,
        ),
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return transformer_inputs(case, seed)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        ref, sample = self.reference(case, seed), result.tensors["sample"]
        found = compare_samples(case, sample, ref, digits=DIGITS[case.dtype])
        found["distinct_replicas"] = distinct_replicas(case, result.value["digests"])
        if case.guidance is not None:
            guided, guided_ref = result.tensors["guided"], guided_sample(ref, case.guidance)
            found["guided_rel_rmse"] = m.rel_rmse(guided, guided_ref)
            found["guided_one_minus_pcc"] = m.one_minus_pcc(guided, guided_ref)
            found["non_finite"] += m.non_finite(guided)
        return found

    def measure_other_layout(self, case: Case, result: Result, other: Result) -> Metrics:
        names = ("sample",) if case.guidance is None else ("sample", "guided")
        return {"other_layout_rel_rmse": m.worst([m.rel_rmse(other.tensors[n], result.tensors[n]) for n in names])}

    def noise(self, case: Case, seed: int) -> dict[str, float]:
        return noise_of(self._noise(case, seed), self.reference(case, seed))

    def floor(self, case: Case, seed: int) -> Metrics:
        if not MODELS[case.model].float64_noise:
            return {}
        answer, ref = self._noise(case, seed), self.reference(case, seed)
        if case.dtype == "fp32":
            answer, ref = ref, answer  # the reference is the fp32 answer, the noise the float64 one
        return compare_samples(case, answer, ref, digits=DIGITS[case.dtype])

    def _noise(self, case: Case, seed: int) -> Tensor | None:
        """The sample computed in bf16; for fp32 in float64, whose distance is fp32's noise, or None (too slow)."""
        if case.dtype == "bf16":
            return self.reference(case, seed, torch.bfloat16)
        return self.reference(case, seed, torch.float64) if MODELS[case.model].float64_noise else None


def transformer_inputs(case: Case, seed: int) -> dict[str, Tensor]:
    """The case's inputs, holding only values of its storage dtype."""
    oracle = ModelKind.oracle(case)
    tensors = oracle.inputs(MODELS[case.model].config, case.shape, case.family, seed)
    return rounded(tensors, case.dtype, oracle.exact)


def compare_samples(case: Case, sample: Tensor, ref: Tensor, **more: Any) -> Metrics:
    """All metrics of a sample, token by token, with the shards that the case's layout cuts."""
    out_tokens, ref_tokens = (ModelKind.oracle(case).tokens(x) for x in (sample, ref))
    n = ref_tokens.shape[1]
    return m.compare(out_tokens, ref_tokens, token_shards(case.layout, n, n), **more)


def guided_sample(sample: Tensor, scale: float) -> Tensor:
    """``uncond + scale * (cond - uncond)`` in float64 of a sample whose first half is the negative one."""
    uncond, cond = sample.double().chunk(2)
    return uncond + scale * (cond - uncond)
