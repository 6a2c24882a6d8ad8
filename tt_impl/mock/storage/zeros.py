"""What takes the place of values where none are computed: zeros that take no memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import ttnn

from tt_impl.mock.storage.constants import constant
from tt_impl.mock.storage.dtypes import RANGES
from tt_impl.mock.storage.padding import Padding
from tt_impl.mock.storage.values import Shards, Store, mesh_shape_of, ranks_of, shape_of


class Zeros(Store):
    """A store of which every tensor reads as zeros, whatever is written."""

    def read(self, tensor: ttnn.Tensor, reader: str) -> Shards:
        shape = shape_of(tensor)
        value = constant(0, shape, torch.int64 if tensor.dtype in RANGES else torch.float32)
        return Shards([value] * len(ranks_of(tensor)), shape, mesh_shape_of(tensor), tensor.dtype)

    def write(
        self,
        tensor: ttnn.Tensor,
        shards: Sequence[torch.Tensor],
        writer: str,
        padding: Padding | float | None = None,
    ) -> None:
        """Forget what is written."""
