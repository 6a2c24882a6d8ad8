"""T5's encoders and Qwen3's decoder are asked as most are; here is in what published ones are not their defaults."""

from __future__ import annotations

from typing import ClassVar

from parity.cases.oracles.base import Oracle

_T5 = ("d_model", "d_ff", "num_layers", "num_heads")


class T5Oracle(Oracle):
    """``T5EncoderModel`` and ``UMT5EncoderModel``."""

    class_names = ("T5EncoderModel", "UMT5EncoderModel")
    other_than_class: ClassVar = {"t5-xxl": (*_T5, "feed_forward_proj"), "umt5-xxl": (*_T5, "vocab_size")}


class Qwen3MoeOracle(Oracle):
    """``Qwen3MoeForCausalLM``."""

    class_names = ("Qwen3MoeForCausalLM",)
    other_than_class: ClassVar = {"qwen3-30b-a3b": ("num_hidden_layers", "norm_topk_prob", "rope_theta")}
