"""An encoder of prompts, or one forward of a causal language model, cut over tp, judged by transformers in fp32."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import encoder_inputs
from parity.kinds.base import ModelKind, text_inputs
from parity.measure.thresholds import BF16, FINITE, REPLICAS, SAME_ARITHMETIC


class TextEncoder(ModelKind):
    """Ids in; features of every token out, those of padding too, which real ones make; or one row a prompt."""

    thresholds: ClassVar = {"fp32": (*SAME_ARITHMETIC, REPLICAS, FINITE), "bf16": (*BF16, REPLICAS)}

    inputs = staticmethod(text_inputs)


class CausalLM(TextEncoder):
    """Ids in, logits (B, L, vocabulary) out; a row sees those before it, so padding needs no mask."""

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return {"input_ids": encoder_inputs(case.shape, MODELS[case.model].config["vocab_size"], seed)["input_ids"]}
