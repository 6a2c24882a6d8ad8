"""Sequence parallel: every member of the sp group holds a run of consecutive tokens.

    tokens   0 ........ n | n ........ 2n | 2n ...... logical_n xxxx 3n
             member 0       member 1        member 2            ^^^^ padding: no valid key, query rows discarded

The prompt is either replicated (every member holds all of it) or split the same way. What is computed per token
(linears, norms, modulation, feed-forward) needs no communication; tables that depend on the position (positional
embedding, RoPE) are cut to the member's tokens. Only attention communicates.

Bytes: ``cut_tokens`` none; ``gather_tokens`` one all_gather of the local tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather
from refsim.parallel.padding import padded_prompt, padded_tokens
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, shards

Range = tuple[int, int]
Keys = list[Range] | Tensor
"""Which rows are keys: ranges that hold for every sample, or a bool (B, rows) where samples differ."""


@dataclass(frozen=True)
class TokenShards:
    """How ``logical_n`` tokens are cut into ``factor`` shards of ``local_n`` rows each."""

    logical_n: int
    factor: int
    local_n: int

    @classmethod
    def of(cls, logical_n: int, factor: int) -> TokenShards:
        return cls(logical_n, factor, padded_tokens(logical_n, factor) // factor)

    @classmethod
    def of_prompt(cls, logical_l: int, factor: int) -> TokenShards:
        return cls(logical_l, factor, padded_prompt(logical_l, factor) // factor)

    def tokens(self, shard: int) -> Range:
        """Return the global range of the real tokens in a shard; empty (a == b) for a shard of padding only."""
        start = min(shard * self.local_n, self.logical_n)
        return start, min(start + self.local_n, self.logical_n)

    def valid(self, shard: int) -> list[Range]:
        """Return the local row ranges of a shard that are keys, one, which may be empty; the rest is padding."""
        start, stop = self.tokens(shard)
        return [(0, stop - start)]

    def cut(self, x: Tensor, shard: int, *, dim: int) -> Tensor:
        """Return the rows of ``shard`` of a full tensor with ``logical_n`` rows in ``dim``, zero-padded."""
        start, stop = self.tokens(shard)
        local = x.narrow(dim, start, stop - start)
        missing = self.local_n - (stop - start)
        dim %= x.ndim
        return F.pad(local, (0, 0) * (x.ndim - 1 - dim) + (0, missing)) if missing else local


def cut_tokens(device: Device, x: MeshTensor, tokens: TokenShards, *, dim: int) -> MeshTensor:
    """Cut sp=Replicate, all real tokens in ``dim``, to sp=Shard(dim): this member's, zero-padded."""
    x.require("cut_tokens", sp=Replicate())
    return x.with_local(tokens.cut(x.local, device.groups["sp"].index, dim=dim), **shards(device.groups, sp=dim))


def gather_tokens(device: Device, x: MeshTensor, tokens: TokenShards, *, dim: int) -> MeshTensor:
    """Gather sp=Shard(dim) to sp=Replicate: the real tokens of all members, the padding dropped."""
    x.require("gather_tokens", **shards(device.groups, sp=dim))
    whole = all_gather(device, x.local.contiguous(), device.groups["sp"], dim=dim)
    return x.with_local(whole.narrow(dim, 0, tokens.logical_n), sp=Replicate())
