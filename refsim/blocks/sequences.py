"""What a block has to know of the tokens of both streams: how they are cut over sp, and what turns their heads.

image    tokens 0 .. N cut over sp, padded to whole shards       rotary: tables of this device's rows
prompt   replicated, or cut the same way                         prompt_rotary: likewise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from refsim.layers.rope import Rotary
from refsim.parallel.sequence import TokenShards, cut_tokens
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


@dataclass(frozen=True)
class Sequences:
    """How the tokens of both streams are cut over sp, and what each has besides its features.

    Attributes:
        tokens: of the image.
        prompt_tokens: of the prompt, None if every device holds all of it.
        rotary, prompt_rotary: tables of this device's rows, (rows, E / 2) or, where each head turns otherwise, (local
            heads, rows, E / 2); None for a stream that is not turned. Padding stands anywhere, and is no key.
        prompt_mask: which of the prompt's tokens are keys, (B, L) for all of them; None for all.
        modulate_index: which of two time steps each of this device's image tokens is modulated by, (1, local N) of 0
            and 1; None where there is one.
    """

    tokens: TokenShards
    prompt_tokens: TokenShards | None
    rotary: Rotary | None = None
    prompt_rotary: Rotary | None = None
    prompt_mask: Tensor | None = None
    modulate_index: Tensor | None = None

    @classmethod
    def of(cls, device: Device, logical_n: int, logical_l: int) -> Sequences:
        """Cut ``logical_n`` image tokens and ``logical_l`` of the prompt as the run's options say."""
        sp = device.groups["sp"].size
        split = device.options.splits_prompt
        return cls(TokenShards.of(logical_n, sp), TokenShards.of_prompt(logical_l, sp) if split else None)

    def place_prompt(self, device: Device, prompt_BLC: Tensor) -> MeshTensor:
        """Return this device's rows of a prompt that every device has been given whole."""
        prompt = MeshTensor(prompt_BLC)
        return prompt if self.prompt_tokens is None else cut_tokens(device, prompt, self.prompt_tokens, dim=1)

    def turned(
        self, device: Device, places: Tensor, prompt_places: Tensor, angles: Callable[[Tensor], Tensor]
    ) -> Sequences:
        """Return the same with the rotary tables of this device's part; padding stands at position 0.

        Args:
            places, prompt_places: of all tokens of both streams, (N, axes) and (L, axes).
            angles: of places (rows, axes), the angles (rows, E / 2).
        """
        index = device.groups["sp"].index
        turns = angles(self.tokens.cut(places, index, dim=0))
        cut = prompt_places if self.prompt_tokens is None else self.prompt_tokens.cut(prompt_places, index, dim=0)
        prompt_turns = angles(cut)
        return replace(
            self,
            rotary=(turns.cos().float(), turns.sin().float()),
            prompt_rotary=(prompt_turns.cos().float(), prompt_turns.sin().float()),
        )

    @property
    def cut(self) -> dict[str, Any]:
        """Return what joint attention takes of them besides queries, keys and values."""
        return {"tokens": self.tokens, "prompt_tokens": self.prompt_tokens, "prompt_mask": self.prompt_mask}
