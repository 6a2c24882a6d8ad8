"""Attention alone, without a model: full tensors in, judged by the formula on float64."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import AttentionShape, Case, Layout
from parity.cases.inputs import attention_inputs, rounded
from parity.cases.oracles import formulas
from parity.explain import attention as finder
from parity.explain.places import Evidence
from parity.kinds.base import DIGITS, CpuKind, Metrics, noise_of, token_shards
from parity.measure import metrics as m
from parity.measure import traces
from parity.measure.thresholds import BF16, FINITE, Threshold, pcc
from refsim.api.attention import attention_result
from refsim.runtime.launch import Result

_LSE = {
    "fp32": Threshold(
        "lse_rel_max",
        1e-6,
        "fp32 log-sum-exp, rounded by half an ulp (6e-8 of its size) on each of some 16 merges; one key too "
        "many among 4096 moves it by 3e-5",
    ),
    "bf16": Threshold(
        "lse_rel_max",
        1e-5,
        "storage is bf16 but scores and log-sum-exp are fp32: 64 products per score round by at most 64 * 6e-8 "
        "of their size; a log-sum-exp kept in bf16 would be off by 2e-3",
    ),
}
_DTYPES = Threshold("wrong_dtypes", 0, "answers are held in the storage dtype, a log-sum-exp in fp32")
_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16}
OVER_NOISE = Threshold(
    "over_noise",
    4,
    "the same kernel on blocks: every block's answer is rounded to the storage dtype and so is the merged one, which "
    "gave 0.9 to 1.4 in all families and seeds tried but 2.3 on the worst shard of bf16 rows that are all but equal",
)
OVER_NOISE_OF_GEMM = Threshold(
    "over_noise",
    2,
    "the same roundings by the same products of other sizes, and what merges add: 0.94 to 1.5 in all families and 20 "
    "seeds",
)
_LSE_OVER_NOISE = Threshold(
    "lse_over_noise",
    1.2,
    "scores rounded to bf16, by up to 2^-9 of their size, move both log-sum-exps alike, and merges are fp32: 1.000 in "
    "all families and 20 seeds",
)
_OF_NOISE = ("rel_rmse", "one_minus_pcc_shard", "one_minus_pcc_seam")


class Attention(CpuKind):
    """One joint attention over image and prompt, and its schedule."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "rel_rmse",
                1e-6,
                "fp32 holds 6e-8 per rounding and a merge rounds a handful of times; an equal-weight merge, which "
                "scores PCC 0.9991, is off by 4e-2",
            ),
            *pcc(1e-10, "a relative error of 1e-6 leaves 5e-13, a log-sum-exp kept in bf16 leaves 8e-5"),
            _LSE["fp32"],
            Threshold(
                "merged_gain",
                2e-7,
                "a factor on one head of one shard: a log-sum-exp is rounded by 6e-8 of its size, and so, where rows "
                "are alike, is the weight of what is merged by it; in units of that size",
            ),
            Threshold(
                "other_layout_max_abs",
                2e-6,
                "schemes differ only in the order of fp32 merges on outputs of order 1",
                optional=True,
            ),
            FINITE,
            _DTYPES,
            *traces.BOUNDS,
        ),
        "bf16": (*BF16, _LSE["bf16"], _DTYPES, *traces.BOUNDS),
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Return ``q``, ``k``, ``v`` and the prompt's, holding only values of the storage dtype."""
        return _inputs(case.shape, case.family, case.dtype, seed)

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        options = layout.options(case.dtype, **{"trace": True} | more)
        return attention_result(self.inputs(case, seed), options=options, logical_n=case.shape.logical_n)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        rows = case.shape.rows
        ref, lse_ref = self.reference(case, seed)
        out = _joint(result, rows)
        lse = _lse_rows(result.tensors["lse"], case.shape.n, rows)
        metrics = self._judged(case, out, ref)
        metrics["lse_rel_max"] = m.rel_max(lse, lse_ref)
        metrics["non_finite"] += m.non_finite(lse)
        parts = rows_per_head(out), rows_per_head(ref), lse_ref.flatten(0, 1)
        metrics["merged_gain"] = m.merged_gain(*parts, self._shards(case))
        right = {"out": _STORED[case.dtype], "joint_out": _STORED[case.dtype], "lse": torch.float32}
        metrics["wrong_dtypes"] = sum(x.dtype != right[name] for name, x in result.tensors.items())
        return metrics | traces.check(result.trace, case.layout)

    def explain(self, case: Case, seed: int, result: Result, limits: Mapping[str, float]) -> Evidence:
        tensors = self.inputs(case, seed)
        rows = case.shape.rows
        ref, ref_lse = self.reference(case, seed)
        out = _joint(result, rows).double()
        lse = _lse_rows(result.tensors["lse"], case.shape.n, rows).double()
        limits = self._limits(case, seed, limits)
        limit = limits["worst_token"] if "worst_token" in limits else limits["rel_rmse"]
        attended = finder.Attended(out, lse, ref, ref_lse, limit, limits["lse_rel_max"])
        return finder.find(attended, tensors, case.shape, case.layout)

    def _limits(self, case: Case, seed: int, limits: Mapping[str, float]) -> Mapping[str, float]:
        """Return what a case allows a row and a log-sum-exp: ``worst_token``, ``lse_rel_max``."""
        return limits

    def measure_other_layout(self, case: Case, result: Result, other: Result) -> Metrics:
        rows = case.shape.rows
        return {"other_layout_max_abs": m.max_abs(_joint(other, rows), _joint(result, rows))}

    def noise(self, case: Case, seed: int) -> dict[str, float]:
        return noise_of(*self._noise(case, seed))

    def floor(self, case: Case, seed: int) -> Metrics:
        if case.shape.n > 512:
            return {}
        noise, ref = self._noise(case, seed)
        shards = token_shards(case.layout, case.shape.n, case.shape.rows)
        return m.compare(rows_per_head(noise), rows_per_head(ref), shards, digits=DIGITS[case.dtype])

    def _judged(self, case: Case, out: Tensor, ref: Tensor) -> Metrics:
        """Measure an answer (B, H, rows + L, E) to a case, shard by shard."""
        return m.compare(rows_per_head(out), rows_per_head(ref), self._shards(case), digits=DIGITS[case.dtype])

    @staticmethod
    def _shards(case: Case) -> list[m.Range]:
        """Return ranges of real rows: every shard's of the image, then those of the prompt."""
        n = case.shape.n
        rows = case.shape.rows
        text = case.shape.text
        shards = token_shards(case.layout, n, rows)
        if text:
            split = case.layout.prompt_layout == "split"
            prompt = token_shards(case.layout, text, text) if split else [(0, text)]
            shards += [(rows + a, rows + b) for a, b in prompt]
        return shards

    def reference(self, case: Case, seed: int) -> tuple[Tensor, Tensor]:
        """Return the formula's output and log-sum-exp on float64, computed once for all layouts."""
        key = case.shape, case.family, case.dtype
        return self.once(case, seed, key, lambda: formulas.attention_float64(self.inputs(case, seed), case.shape))

    def _noise(self, case: Case, seed: int) -> tuple[Tensor, Tensor]:
        """Return torch's attention in the storage dtype and in float64."""
        noise = formulas.attention_noise(self.inputs(case, seed), case.shape, case.dtype)
        return noise, self.reference(case, seed)[0]


