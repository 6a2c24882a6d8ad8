"""Digests of what a run gave: equal digests mean equal bits, which is how "same bits as before" is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 12
"""96 bits: two different answers of a hundred cases share a digest by chance less often than once in 1e20 runs."""


def tensor_digest(x: Tensor) -> str:
    """blake2b of a tensor's bytes in row-major order, in hex."""
    import torch

    return hashlib.blake2b(x.contiguous().flatten().view(torch.uint8).numpy().tobytes(), digest_size=BYTES).hexdigest()


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of every tensor, by name, names ascending."""
    return {name: tensor_digest(tensors[name]) for name in sorted(tensors)}
