"""One forward of a causal language model, tensor-parallel: the logits of every row, judged by transformers in fp32."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import encoder_inputs
from parity.kinds.base import ModelKind
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC


class CausalLM(ModelKind):
    """Ids in, logits (B, L, vocabulary) out; a row sees those before it, so padding needs no mask."""

    thresholds: ClassVar = {"fp32": (*SAME_ARITHMETIC, REPLICAS, FINITE), "bf16": (*BF16, REPLICAS)}

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return {"input_ids": encoder_inputs(case.shape, MODELS[case.model].config["vocab_size"], seed)["input_ids"]}
