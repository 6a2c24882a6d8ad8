"""NaN and infinity among values: what an operation makes of inputs without, and what only stands for memory.

Rules fill what a kernel does not write with ``UNWRITTEN``, a NaN whose bits tell it from one that arithmetic makes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

import torch

from tt_impl.mock.storage.constants import single

NAN = "NaN"
INFINITY = "infinity"

_BITS = 0x7FC006F5
UNWRITTEN: float = struct.unpack("d", struct.pack("Q", 0x7FF8_00DE_A000_0000))[0]
"""As a float32 it has the bits above, which copies keep and roundings do not."""


def not_finite(values: Iterable[Sequence[torch.Tensor]]) -> set[str]:
    """Return which of NaN and infinity there are; a tensor that devices share is looked at once.

    Args:
        values: of some tensors, by device.
    """
    kinds: set[str] = set()
    for tensor in {id(part): part for parts in values for part in parts}.values():
        one = single(tensor)
        tensor = tensor if one is None else one
        # One pass over memory for nearly all: only what is not finite, or overflows, has a sum that is not.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum()):
            made = tensor.isnan()
            if tensor.dtype == torch.float32:
                made &= tensor.contiguous().view(torch.int32) != _BITS
            if made.any():
                kinds.add(NAN)
            if tensor.isinf().any():
                kinds.add(INFINITY)
    return kinds
