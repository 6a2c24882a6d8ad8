"""Position tables of both streams; counterpart of ``refsim.models.flux2.embeddings``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from refsim.models.flux2.config import Flux2Config
from tt_impl.layers.linear import pad_to
from tt_impl.layers.rope import PairTables, pair_rotary, rotary_angles
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_prompt, padded_tokens
from tt_impl.parallel.sequence import split_length


@dataclass(frozen=True)
class Sequences:
    """What attention has to know of the tokens.

    Attributes:
        logical_n: image tokens without padding, over all devices.
        logical_l: the same of a prompt that is split over sp, None for one that every device holds whole.
        rotary, prompt_rotary: tables, cut as their tokens are; padding stands at position 0.
    """

    logical_n: int
    logical_l: int | None
    rotary: PairTables
    prompt_rotary: PairTables

    @property
    def lengths(self) -> dict[str, int | None]:
        """Return what attention takes of them besides the tables."""
        return {"logical_n": self.logical_n, "logical_l": self.logical_l}

    @classmethod
    def of(cls, ctx: Context, config: Flux2Config, img_ids_N4: torch.Tensor, txt_ids_L4: torch.Tensor) -> Sequences:
        """From position ids (N, 4) and (L, 4) on the host."""

        def tables(ids_N4: torch.Tensor, pad: Callable[[int, int], int] | None) -> PairTables:
            angles_NP = rotary_angles(ids_N4.unbind(-1), config.axes_dims_rope, config.rope_theta)
            if pad is not None:
                angles_NP = pad_to(angles_NP, pad(len(angles_NP), ctx.sp), angles_NP.shape[1])
            return pair_rotary(ctx, angles_NP, split=pad is not None)

        return cls(
            img_ids_N4.shape[0],
            split_length(ctx, txt_ids_L4.shape[0]),
            tables(img_ids_N4, padded_tokens),
            tables(txt_ids_L4, padded_prompt if ctx.options.splits_prompt else None),
        )
