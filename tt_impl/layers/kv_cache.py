"""Keys and values of rows that are already computed, per device those of its own heads; by concat and slice.

    append   concat of the old rows and the new ones along the rows
    crop     slice of the first rows

Kept in bf16, which is what TTNN's attention takes.

Legend: B batch, 1; H local heads; N rows; E features of a head.
"""

from __future__ import annotations

import ttnn

from tt_impl.layers.grouped_attention import grouped_attention
from tt_impl.parallel.context import Context

Rows = tuple[ttnn.Tensor, ttnn.Tensor]


class KVCache:
    """The local heads' keys (after norm and rotation) and values of one layer, each (1, heads, rows, E)."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    @property
    def length(self) -> int:
        return 0 if self._rows is None else self._rows[0].shape[2]

    def append(self, key_BHNE: ttnn.Tensor, value_BHNE: ttnn.Tensor) -> Rows:
        """Add rows; returns all of them, old ones first."""
        new = ttnn.typecast(key_BHNE, ttnn.bfloat16), ttnn.typecast(value_BHNE, ttnn.bfloat16)
        old = self._rows
        self._rows = (
            new if old is None else tuple(ttnn.concat(list(pair), dim=2) for pair in zip(old, new, strict=True))
        )
        return self._rows

    def attend(
        self,
        ctx: Context,
        query_BHNE: ttnn.Tensor,
        key_BGNE: ttnn.Tensor,
        value_BGNE: ttnn.Tensor,
        *,
        mask: ttnn.Tensor | None,
    ) -> ttnn.Tensor:
        """Add rows, and the local heads' attention of their queries, (1, 1, N, H * E)."""
        return grouped_attention(ctx, query_BHNE, *self.append(key_BGNE, value_BGNE), mask=mask)

    def crop(self, length: int) -> None:
        """Keep rows 0 .. length-1.

        Raises:
            ValueError: there are fewer, or none would stay.
        """
        if not 0 < length <= self.length:
            raise ValueError(f"a cache of {self.length} rows cannot be cropped to {length}")
        if length < self.length:
            self._rows = tuple(x[:, :, :length] for x in self._rows)
