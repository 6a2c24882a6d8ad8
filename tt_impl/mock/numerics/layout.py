"""Typecast: nothing is computed, but values pass the destination and are packed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refsim.numerics import typecast as cast
from refsim.numerics.composites.compute import zeros_to
from refsim.numerics.formats import BLOCK
from tt_impl.mock.numerics.kernel import Kernel, rounded
from tt_impl.mock.storage.values import Shards


@rounded("typecast", "experimental.typecast")
def typecast(kernel: Kernel, input_tensor: Shards, *_dtypes: Any) -> list[Tensor]:
    """Pack to the new dtype, blocks of eight bits precisely; integers become floats first."""

    def packed(x: Tensor) -> Tensor:
        return cast(zeros_to(x.float(), -1, BLOCK), kernel.out_dtype)[..., : x.shape[-1]]

    return kernel.call.each(packed, input_tensor)
