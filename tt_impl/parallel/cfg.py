"""Classifier-free guidance on devices; counterpart of ``refsim.parallel.cfg``.

    CFG parallel   submesh 0: prediction for the negative prompt --.
                                                                     host: both --> every submesh --> guide
                   submesh 1: prediction for the positive prompt --'

    CFG fusion     one mesh: [negative | positive] as one batch --> guide, no communication

A submesh has an allocator of its own and no collective reaches beyond it, so its half of the batch goes by the host,
once a step; every submesh ends with the same batch, and takes the same step of the scheduler.

Bytes: per step each submesh's half once to the host, and the whole batch once to every submesh.
"""

from __future__ import annotations

import torch
import ttnn

from tt_impl.parallel.context import Context


def gather_batch(groups: list[Context], predictions: list[ttnn.Tensor]) -> list[ttnn.Tensor]:
    """Join the predictions of all cfg groups, (B, 1, local N, C) cut over sp, into one batch on each, negative first.

    All are under way before the first is read.
    """
    if len(groups) == 1:
        return predictions
    halves = [ctx.get(x, sp_dim=2) for ctx, x in zip(groups, predictions, strict=True)]
    whole = torch.cat(halves)
    return [ctx.put(whole, sp_dim=2, dtype=x.dtype) for ctx, x in zip(groups, predictions, strict=True)]


def guide(sample: ttnn.Tensor, scale: float) -> ttnn.Tensor:
    """``uncond + scale * (cond - uncond)`` of a batch [uncond ..., cond ...], in its dtype."""
    half = sample.shape[0] // 2
    uncond = sample[0:half]
    cond = sample[half : 2 * half]
    return ttnn.add(uncond, ttnn.multiply(ttnn.subtract(cond, uncond), scale))
