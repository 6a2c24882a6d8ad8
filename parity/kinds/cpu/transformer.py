"""One forward of a denoising transformer, judged by diffusers in fp32 with the same folder and inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import rounded
from parity.explain import layered, tokens
from parity.explain.places import Evidence, Place
from parity.kinds.base import DIGITS, Metrics, ModelKind, distinct_replicas, noise_of, token_shards
from parity.measure import layers, traces
from parity.measure import metrics as m
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC, Threshold
from refsim.base import scratch
from refsim.base.mesh import get_mesh
from refsim.models.registry import builtin, get
from refsim.runtime.launch import Result
from refsim.runtime.watch import observe

LARGE_LATENT = 2**11
"""Rows, columns and frames of a latent above which a forward of the oracle takes longer than the ranks: its own noise
is not computed then, and one forward judges both storage dtypes, see :meth:`Transformer.held`."""

_SCHEDULE = tuple(replace(bound, optional=True) for bound in traces.BOUNDS)
"""Of a run whose events are kept, see :func:`keeps_trace`."""
_SEEN = Threshold("unseen_layers", 0, "what no rank observes is never found wrong", optional=True)


@dataclass
class Answer(Result):
    """A result with what every rank's layers took and gave, None where that was not asked for, and the worst."""

    observed: list[list[observe.Observed]] | None = None
    worst_layers: dict[str, str] = field(default_factory=dict)


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
            _SEEN,
            *_SCHEDULE,
        ),
        "bf16": (
            *BF16,
            Threshold("guided_one_minus_pcc", 5e-4, "guidance is judged like the sample it is made of", optional=True),
            REPLICAS,
            _SEEN,
            *_SCHEDULE,
        ),
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return transformer_inputs(case, seed)

    @staticmethod
    def value_dtype(case: Case) -> str:
        """Return bf16 for large latents in fp32, too: fp32 has its values as well, and one answer is right for both."""
        return "bf16" if _is_large(case) else case.dtype

    def folder(self, case: Case, seed: int) -> Path:
        """Return the checkpoint of a case, stored in bf16 if it is large and holds such values, in half the file."""
        return self.store.folder(case.model, seed, in_bf16=self.value_dtype(case) == "bf16" and case.needs_gb > 0)

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Answer:
        more = {"trace": keeps_trace(case)} | more
        if not judges_layers(case) or layout != case.layout:
            return Answer(**vars(super().run(case, layout, seed, **more)))
        with scratch.Folder("layers") as folder:
            result = super().run(case, layout, seed, observe=folder, **more)
            return Answer(**vars(result), observed=observe.read(folder, len(result.values)))

    def watching(self, case: Case, arithmetic: torch.dtype, model: Any) -> AbstractContextManager[Any]:
        if not judges_layers(case) or (case.needs_gb and arithmetic != torch.float32):
            return nullcontext()
        oracle = self.oracle(case)
        return layers.watch(model, case.shape.batch, oracle.block_streams, oracle.heads_dim)

    def _layers(self, case: Case, seed: int) -> layers.Modules:
        """Return what the oracle's layers took and gave; run it again if its first case did not ask for them."""
        _, modules = self.watched(case, seed)
        key = "layers", case.shape, case.family, self.value_dtype(case)
        return modules or self.once(case, seed, key, lambda: self._answered(case, seed, torch.float32)[1])

    def extra(self, result: Answer) -> dict[str, Any]:
        return {"worst_layers": result.worst_layers} if result.worst_layers else {}

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        ref = self.reference(case, seed)
        sample = result.tensors["sample"]
        metrics = compare_samples(case, sample, ref, digits=DIGITS[case.dtype])
        metrics["distinct_replicas"] = distinct_replicas(case, result.value["digests"], result.tensors)
        if case.guidance is not None:
            guided = result.tensors["guided"]
            guided_ref = guided_sample(ref, case.guidance)
            metrics["guided_rel_rmse"] = m.rel_rmse(guided, guided_ref)
            metrics["guided_one_minus_pcc"] = m.one_minus_pcc(guided, guided_ref)
            metrics["non_finite"] += m.non_finite(guided)
        if isinstance(result, Answer) and result.observed is not None:
            modules = self._layers(case, seed)
            judged = layers.judge(result.observed, modules, case.layout.options(case.dtype), case.shape.text)
            result.worst_layers = judged.worst
            metrics |= judged.metrics
            if get(MODELS[case.model].class_name) in builtin():
                metrics["unseen_layers"] = len(layers.unseen(result.observed, modules))
        return metrics | (traces.check(result.trace, case.layout) if result.trace else {})

    def explain(self, case: Case, seed: int, result: Result, limits: Mapping[str, float]) -> Evidence:
        """Find the first wrong layer; the wrong part of the sample where layers are not judged or are all right."""
        ref = self.reference(case, seed)
        sample = result.tensors["sample"]
        out_tokens, ref_tokens = (self.oracle(case).tokens(x) for x in (sample, ref))
        shards = token_shards(case.layout, ref_tokens.shape[1], ref_tokens.shape[1])
        limit = limits.get("worst_token", limits["rel_rmse"])
        whole = tokens.find(out_tokens, ref_tokens, shards, case.layout, limit)
        bounds = {name: limit for name, limit in limits.items() if name in layers.METRICS}
        if not isinstance(result, Answer) or not result.worst_layers or not bounds:
            return whole
        modules = self._layers(case, seed)
        options = case.layout.options(case.dtype)
        asked = result.observed or [], modules, options, case.shape.text
        pieces = [*layers.findings(*asked, rows=True), *layers.spoiled_padding(*asked)]
        evidence = layered.find(pieces, bounds, get_mesh(case.mesh))
        evidence.features |= whole.features
        if evidence.place is None:
            evidence.place = whole.place
            evidence.by_rank = whole.by_rank
            evidence.error_map = whole.error_map
            evidence.place = evidence.place or _copies(case, result) or self._guided(case, result, ref, limits)
        return evidence

    @staticmethod
    def _guided(case: Case, result: Result, ref: Tensor, limits: Mapping[str, float]) -> Place | None:
        """Name the guided sample, where it is wrong while the samples that it is made of are right."""
        if case.guidance is None:
            return None
        error = m.rel_rmse(result.tensors["guided"], guided_sample(ref, case.guidance))
        mesh = get_mesh(case.mesh)
        wrong = not error <= limits.get("guided_rel_rmse", 0.0)
        return Place("guided", 0, tuple(range(mesh.num_devices)), mesh.coord(0)) if wrong else None

    def measure_other_layout(self, case: Case, result: Result, other: Result) -> Metrics:
        names = ("sample",) if case.guidance is None else ("sample", "guided")
        return {"other_layout_rel_rmse": m.worst([m.rel_rmse(other.tensors[n], result.tensors[n]) for n in names])}

    def noise(self, case: Case, seed: int) -> dict[str, float]:
        if _is_large(case):
            return {}
        return noise_of(self._noise(case, seed), self.reference(case, seed))

    def floor(self, case: Case, seed: int) -> Metrics:
        if not MODELS[case.model].float64_noise:
            return {}
        answer = self._noise(case, seed)
        ref = self.reference(case, seed)
        noisy, wide = (torch.bfloat16, torch.float32) if case.dtype == "bf16" else (torch.float32, torch.float64)
        if case.dtype == "fp32":
            answer, ref = ref, answer  # the reference is the fp32 answer, the noise the float64 one
        metrics = compare_samples(case, answer, ref, digits=DIGITS[case.dtype])
        return metrics | layers.floor(*(self.watched(case, seed, dtype)[1] for dtype in (noisy, wide)))

    def _noise(self, case: Case, seed: int) -> Tensor | None:
        """Return the sample computed in bf16; for fp32 in float64, whose distance is fp32's noise, or None (slow)."""
        if case.dtype == "bf16":
            return self.reference(case, seed, torch.bfloat16)
        return self.reference(case, seed, torch.float64) if MODELS[case.model].float64_noise else None


