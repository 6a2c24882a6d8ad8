"""The vocabulary cut over tp: every member has the logits of its own tokens, and all agree on the best one.

    logits     tokens 0..V/n-1       tokens V/n..2V/n-1     ...        column-parallel head, no communication
    best       (value, token)        (value, token)                    token = own index + the shard's first token
                     |_____ all_gather of three numbers per row _____|
    argmax     the largest value; of equal ones the smallest token, as one device would say

Tokens that only pad the last shard have zero weights and so the logit 0, which may be the largest: they are left out.
The third number is the second best value, for the margin by which the best one won.

Bytes: one all_gather of three fp32 per row, whatever the size of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.ccl import all_gather
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, shards

MAX_VOCAB = 1 << 24
"""Beyond it fp32 does not tell neighbouring tokens apart."""


def vocab_argmax(device: Device, logits: MeshTensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the best token (...) in int64 of logits (..., V / tp), tp=Shard(-1), and its margin."""
    tp = device.groups["tp"]
    logits.require("vocab_argmax", **shards(device.groups, tp=logits.local.ndim - 1))
    start, stop = shard_range(padded_features(vocab_size, tp.size), tp)
    real = logits.local[..., : max(0, min(stop, vocab_size) - start)].float()
    with device.compute("argmax", logits.local):
        mine = best_two(real, start)
    everyone = all_gather(device, mine, tp, dim=-1).unflatten(-1, (tp.size, 3))
    values, tokens, seconds = everyone.unbind(-1)
    best, owner = values.max(-1)
    token = tokens.gather(-1, owner.unsqueeze(-1)).squeeze(-1)
    rest = values.scatter(-1, owner.unsqueeze(-1), float("-inf"))
    second = torch.maximum(rest.amax(-1), seconds.gather(-1, owner.unsqueeze(-1)).squeeze(-1))
    return token.long(), best - second


def best_two(logits: Tensor, first_token: int) -> Tensor:
    """Return (..., 3): the best value, its token, the second best value; minus infinity where there is none."""
    nothing = logits.new_full((*logits.shape[:-1], 1), float("-inf"))
    # a column of nothing behind, so that there always is a best, and a second beside a single one
    value, index = torch.cat([logits, nothing], -1).max(-1, keepdim=True)
    rest = torch.cat([logits, nothing], -1).scatter(-1, index, float("-inf"))
    return torch.cat([value, (index + first_token).float(), rest.amax(-1, keepdim=True)], -1)
