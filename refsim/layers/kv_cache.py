"""Keys and values of rows that are already computed, so that the next tokens need not compute them again.

    memory   | k of row 0 | row 1 | ... | row length-1 |  free  |      twice as much when it is full
    append   rows length .. length+n-1 are written; attention reads rows 0 .. length+n-1, nothing is copied
    crop     length goes back: rejected tokens are overwritten by the next append

Counterpart: transformers' ``DynamicCache`` (whose ``update`` copies all rows at every call).
"""

from __future__ import annotations

from torch import Tensor

from refsim.runtime.tensor import MeshTensor

Rows = tuple[Tensor, ...]
"""Of keys and of values, each (B, heads, rows, E); nothing before the first row."""


class KVCache:
    """The local heads' keys (after norm and rotation) and values of one layer."""

    def __init__(self) -> None:
        self.length = 0
        self._memory: Rows = ()

    def append(self, key_BHNE: MeshTensor, value_BHNE: MeshTensor) -> tuple[MeshTensor, MeshTensor]:
        """Add rows; returns all of them, old ones first, as views of the cache, laid out as the new ones."""
        new = (key_BHNE.local, value_BHNE.local)
        cached = self._rows()
        stop = self.length + new[0].shape[2]
        if not self._memory or stop > self._memory[0].shape[2]:
            self._memory = tuple(x.new_empty(*x.shape[:2], 2 * stop, x.shape[3]) for x in new)
            for memory, x in zip(self._memory, cached, strict=False):
                memory[:, :, : self.length] = x
        for memory, x in zip(self._memory, new, strict=True):
            memory[:, :, self.length : stop] = x
        self.length = stop
        k, v = self._rows()
        return key_BHNE.with_local(k), value_BHNE.with_local(v)

    def crop(self, length: int) -> None:
        """Keep rows 0 .. length-1.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} rows cannot be cropped to {length}")
        self.length = length

    def _rows(self) -> Rows:
        return tuple(x[:, :, : self.length] for x in self._memory)