class StorageAttention(Attention):
    """The same in ``storage`` math, which rounds as torch's own attention in that dtype does, on the same inputs.

    ``over_noise`` is the error in units of that call's: of the whole (RMSE), of the worst shard and of the rows at
    borders (both the root of 1 - PCC), whichever is worst.
    """

    thresholds: ClassVar = {
        "fp32": (OVER_NOISE, _LSE["fp32"], FINITE, _DTYPES, *traces.BOUNDS),
        "bf16": (OVER_NOISE, _LSE["bf16"], FINITE, _DTYPES, *traces.BOUNDS),
    }

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        metrics = super().measure(case, seed, result)
        alone = self._judged(case, *self._noise(case, seed))
        pairs = [(metrics[name], alone[name], 2 if "pcc" in name else 1) for name in _OF_NOISE]
        ratios = [(mine / theirs) ** (1 / root) for mine, theirs, root in pairs if theirs is not None]
        return metrics | {"over_noise": m.worst(ratios)}

    def _limits(self, case: Case, seed: int, limits: Mapping[str, float]) -> Mapping[str, float]:
        noise, ref = map(rows_per_head, self._noise(case, seed))
        return {"worst_token": limits["over_noise"] * m.worst_token(noise, ref)} | limits


class GemmAttention(StorageAttention):
    """The same in ``gemm`` math: ``over_noise`` is in units of the error of two products in the storage dtype with a
    softmax in fp32 between them, and ``lse_over_noise`` in units of the error that its log-sum-exp has."""

    thresholds: ClassVar = {
        "fp32": (OVER_NOISE_OF_GEMM, _LSE["fp32"], FINITE, _DTYPES, *traces.BOUNDS),
        "bf16": (OVER_NOISE_OF_GEMM, _LSE_OVER_NOISE, FINITE, _DTYPES, *traces.BOUNDS),
    }

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        metrics = super().measure(case, seed, result)
        return metrics | {"lse_over_noise": metrics["lse_rel_max"] / self._lse_noise(case, seed)}

    def _noise(self, case: Case, seed: int) -> tuple[Tensor, Tensor]:
        noise, _ = formulas.attention_gemm_noise(self.inputs(case, seed), case.shape, case.dtype)
        return noise, self.reference(case, seed)[0]

    def _lse_noise(self, case: Case, seed: int) -> float:
        _, noise = formulas.attention_gemm_noise(self.inputs(case, seed), case.shape, case.dtype)
        return m.rel_max(noise, self.reference(case, seed)[1])

    def _limits(self, case: Case, seed: int, limits: Mapping[str, float]) -> Mapping[str, float]:
        known = super()._limits(case, seed, limits)
        if "lse_over_noise" in limits:
            known = {"lse_rel_max": limits["lse_over_noise"] * self._lse_noise(case, seed)} | known
        return known


@lru_cache(maxsize=1)
def _inputs(shape: AttentionShape, family: str, dtype: str, seed: int) -> dict[str, Tensor]:
    """Draw what a case asks for several times."""
    return rounded(attention_inputs(shape, family, seed), dtype)


def _joint(result: Result, rows: int) -> Tensor:
    """Return real image rows and prompt rows of the simulator's answer, (B, H, rows + L, E)."""
    image = result.tensors["out"][:, :, :rows]
    return torch.cat([image, result.tensors["joint_out"]], 2) if "joint_out" in result.tensors else image


def _lse_rows(lse: Tensor, n: int, rows: int) -> Tensor:
    """Return (B, H, n + L) without the padding rows."""
    return torch.cat([lse[:, :, :rows], lse[:, :, n:]], 2)


def rows_per_head(x: Tensor) -> Tensor:
    """Turn (B, H, N, E) into (B * H, N, E)."""
    return x.flatten(0, 1)
