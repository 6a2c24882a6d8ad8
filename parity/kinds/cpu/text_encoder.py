"""An encoder of prompts, heads and features cut over tp, judged by transformers in fp32."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from parity.cases import Case
from parity.kinds.base import ModelKind, text_inputs
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC


class TextEncoder(ModelKind):
    """Ids in; features of every token out, those of padding too, which real ones make; or one row a prompt."""

    thresholds: ClassVar = {"fp32": (*SAME_ARITHMETIC, REPLICAS, FINITE), "bf16": (*BF16, REPLICAS)}

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return text_inputs(case, seed)