def judges_layers(case: Case) -> bool:
    """Whether every layer is judged: of real widths, where that takes as long as the ranks do, in ``smoke`` alone."""
    return not case.needs_gb or case.suite == "smoke"


def _is_large(case: Case) -> bool:
    return math.prod(case.shape.latent) > LARGE_LATENT


def _copies(case: Case, result: Result) -> Place | None:
    """Name the ranks whose copy of the answer is not that of most; None where all copies agree."""
    digests = result.value["digests"]
    most = max(set(digests), key=digests.count)
    other = tuple(rank for rank, digest in enumerate(digests) if digest != most)
    mesh = get_mesh(case.mesh)
    if other:
        return Place("sample", other[0], other, mesh.coord(other[0]), note="its copy differs from the others'")
    return None


def keeps_trace(case: Case) -> bool:
    """Whether the schedule is judged: where guidance branches have devices of their own, and not too many events."""
    return case.layout.config().cfg > 1 and get_mesh(case.mesh).num_devices <= 8 and not case.needs_gb


def transformer_inputs(case: Case, seed: int) -> dict[str, Tensor]:
    """Return the case's inputs, values of :meth:`Transformer.value_dtype`; of fp32 the time step comes as bf16, in
    which some pipelines hand it over: what follows is still computed in fp32.
    """
    oracle = ModelKind.oracle(case)
    dtype = Transformer.value_dtype(case)
    tensors = oracle.inputs(MODELS[case.model].config, case.shape, case.family, seed)
    if dtype == "fp32":
        tensors["timestep"] = tensors["timestep"].bfloat16()
    return rounded(tensors, dtype, oracle.exact)


def compare_samples(case: Case, sample: Tensor, ref: Tensor, **more: Any) -> Metrics:
    """Measure a sample token by token, with the shards that the case's layout cuts."""
    out_tokens, ref_tokens = (ModelKind.oracle(case).tokens(x) for x in (sample, ref))
    n = ref_tokens.shape[1]
    return m.compare(out_tokens, ref_tokens, token_shards(case.layout, n, n), **more)


def guided_sample(sample: Tensor, scale: float) -> Tensor:
    """Return ``uncond + scale * (cond - uncond)`` in float64 of a sample whose first half is the negative one."""
    uncond, cond = sample.double().chunk(2)
    return uncond + scale * (cond - uncond)
