"""Ulysses: all-to-all turns a sequence shard of all heads into all tokens of a head shard, and back.

    q, k, v   member u: rows of u, heads 0..h     --all_to_all-->  member u: rows of all, heads of u
                                                  attention over the heads of u
    out       member u: rows of all, heads of u   --all_to_all-->  member u: rows of u, heads 0..h

    placement over ulysses   Shard(2), tokens     ------------->   Shard(1), heads (of those that tp has left)

The replicated prompt is not exchanged: every member takes the heads of u from its copy, and the prompt's output is
gathered over heads. (Exchanging a replicated prompt would multiply it by n.)

Heads that do not divide by n are padded with zeros for the exchange and dropped after it, or refused.

Bytes sent per member, B = bytes of its q (heads padded), n members: ``4 (n-1)/n * B`` for q, k, v and out; with a
replicated prompt of output bytes P (heads padded), all_gather's formula with ``P/n``.

Source: DeepSpeed-Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.ccl import all_gather, all_to_all
from refsim.parallel.kv_ring import KeyRanges
from refsim.parallel.padding import exchanged_heads
from refsim.parallel.ring import QKV, Answers
from refsim.parallel.sequence import Keys
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, Shard

_HEADS = 1
_ROWS = 2


@contextmanager
def ulysses(device: Device, heads: int) -> Iterator[Exchange]:
    """Open a block in which attention is over all tokens and a share of the ``heads`` that this device has.

    Raises:
        UserError: the heads do not divide by the group size and ``device.options.pad_heads`` is off.
    """
    group = device.groups["ulysses"]
    exchange = Exchange(device, heads)
    if group.size == 1:
        yield exchange
    else:
        with device.collective("ulysses", group):
            yield exchange


class Exchange:
    """Tokens for heads and back, over the ulysses group; in a group of one everything stays as it is.

    Tensors are (B, heads, rows, features); a log-sum-exp is a tensor of one feature.
    """

    def __init__(self, device: Device, heads: int) -> None:
        self.device = device
        self.group = device.groups["ulysses"]
        self.heads = heads
        if exchanged_heads(heads, self.group.size) != heads and not device.options.pad_heads:
            raise UserError(cannot_split_heads(heads, self.group.size))

    def to_heads(self, qkv: QKV) -> QKV:
        """Exchange ulysses=Shard(2), tokens, for ulysses=Shard(1), padded heads."""
        if self.group.size == 1:
            return qkv
        whole = dict(zip("qkv", qkv, strict=True))
        for name, x in whole.items():
            x.require(f"ulysses' {name}", ulysses=Shard(_ROWS))
        for name in self.device.delays.agreed(whole, self.group):
            x = self.pad(whole[name].local)
            x = all_to_all(self.device, x, self.group, split_dim=_HEADS, concat_dim=_ROWS)
            whole[name] = whole[name].with_local(x, ulysses=Shard(_HEADS))
        return whole["q"], whole["k"], whole["v"]

    def to_tokens(self, x: MeshTensor) -> MeshTensor:
        """Exchange ulysses=Shard(1), padded heads, for ulysses=Shard(2), tokens; the padding is dropped."""
        if self.group.size == 1:
            return x
        x.require("ulysses' answer", ulysses=Shard(_HEADS))
        local = all_to_all(self.device, x.local, self.group, split_dim=_ROWS, concat_dim=_HEADS)
        return x.with_local(self.drop_padding(local), ulysses=Shard(_ROWS))

    def take_heads(self, prompt: QKV) -> QKV:
        """Cut what every member has whole to ulysses=Shard(1): this member's heads of it."""
        if self.group.size == 1:
            return prompt
        for name, x in zip("qkv", prompt, strict=True):
            x.require(f"ulysses' prompt {name}", ulysses=Replicate())
        mine = (self.pad(x.local).chunk(self.group.size, _HEADS)[self.group.index].contiguous() for x in prompt)
        q, k, v = (x.with_local(local, ulysses=Shard(_HEADS)) for x, local in zip(prompt, mine, strict=True))
        return q, k, v

    def gather_heads(self, x: MeshTensor) -> MeshTensor:
        """Gather ulysses=Shard(1), padded heads: every member gets the same rows, all heads, the padding dropped."""
        if self.group.size == 1:
            return x
        x.require("ulysses' answer for the prompt", ulysses=Shard(_HEADS))
        if x.shape[_ROWS]:
            local = all_gather(self.device, x.local.contiguous(), self.group, dim=_HEADS)
        else:
            local = x.local.new_empty(x.shape[0], self.heads, *x.shape[_ROWS:])  # a prompt that asks nothing
        return x.with_local(self.drop_padding(local), ulysses=Replicate())

    def to_streams(self, answers: Answers) -> Answers:
        """Return both answers as their queries were laid out before the exchange."""
        rows, rear = answers
        return self.to_tokens(rows), None if rear is None else self.gather_heads(rear)

    def valid(self, of_shard: KeyRanges, rows: int) -> KeyRanges:
        """Return the keys that a member of the ring holds: shards of ``rows`` rows, one per member of ulysses."""
        u = self.group.size

        def merged(shard: int) -> Keys:
            # shard r * u + j is member j's of the row that is number r of the ring
            parts = [of_shard(shard * u + j) for j in range(u)]
            if isinstance(parts[0], Tensor):
                return torch.cat(parts, 1)
            return [(j * rows + a, j * rows + b) for j, ranges in enumerate(parts) for a, b in ranges]

        return merged

    def pad(self, x: Tensor) -> Tensor:
        """Add heads of zeros behind the real ones, so that every member gets as many."""
        extra = exchanged_heads(self.heads, self.group.size) - self.heads
        return F.pad(x, (0, 0, 0, 0, 0, extra)) if extra else x

    def drop_padding(self, x: Tensor) -> Tensor:
        """Return the real heads."""
        return x[:, : self.heads]


def cannot_split_heads(heads: int, factor: int) -> str:
    """Return the sentence for heads that do not divide."""
    works = ", ".join(str(d) for d in range(1, heads + 1) if heads % d == 0)
    return (
        f"ulysses {factor} cannot split {heads} heads evenly; use a factor that divides them ({works}) "
        f"or let them be padded to {exchanged_heads(heads, factor)} (--pad-heads)."
    )
