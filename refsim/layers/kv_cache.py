"""Keys and values of rows that are already computed, so that the next tokens need not compute them again.

    memory   | k of row 0 | row 1 | ... | row length-1 |  free  |      twice as much when it is full
    append   rows length .. length+n-1 are written; attention reads rows 0 .. length+n-1, nothing is copied
    crop     length goes back: rejected tokens are overwritten by the next append

Counterpart: transformers' ``DynamicCache`` (whose ``update`` copies all rows at every call).
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.runtime.tensor import MeshTensor

Rows = tuple[Tensor, Tensor]


class KVCache:
    """The local heads' keys (after norm and rotation) and values of one layer, each (B, heads, rows, E)."""

    def __init__(self) -> None:
        self.length = 0
        self._memory: Rows | None = None

    def append(self, key_BHNE: MeshTensor, value_BHNE: MeshTensor) -> tuple[MeshTensor, MeshTensor]:
        """Add rows; returns all of them, old ones first, as views of the cache, laid out as the new ones."""
        k_BHNE, v_BHNE = key_BHNE.local, value_BHNE.local
        stop = self.length + k_BHNE.shape[2]
        if self._memory is None or stop > self._memory[0].shape[2]:
            self._memory = tuple(
                self._grown(x, old, stop) for x, old in zip((k_BHNE, v_BHNE), self.rows(), strict=True)
            )
        for memory, x in zip(self._memory, (k_BHNE, v_BHNE), strict=True):
            memory[:, :, self.length : stop] = x
        self.length = stop
        k, v = self.rows()
        return key_BHNE.with_local(k), value_BHNE.with_local(v)

    def crop(self, length: int) -> None:
        """Keep rows 0 .. length-1.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} rows cannot be cropped to {length}")
        self.length = length

    def rows(self) -> Rows:
        """Return all rows, (B, heads, length, E); empty before the first ``append``."""
        if self._memory is None:
            return torch.empty(0), torch.empty(0)
        k, v = self._memory
        return k[:, :, : self.length], v[:, :, : self.length]

    def _grown(self, like: Tensor, old: Tensor, least: int) -> Tensor:
        batch, heads, _, features = like.shape
        memory = like.new_zeros(batch, heads, max(64, 2 * least), features)
        if self._memory is not None:
            memory[:, :, : self.length] = old
        return memory
