"""What a block has to know of the tokens of both streams; counterpart of ``refsim.blocks.sequences``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import ttnn

from tt_impl.layers.linear import pad_to
from tt_impl.layers.rope import PairTables, pair_rotary
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_prompt, padded_tokens
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

    def turned(
        self,
        ctx: Context,
        places: torch.Tensor,
        prompt_places: torch.Tensor,
        angles: Callable[[torch.Tensor], torch.Tensor],
    ) -> Sequences:
        """Return the same with rotary tables; padding is not turned.

        Args:
            places, prompt_places: of all tokens of both streams on the host, (N, axes) and (L, axes).
            angles: of places (rows, axes), the angles (rows, E / 2).
        """
        pad = padded_prompt if ctx.options.splits_prompt else None
        return replace(
            self,
            rotary=_tables(ctx, angles(places), padded_tokens),
            prompt_rotary=_tables(ctx, angles(prompt_places), pad),
        )

    @property
    def cut(self) -> dict[str, Any]:
        """Return what joint attention takes of them besides queries, keys and values."""
        return {"logical_n": self.logical_n, "logical_l": self.logical_l}


def _tables(ctx: Context, angles_NP: torch.Tensor, pad: Callable[[int, int], int] | None) -> PairTables:
    """Put tables on the devices, cut over sp if there is a number of rows to ``pad`` to."""
    if pad is not None:
        angles_NP = pad_to(angles_NP, pad(len(angles_NP), ctx.sp), angles_NP.shape[1])
    return pair_rotary(ctx, angles_NP, split=pad is not None)
