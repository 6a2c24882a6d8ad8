"""How the tokens of FLUX.2's two streams are cut, and their rotary tables.

    position ids   image (N, 4): [time, row, column, layer]       text (L, 4): [0, 0, 0, token] as a rule
    a head         [ axis 0: 32 | axis 1: 32 | axis 2: 32 | axis 3: 32 ]      features turned by each axis

The ids are inputs of the model, so any numbers will do. A member of sp makes the tables of its own tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from refsim.layers.rope import Rotary, rotary_angles
from refsim.models.flux2.config import Flux2Config
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device


@dataclass(frozen=True)
class Sequences:
    """How the tokens of both streams are cut over sp, and what turns this device's queries and keys.

    Attributes:
        tokens: of the image.
        prompt_tokens: of the prompt, None if every device holds all of it.
        rotary, prompt_rotary: tables of this device's rows; padding stands at position 0, and is no key.
    """

    tokens: TokenShards
    prompt_tokens: TokenShards | None
    rotary: Rotary
    prompt_rotary: Rotary

    @property
    def cut(self) -> dict[str, TokenShards | None]:
        """Return what attention takes of them besides the tables."""
        return {"tokens": self.tokens, "prompt_tokens": self.prompt_tokens}

    @classmethod
    def of(cls, device: Device, config: Flux2Config, img_ids_N4: Tensor, txt_ids_L4: Tensor) -> Sequences:
        """Cut as many tokens as there are ids; the tables are those of this device's part."""
        sp = device.groups["sp"]
        tokens = TokenShards.of(img_ids_N4.shape[0], sp.size)
        prompt_tokens = TokenShards.of_prompt(txt_ids_L4.shape[0], sp.size) if device.options.splits_prompt else None

        def tables(ids_N4: Tensor, shards: TokenShards | None) -> Rotary:
            mine = ids_N4 if shards is None else shards.cut(ids_N4, sp.index, dim=0)
            angles = rotary_angles(mine.unbind(-1), config.axes_dims_rope, config.rope_theta)
            return angles.cos().float(), angles.sin().float()

        return cls(tokens, prompt_tokens, tables(img_ids_N4, tokens), tables(txt_ids_L4, prompt_tokens))
