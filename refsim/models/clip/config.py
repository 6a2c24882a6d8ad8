"""Configuration of a CLIP text encoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Positive, Size, read
from refsim.models.clip.spec import PLAIN


@dataclass(frozen=True)
class CLIPTextConfig:
    """Keys and defaults of transformers' config.json (L: 12 layers of 12 heads, G: 32 layers of 20 heads).

    Attributes:
        projected: the end token's row is projected (``CLIPTextModelWithProjection``), not given as it is.
    """

    vocab_size: Size = 49408
    hidden_size: Size = 512
    intermediate_size: Size = 2048
    projection_dim: Size = 512
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 8
    max_position_embeddings: Size = 77
    hidden_act: Literal["quick_gelu", "gelu"] = "quick_gelu"
    layer_norm_eps: Positive = 1e-5
    eos_token_id: Count = 49407
    projected: Flag = field(kw_only=True)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> CLIPTextConfig:
        """Read a parsed config.json; ``UserError`` for a value this encoder cannot have."""
        result = read(cls, config | {"projected": config.get("architectures") != [PLAIN]})
        if result.hidden_size % result.num_attention_heads:
            raise UserError(
                f"config.json has hidden_size {result.hidden_size}, which does not divide into "
                f"{result.num_attention_heads} heads."
            )
        return result
