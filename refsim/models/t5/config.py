"""Configuration of a T5 or UMT5 encoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class T5Config:
    """Keys and defaults of transformers' config.json (XXL: 24 layers of 64 heads of 64, d_model 4096, d_ff 10240).

    ``model_type`` is ``t5`` (relative bias in the first layer, used by all) or ``umt5`` (one in every layer).
    """

    model_type: str = "t5"
    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "gated-gelu"

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> T5Config:
        """Read a parsed config.json; ``UserError`` for a value this encoder cannot have."""
        types = {f.name: f.type for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in types}
        for name, value in given.items():
            if types[name] == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"config.json has {name} = {value!r}; it must be a whole number above 0.")
        result = cls(**given)
        if result.model_type not in ("t5", "umt5"):
            raise UserError(f"config.json has model_type = {result.model_type!r}; t5 and umt5 are supported.")
        if result.feed_forward_proj != "gated-gelu":
            raise UserError(
                f"config.json has feed_forward_proj = {result.feed_forward_proj!r}; gated-gelu (T5 v1.1) is supported."
            )
        return result
