"""Configuration of a Qwen3 mixture-of-experts decoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Positive, Size, check, read, short


@dataclass(frozen=True)
class Qwen3MoeConfig:
    """Keys and defaults of transformers' config.json (30B-A3B: 48 layers, ``norm_topk_prob``).

    Published folders say ``num_experts`` and ``rope_theta``, transformers 5 writes ``num_local_experts`` and
    ``rope_parameters``; both are read. Without ``head_dim`` the heads share out ``hidden_size``.
    """

    vocab_size: Size = 151936
    hidden_size: Size = 2048
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 4
    head_dim: Size = field(kw_only=True)
    num_experts: Size = 128
    num_experts_per_tok: Size = 8
    moe_intermediate_size: Size = 768
    norm_topk_prob: Flag = False
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 1e4
    tie_word_embeddings: Flag = False

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Qwen3MoeConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        values = dict(config)
        if "num_local_experts" in values:
            values["num_experts"] = values["num_local_experts"]
        rope = check_text_rope(values)
        if rope is not None:
            values["rope_theta"] = rope
        sizes = {name: values.get(name, getattr(cls, name)) for name in ("hidden_size", "num_attention_heads")}
        width, heads = (check(Size, value, name) for name, value in sizes.items())
        values.setdefault("head_dim", width // heads)
        result = read(cls, values, may_be_null=("rope_theta",))
        check(Literal[1], values.get("decoder_sparse_step", 1), "decoder_sparse_step")
        if check(tuple[Count, ...] | None, values.get("mlp_only_layers"), "mlp_only_layers"):
            raise UserError("config.json has layers without experts; every layer must be a mixture of experts.")
        check_text_decoder(values)
        if result.num_experts_per_tok > result.num_experts:
            raise UserError(
                f"config.json has num_experts_per_tok {result.num_experts_per_tok} of {result.num_experts} experts."
            )
        check_grouped_heads(result.num_attention_heads, result.num_key_value_heads)
        return result


def check_text_decoder(config: dict[str, Any]) -> None:
    """Raise ``UserError`` for what neither target nor drafter can have: biases, a window, another activation."""
    for name, words in (
        ("attention_bias", "attention without bias"),
        ("use_sliding_window", "attention over all rows"),
    ):
        if check(Flag | None, config.get(name), name):
            raise UserError(f"config.json has {name} = true; {words} is supported.")
    check(Literal["silu"], config.get("hidden_act", "silu"), "hidden_act")


def check_text_rope(config: dict[str, Any]) -> float | None:
    """Return ``rope_theta`` inside ``rope_parameters``, None if it is absent; ``UserError`` for a scaled rotation."""
    check(Positive | None, config.get("rope_theta"), "rope_theta")  # wrong even where rope_parameters has another
    places = (config.get("rope_parameters"), config.get("rope_scaling"), {})
    parameters = next(parameters for parameters in places if parameters is not None)
    if not isinstance(parameters, dict):
        raise UserError(f"config.json has rope_parameters = {short(parameters)}; it must be an object.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json has rope_type = {short(kind)}; default is supported.")
    return parameters.get("rope_theta")


def check_grouped_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise UserError(f"config.json has {heads} heads, which do not divide over {kv_heads} key-value heads.")
    if kv_heads > heads:
        raise UserError(f"config.json has {kv_heads} key-value heads but only {heads} heads.")
