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
    """Return blake2b of a tensor's bytes in row-major order, in hex."""
    import torch

    return hashlib.blake2b(x.contiguous().flatten().view(torch.uint8).numpy().tobytes(), digest_size=BYTES).hexdigest()


def rank_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return what a rank says of its answer: blake2b of the bytes of its tensors one after the other, names
    ascending. Written anew, so that a digest of anything less is seen."""
    import torch

    rows = (tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes() for name in sorted(tensors))
    return hashlib.blake2b(b"".join(rows)).hexdigest()


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the digest of every tensor, by name, names ascending."""
    return {name: tensor_digest(tensors[name]) for name in sorted(tensors)}
