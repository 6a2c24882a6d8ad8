"""What a block has to know of the tokens of both streams; counterpart of ``refsim.blocks.sequences``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ttnn

from tt_impl.layers.rope import PairTables
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import split_length


@dataclass(frozen=True)
class Sequences:
    """How many tokens both streams have, and what each has besides its features.

    Attributes:
        logical_n: image tokens without padding, over all devices.
        logical_l: the same of a prompt that is split over sp, None for one that every device holds whole.
        rotary, prompt_rotary: tables, cut as their tokens are; None for a stream that is not turned.
        prompt_answers: which answer of attention each token of the prompt takes, a matrix of ones and zeros (B, local
            heads, L, L); None for its own.
        modulate_index: which half of a doubled time step each image token is modulated by, (B or 1, 1, local N, 1) of 0
            and 1; None where there is one.
    """

    logical_n: int
    logical_l: int | None
    rotary: PairTables | None = None
    prompt_rotary: PairTables | None = None
    prompt_answers: ttnn.Tensor | None = None
    modulate_index: ttnn.Tensor | None = None

    @classmethod
    def of(cls, ctx: Context, logical_n: int, logical_l: int) -> Sequences:
        """Of ``logical_n`` image tokens and ``logical_l`` of the prompt, cut as the run's options say."""
        return cls(logical_n, split_length(ctx, logical_l))

    @property
    def cut(self) -> dict[str, Any]:
        """Return what joint attention takes of them besides queries, keys and values."""
        return {"logical_n": self.logical_n, "logical_l": self.logical_l}
