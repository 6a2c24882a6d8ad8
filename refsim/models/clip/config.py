"""Configuration of a CLIP text encoder, as transformers writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError
from refsim.models.clip.spec import PLAIN

ACTIVATIONS = ("quick_gelu", "gelu")


@dataclass(frozen=True)
class CLIPTextConfig:
    """Keys and defaults of transformers' config.json (L: 12 layers of 12 heads, G: 32 layers of 20 heads).

    Attributes:
        projected: the end token's row is projected (``CLIPTextModelWithProjection``), not given as it is.
    """

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    projection_dim: int = 512
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    eos_token_id: int = 49407
    projected: bool = True

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> CLIPTextConfig:
        """Read a parsed config.json; ``UserError`` for a value this encoder cannot have."""
        types = {f.name: f.type for f in fields(cls) if f.name != "projected"}
        given = {name: value for name, value in config.items() if name in types}
        for name, value in given.items():
            if types[name] == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"config.json has {name} = {value!r}; it must be a whole number above 0.")
        result = cls(**given, projected=config.get("architectures") != [PLAIN])
        if result.hidden_act not in ACTIVATIONS:
            raise UserError(
                f"config.json has hidden_act = {result.hidden_act!r}; {' and '.join(ACTIVATIONS)} are supported."
            )
        if result.hidden_size % result.num_attention_heads:
            raise UserError(
                f"config.json has hidden_size {result.hidden_size}, which does not divide into "
                f"{result.num_attention_heads} heads."
            )
        return result
