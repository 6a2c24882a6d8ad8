"""An encoder of prompts in TTNN against refsim in the same storage dtype (bf16), result by result.

Results are whole on every device, but features are cut over tp before they are gathered: every member's share of them
is judged as a shard of its own, so that one device that goes wrong is not averaged away. In the random
checkpoints an embedding is an eighth (tiny ones) to a twentieth (CLIP-G's width) of what the first block adds to it,
and every block adds about as much as all before it: a result is the sum of what blocks added, and nothing hides behind
the residual stream.

Legend: B batch, L tokens, F features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from parity.cases import Case
from parity.kinds.base import Metrics, TTNNKind, text_inputs
from parity.kinds.ttnn.transformer import WHOLE, compare_communication
from parity.measure import metrics as m
from parity.measure.thresholds import Threshold
from refsim.parallel.padding import padded_features
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome


_TOKENS = 77
"""Of the shortest prompt."""
MEAN_TOKEN = Threshold(
    "mean_token_rmse",
    3.6e-3,
    "rounding differs from token to token, so that the error of their mean is that of one token, 3.2e-2, over the root "
    "of 77 tokens; another activation (gelu for quick_gelu) errs the same way in all of them. Of causal encoders only: "
    "where every token attends to every other, all share the rounding of what they attend to",
    optional=True,
)


class TTNNTextEncoder(TTNNKind):
    """Ids in; features of every token out, or one row a prompt, or both."""

    program = "tt_impl.pipelines.transformer:program"
    thresholds: ClassVar = {"bf16": (*WHOLE, MEAN_TOKEN)}

    inputs = staticmethod(text_inputs)

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        config = case.layout.config()
        causal = "attention_mask" not in self.inputs(case, seed)  # nobody sees padding that comes later
        metrics, results = compare(outcome.tensors, reference.tensors, config.tp, causal=causal)
        counted, extra = compare_communication(outcome, reference, config.cfg)
        return metrics | counted, {"results": results} | extra


def compare(
    ours: dict[str, Tensor], ref: dict[str, Tensor], tp: int, *, causal: bool
) -> tuple[Metrics, dict[str, Metrics]]:
    """Return the worst of every metric over the results, (B, L, F) or (B, F) each, and all metrics by result.

    Raises:
        ValueError: the two have different results.
    """
    if ours.keys() != ref.keys():
        raise ValueError(f"the results are {', '.join(ours)}, and {', '.join(ref)} in the reference")
    results = {}
    for name, theirs in ref.items():
        a, b = (x.float().unsqueeze(1) if x.ndim == 2 else x.float() for x in (ours[name], theirs))
        metrics = m.compare(a, b, [(0, b.shape[1])])
        shards = feature_shards(b.shape[2], tp)
        metrics["mean_token_rmse"] = mean_token_rmse(a, b) if causal and b.shape[1] >= _TOKENS else None
        metrics["one_minus_pcc_shard"] = m.worst_shard(a.transpose(1, 2), b.transpose(1, 2), shards)
        results[name] = metrics
    return m.worst_of(results.values()), results


def mean_token_rmse(out_BLF: Tensor, ref_BLF: Tensor) -> float:
    """Return the RMS of the error of the mean over a prompt's tokens, over the spread of single values."""
    if m.non_finite(out_BLF) or m.non_finite(ref_BLF):
        return math.nan
    error = (out_BLF.double() - ref_BLF.double()).mean(1)
    return float(error.square().mean().sqrt() / ref_BLF.double().std(correction=0))


def feature_shards(features: int, tp: int) -> list[m.Range]:
    """Return the real lanes of every member of tp."""
    local = padded_features(features, tp) // tp
    return [(min(i * local, features), min((i + 1) * local, features)) for i in range(tp)]
