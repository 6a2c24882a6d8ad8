"""Configuration of a Qwen3 mixture-of-experts decoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class Qwen3MoeConfig:
    """Keys of transformers' config.json, with the values of Qwen3-30B-A3B.

    Published folders say ``num_experts`` and ``rope_theta``, transformers 5 writes ``num_local_experts`` and
    ``rope_parameters``; both are read.
    """

    vocab_size: int = 151936
    hidden_size: int = 2048
    num_hidden_layers: int = 48
    num_attention_heads: int = 32
    num_key_value_heads: int = 4
    head_dim: int = 128
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = True
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = False

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Qwen3MoeConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        given = dict(config)
        if "num_local_experts" in given:
            given["num_experts"] = given["num_local_experts"]
        rope = check_text_rope(given)
        if rope is not None:
            given["rope_theta"] = rope
        result = cls(**checked_fields(cls, given))
        if given.get("mlp_only_layers") or given.get("decoder_sparse_step", 1) != 1:
            raise UserError("config.json has layers without experts; every layer must be a mixture of experts.")
        if given.get("attention_bias"):
            raise UserError("config.json has attention_bias = true; attention without bias is supported.")
        if given.get("use_sliding_window"):
            raise UserError("config.json has use_sliding_window = true; attention over all rows is supported.")
        if given.get("hidden_act", "silu") != "silu":
            raise UserError(f"config.json has hidden_act = {given['hidden_act']!r}; silu is supported.")
        if result.num_experts_per_tok > result.num_experts:
            raise UserError(
                f"config.json has num_experts_per_tok {result.num_experts_per_tok} of {result.num_experts} experts."
            )
        check_grouped_heads(result.num_attention_heads, result.num_key_value_heads)
        return result


def checked_fields(cls: type, config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of ``config`` that the dataclass ``cls`` has; ``UserError`` for a number that is none."""
    types = {f.name: f.type for f in fields(cls)}
    given = {name: value for name, value in config.items() if name in types and value is not None}
    for name, value in given.items():
        number = isinstance(value, int if types[name] == "int" else (int, float)) and not isinstance(value, bool)
        if types[name] == "int" and (not number or value < 1):
            raise UserError(f"config.json has {name} = {value!r}; it must be a whole number above 0.")
        if types[name] == "float" and (not number or not 0 < value < float("inf")):
            raise UserError(f"config.json has {name} = {value!r}; it must be a number above 0.")
        if types[name] == "bool" and not isinstance(value, bool):
            raise UserError(f"config.json has {name} = {value!r}; it must be true or false.")
    return given


def check_text_rope(config: dict[str, Any]) -> float | None:
    """Return ``rope_theta`` inside ``rope_parameters``, None if it is absent; ``UserError`` for a scaled rotation."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise UserError(f"config.json has rope_parameters = {parameters!r}; it must be an object.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json has rope_type = {kind!r}; default is supported.")
    return parameters.get("rope_theta")


def check_grouped_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise UserError(f"config.json has {heads} heads, which do not divide over {kv_heads} key-value heads.")
    if kv_heads > heads:
        raise UserError(f"config.json has {kv_heads} key-value heads but only {heads} heads.")
