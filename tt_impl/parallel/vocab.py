"""The vocabulary cut over tp: every device has the logits of its own tokens, and all agree on the best one.

    logits     tokens 0..V/n-1       tokens V/n..2V/n-1     ...        column-parallel head, no communication
    best       (value, token)        (value, token)                    token = own index + the shard's first token
                     |_____ all_gather of two numbers per row ______|
    argmax     the largest value; of equal ones the smallest token

Tokens that only pad the last shard have zero weights and so the logit 0, which may be the largest: they are pushed out
of the race. Tokens are numbers in fp32, exact up to 2^24.
"""

from __future__ import annotations

import torch
import ttnn

from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features

_NEVER = -1e30
_NO_TOKEN = float(1 << 24)


class VocabArgmax:
    """Logits (1, 1, N, V / tp) -> (1, 1, N, 1) in fp32, the same on every device."""

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        self._ctx = ctx
        local = padded_features(vocab_size, ctx.tp) // ctx.tp
        token = torch.arange(local * ctx.tp)
        self._padding = ctx.put(((token >= vocab_size) * _NEVER)[None, None, None], tp_dim=3)
        self._first = ctx.put(self.first_tokens(local)[None, None, None], tp_dim=3, dtype=ttnn.float32)

    def first_tokens(self, local: int) -> torch.Tensor:
        """(tp,): the first token of every device's shard."""
        return torch.arange(self._ctx.tp).float() * local

    def __call__(self, logits: ttnn.Tensor) -> ttnn.Tensor:
        ctx = self._ctx
        logits = ttnn.add(logits, self._padding)
        value = ttnn.typecast(ttnn.max(logits, dim=3, keepdim=True), ttnn.float32)
        index = ttnn.to_layout(ttnn.argmax(logits, dim=3, keepdim=True), ttnn.TILE_LAYOUT)
        token = ttnn.add(ttnn.typecast(index, ttnn.float32), self._first)
        if ctx.tp == 1:
            return token
        both = ctx.ccl.all_gather(ttnn.concat([value, token], dim=3), dim=1, axis=ctx.tp_axis)
        value = both[:, :, :, 0:1]
        token = both[:, :, :, 1:2]
        wins = ttnn.eq(value, ttnn.max(value, dim=1, keepdim=True))
        return ttnn.min(ttnn.where(wins, token, _NO_TOKEN), dim=1, keepdim=True)
