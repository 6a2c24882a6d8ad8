"""An encoder of prompts, heads and features cut over tp, judged by transformers in fp32."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import Metrics, ModelKind, distinct_replicas
from parity.measure import metrics as m
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC
from refsim.runtime.launch import Result


class TextEncoder(ModelKind):
    """Ids in; features of every token out, or one row a prompt."""

    thresholds: ClassVar = {"fp32": (*SAME_ARITHMETIC, REPLICAS, FINITE), "bf16": (*BF16, REPLICAS)}

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return self.oracle(case).text_inputs(MODELS[case.model].config, case.shape, seed)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        """Every token's features are judged, those of padding too: they are computed from the real ones."""
        out, ref = result.tensors["sample"], self.reference(case, seed)
        if ref.ndim == 2:  # one row of features a prompt
            out, ref = out.unsqueeze(1), ref.unsqueeze(1)
        found = m.compare(out, ref, [(0, ref.shape[1])])
        return found | {"distinct_replicas": distinct_replicas(case, result.value["digests"], result.tensors)}
