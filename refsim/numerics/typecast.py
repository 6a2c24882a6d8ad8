"""Typecasts on the device: copy to the destination, pack to another format; nothing is computed.

    float32 --> destination of 32 bits --> packer: bf16 ties away | bfp8_b rounded once | bfp4_b
    bf16, bfp8_b, bfp4_b --> destination --> packer

A typecast to bfp8_b packs precisely: the value is cut to bf16 and rounded once, where any other op rounds it twice.
"""

from __future__ import annotations

from torch import Tensor

from refsim.numerics.formats import flush
from refsim.numerics.packer import pack


def typecast(x: Tensor, dtype: str) -> Tensor:
    """Return the values that a tensor holds after ``ttnn.typecast``.

    Args:
        x: float32, the values that the tensor holds; the last dim of a block format is a multiple of 16.
        dtype: ``float32``, ``bfloat16``, ``bfloat8_b`` or ``bfloat4_b``.

    Raises:
        UserError: another dtype, or a last dim that is no multiple of 16.
    """
    if dtype == "float32":
        return flush(x)
    return pack(x, dtype, precise=dtype == "bfloat8_b")
