"""Configuration of a T5 or UMT5 encoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Positive, Size, check_fixed, read
from refsim.models.t5.spec import UMT5

_OF_UMT5 = {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6}
"""Defaults of transformers' ``UMT5Config`` that are not those of T5."""


@dataclass(frozen=True)
class T5Config:
    """Keys of transformers' config.json, T5's defaults (XXL: 24 layers of 64 heads of 64, d_model 4096, d_ff 10240).

    ``model_type`` is ``t5`` (relative bias in the first layer, used by all) or ``umt5`` (one in every layer); without
    it, ``architectures`` tells. A T5 that does not say ``feed_forward_proj`` is the first version, with ``relu``.
    """

    model_type: Literal["t5", "umt5"] = "t5"
    vocab_size: Size = 32128
    d_model: Size = 512
    d_kv: Size = 64
    d_ff: Size = 2048
    num_layers: Size = 6
    num_heads: Size = 8
    relative_attention_num_buckets: Size = 32
    relative_attention_max_distance: Size = 128
    layer_norm_epsilon: Positive = 1e-6
    feed_forward_proj: Literal["gated-gelu"] = "gated-gelu"

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> T5Config:
        """Read a parsed config.json; ``UserError`` for a value this encoder cannot have."""
        is_umt5 = config.get("model_type", "umt5" if config.get("architectures") == [UMT5] else "t5") == "umt5"
        unsaid = {"model_type": "umt5"} | _OF_UMT5 if is_umt5 else {"feed_forward_proj": "relu"}
        result = read(cls, unsaid | config)
        check_fixed(config, {"dense_act_fn": "gelu_new", "is_gated_act": True, "is_decoder": False})
        exact = result.relative_attention_num_buckets // 4
        if not 1 <= exact < result.relative_attention_max_distance:
            raise UserError(
                f"config.json has relative_attention_num_buckets = {result.relative_attention_num_buckets} and "
                f"relative_attention_max_distance = {result.relative_attention_max_distance}; 4 buckets or more are "
                "needed, and a distance above a quarter of them."
            )
        return result
