"""Configuration of a DFlash drafter, as its published folder writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Count, Layers, Positive, Size, check, read, short
from refsim.models.qwen3_moe.config import check_grouped_heads, check_text_decoder, check_text_rope


@dataclass(frozen=True)
class DFlashConfig:
    """Keys of config.json, all of which a folder has to say: no library has defaults for them.

    ``target_layer_ids`` and ``mask_token_id`` stand in ``dflash_config``; without ids there, they are spread over the
    target's layers (see :func:`spread_layer_ids`).
    """

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    rms_norm_eps: Positive
    rope_theta: Positive
    block_size: Size
    mask_token_id: Count
    target_layer_ids: tuple[Count, ...]

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> DFlashConfig:
        """Read a parsed config.json; ``UserError`` for a value this drafter cannot have."""
        values = dict(config)
        dflash = {} if values.get("dflash_config") is None else values["dflash_config"]
        if not isinstance(dflash, dict):
            raise UserError(f"config.json has dflash_config = {short(dflash)}; it must be an object.")
        rope = check_text_rope(values)
        if rope is not None:
            values["rope_theta"] = rope
        ids = dflash.get("target_layer_ids", values.get("target_layer_ids"))
        if ids is None:
            target = values.get("num_target_layers", 48)
            count = values.get("num_hidden_layers")
            ids = spread_layer_ids(
                check(Layers, target, "num_target_layers"), check(Layers, count, "num_hidden_layers")
            )
        for place in (dflash, values):  # what stands in dflash_config counts; what stands beside it is checked too
            check(tuple[Count, ...] | None, place.get("target_layer_ids"), "target_layer_ids")
            check(Count | None, place.get("mask_token_id"), "mask_token_id")
        mask = dflash.get("mask_token_id", values.get("mask_token_id"))
        values |= {"target_layer_ids": ids, "mask_token_id": mask}
        result = read(cls, values, may_be_null=("rope_theta", "mask_token_id"))
        if not result.target_layer_ids:
            raise UserError("config.json has no target_layer_ids; it must be a list of numbers of layers.")
        if result.block_size < 2:
            raise UserError(f"config.json has block_size {result.block_size}; a block is 2 tokens or more.")
        check_text_decoder(values)
        check(tuple[Literal["full_attention"], ...] | None, values.get("layer_types"), "layer_types")
        if result.mask_token_id >= result.vocab_size:
            raise UserError(
                f"config.json has mask_token_id {result.mask_token_id}, but the vocabulary ends at "
                f"{result.vocab_size - 1}."
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
