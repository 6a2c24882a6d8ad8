"""Configuration of a DFlash drafter, as its published folder writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.errors import UserError
from refsim.models.qwen3_moe.config import check_grouped_heads, check_text_rope, checked_fields


@dataclass(frozen=True)
class DFlashConfig:
    """Keys of config.json, with the values of the drafter of Qwen3-Coder-30B-A3B.

    ``target_layer_ids`` and ``mask_token_id`` stand in ``dflash_config``; without ids there, they are spread over the
    target's layers (see :func:`spread_layer_ids`).
    """

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 8
    num_attention_heads: int = 32
    num_key_value_heads: int = 4
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    block_size: int = 16
    mask_token_id: int = 151669
    target_layer_ids: tuple[int, ...] = (1, 12, 23, 34, 45)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> DFlashConfig:
        """Read a parsed config.json; ``UserError`` for a value this drafter cannot have."""
        given = dict(config)
        own = given.get("dflash_config") or {}
        if not isinstance(own, dict):
            raise UserError(f"config.json has dflash_config = {own!r}; it must be an object.")
        rope = check_text_rope(given)
        if rope is not None:
            given["rope_theta"] = rope
        ids = own.get("target_layer_ids", given.get("target_layer_ids"))
        if ids is None:
            ids = spread_layer_ids(given.get("num_target_layers", 48), given.get("num_hidden_layers", 8))
        if not isinstance(ids, (list, tuple)) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise UserError(f"config.json has target_layer_ids = {ids!r}; it must be a list of numbers of layers.")
        mask = own.get("mask_token_id", given.get("mask_token_id", cls.mask_token_id))
        if type(mask) is not int or mask < 0:
            raise UserError(f"config.json has mask_token_id = {mask!r}; it must be the id of a token.")
        given |= {"target_layer_ids": None, "mask_token_id": None}
        result = cls(**checked_fields(cls, given), target_layer_ids=tuple(ids), mask_token_id=mask)
        if result.block_size < 2:
            raise UserError(f"config.json has block_size {result.block_size}; a block is 2 tokens or more.")
        if given.get("attention_bias"):
            raise UserError("config.json has attention_bias = true; attention without bias is supported.")
        if given.get("hidden_act", "silu") != "silu":
            raise UserError(f"config.json has hidden_act = {given['hidden_act']!r}; silu is supported.")
        kinds = set(given.get("layer_types") or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UserError(f"config.json has layer_types {', '.join(sorted(kinds))}; full_attention is supported.")
        if mask >= result.vocab_size:
            raise UserError(
                f"config.json has mask_token_id {mask}, but the vocabulary ends at {result.vocab_size - 1}."
            )
        check_grouped_heads(result.num_attention_heads, result.num_key_value_heads)
        return result


def spread_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """Return ``count`` layers of the target, from its second to its third last: (48, 5) -> 1, 12, 23, 34, 45.

    Source: ``build_target_layer_ids`` of z-lab's dflash.
    """
    if count == 1:
        return (target_layers // 2,)
    span = (target_layers - 3) - 1
    return tuple(round(1 + index * span / (count - 1)) for index in range(count))
