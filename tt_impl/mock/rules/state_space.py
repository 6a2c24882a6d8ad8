"""Operations of state space models (Mamba).

Legend: L tokens, D columns: states of all channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tt_impl.mock.rules.registry import Call, across, per_device, table
from tt_impl.mock.storage.values import Shards

STATES = 32
"""States of a channel, side by side in the columns."""


@across("experimental.prefix_scan")
def prefix_scan(call: Call, a: Shards, bx: Shards, h_prev: Shards) -> list[Tensor]:
    """Compute h[t] = a[t] * h[t-1] + bx[t] for all tokens, [1, 1, L, D]; ``h_prev`` holds the last state then."""

    def scanned(a: Tensor, bx: Tensor, state: Tensor) -> Tensor:
        states = [state.reshape(-1)]
        for factor, added in zip(a[0, 0], bx[0, 0], strict=True):
            states.append(factor * states[-1] + added)
        return torch.stack(states[1:])[None, None]

    result = call.each(scanned, a, bx, h_prev)
    last = call.each(lambda states: states[:, :, -1].reshape(h_prev.shape), result)
    call.store.write(call.argument("h_prev", 2), last, call.name)
    return result


# over the states of every channel: [1, 1, L, D] -> [1, 1, L, D / 32]
table({"experimental.hc_sum_reduce": lambda input: input.unflatten(-1, (-1, STATES)).sum(-1)})


@per_device("experimental.repeat_and_interleave_eltwise_mul", with_call=True)
def repeat_and_interleave_eltwise_mul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``a`` [1, 1, L, 32], its states repeated for every channel, by ``b`` [1, 1, L, D / 32], channels spread.

    Either may come as [1, 1, L, D] already.
    """
    width = call.outputs[0].shape[-1]
    a = a if a.shape[-1] == width else a.repeat(1, 1, 1, width // a.shape[-1])
    return a * (b if b.shape[-1] == width else b.repeat_interleave(width // b.shape[-1], -1))
