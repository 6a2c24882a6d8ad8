"""Operations that compute nothing, but whose values pass the destination and are packed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refsim.numerics import typecast as cast
from refsim.numerics.composites.compute import Compute, zeros_to
from refsim.numerics.formats import BLOCK
from tt_impl.mock.numerics.kernel import FLOATS, ROUNDED, Kernel, dtype_of, rounded
from tt_impl.mock.rules.registry import RULES
from tt_impl.mock.storage.values import Shards


@rounded("typecast", "experimental.typecast")
def typecast(kernel: Kernel, input_tensor: Shards, *_dtypes: Any) -> list[Tensor]:
    """Pack to the new dtype, blocks of eight bits precisely; integers become floats first."""

    def packed(x: Tensor) -> Tensor:
        return cast(zeros_to(x.float(), -1, BLOCK), kernel.out_dtype)[..., : x.shape[-1]]

    return kernel.call.each(packed, input_tensor)


def packed(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> list[list[Tensor]]:
    """Return what the exact rule gives, packed where the dtype changes: tiles keep float32 (``Fp32Mode::Lossless``)."""
    columns = RULES[kernel.call.name](kernel.call, args, kwargs)
    sources = [dtype_of(tensor) for tensor in kernel.call.inputs]
    if kernel.out_dtype in sources or not set(sources) & set(FLOATS):
        return columns
    known: dict[int, Tensor] = {}
    for column in columns:
        for values in column:
            if id(values) not in known:
                known[id(values)] = kernel.pack(Compute(fp32_dest_acc_en=True), values.float())
    return [[known[id(values)] for values in column] for column in columns]


ROUNDED |= {
    f"ttnn.{name}": packed
    for name in ("to_layout", "tilize", "tilize_with_val_padding", "tilize_with_zero_padding", "embedding")
}
