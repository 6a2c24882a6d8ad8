"""USP: Ulysses inside, ring outside, over a 2-D attention group; ring or Ulysses alone are its borders.

    ring 2 x ulysses 4, sequence shard r*4+u on member (r, u)

                 ulysses 0..3 ->
    ring 0   |   s0  s1  s2  s3     all_to_all along the row: (r, u) holds s[4r .. 4r+3], heads of u
    ring 1   |   s4  s5  s6  s7     ring along the column: K, V of the heads of u travel between r = 0 and 1
             v                      all_to_all along the row: back to s[4r+u], all heads

The group is both axes of the submesh, or one axis of which each run of ``ulysses`` neighbours is a row. Inside TP
groups the same happens with each device's own heads.

The prompt is replicated (taken by head in Ulysses, attended once at the rear of the ring, never rotated) or split
over the group like the image (then its rows travel with the image rows of the same member).

Bytes sent per member: Ulysses' formula over the row plus ring's formula over the column with B = bytes of its K and V
after the exchange (ulysses times the rows, 1/ulysses of the heads: the same as before it).

Source: USP (arXiv 2405.07719).
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.parallel.kv_ring import KeyRanges
from refsim.parallel.ring import QKV, Answers, require, ring_attention
from refsim.parallel.sequence import Keys, TokenShards
from refsim.parallel.ulysses import ulysses
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, shards


def joint_attention(
    device: Device,
    spatial: QKV,
    prompt: QKV | None,
    *,
    tokens: TokenShards,
    prompt_tokens: TokenShards | None = None,
    prompt_mask: Tensor | None = None,
    with_lse: bool = False,
    asked: KeyRanges | None = None,
) -> tuple[MeshTensor, MeshTensor | None, Answers | None]:
    """Attend with image and prompt queries to image and prompt keys, over the device's sp group.

    Args:
        spatial: (q, k, v), each (B, H, local N, E): tp=Shard(1), sp=Shard(2).
        prompt: (q, k, v), each (B, H, L, E): tp=Shard(1), sp=Replicate, or sp=Shard(2) where ``prompt_tokens`` is
            given. Its q may have no rows (a last block that drops the prompt).
        tokens: how the image tokens are cut; keys beyond ``tokens.logical_n`` are masked.
        prompt_tokens: how the prompt is cut, None if it is replicated.
        prompt_mask: bool (B, all L), which prompt tokens are keys of which sample, in any pattern, the same on every
            device; None for all. What a masked token's query gets is of no use.
        asked: the rows of a shard whose queries want an answer where there is no prompt, see ``ring_attention``.

    Returns:
        (out, prompt_out, lses): as the queries were laid out; with ``with_lse`` the log-sum-exp of both streams, each
        (B, H, rows, 1) in fp32. Moving it costs another 1/E of out's bytes (in fp32), so only who asks gets it.

    Raises:
        PlacementError: a tensor is laid out differently.
        UserError: Ulysses cannot split the heads.
    """
    heads = shards(device.groups, tp=1)
    rows = shards(device.groups, sp=2)
    require("joint_attention's", spatial, **heads, **rows)
    if prompt is not None:
        require("joint_attention's prompt", prompt, **heads, **(rows if prompt_tokens else {"sp": Replicate()}))
    qkv = spatial
    valid = tokens.valid
    rear = prompt
    mask = None if prompt_mask is None or prompt_mask.is_meta or prompt_mask.all() else prompt_mask
    if prompt is not None and prompt_tokens is not None:
        qkv = _one_stream(spatial, prompt)
        valid = _both(tokens, prompt_tokens, mask)
        rear = None

    with ulysses(device, qkv[0].shape[1]) as exchange:
        outs, lses = ring_attention(
            device,
            exchange.to_heads(qkv),
            None if rear is None else exchange.take_heads(rear),
            valid=exchange.valid(valid, qkv[0].shape[2]),
            rear_mask=None if rear is None else mask,
            asked=None if asked is None or prompt is not None else exchange.valid(asked, qkv[0].shape[2]),
        )
        outs = exchange.to_streams(outs)
        lses = exchange.to_streams(lses) if with_lse else None
    if prompt is not None and prompt_tokens is not None:
        outs = _two_streams(outs, spatial, prompt)
        lses = lses and _two_streams(lses, spatial, prompt)
    return *outs, lses


def _one_stream(spatial: QKV, prompt: QKV) -> QKV:
    """Put the rows of a split prompt behind the image rows of the same member."""
    q, k, v = (x.with_local(torch.cat([x.local, y.local], 2)) for x, y in zip(spatial, prompt, strict=True))
    if prompt[0].shape[2] == 0:
        # all rows must be equal over members for the exchange, so a silent prompt still brings its (zero) rows
        q = q.with_local(torch.cat([q.local, torch.zeros_like(prompt[1].local)], 2))
    return q, k, v


def _two_streams(answers: Answers, spatial: QKV, prompt: QKV) -> Answers:
    """Take apart the answers that ``_one_stream`` has made one; a silent prompt gets no rows."""
    rows, _ = answers
    n = spatial[0].shape[2]
    both = rows.local[:, :, : n + prompt[0].shape[2]]
    return rows.with_local(both[:, :, :n]), rows.with_local(both[:, :, n:])


def _both(tokens: TokenShards, prompt_tokens: TokenShards, mask: Tensor | None) -> KeyRanges:
    """Return the keys of a shard of image rows with the rows of a split prompt behind them."""

    def valid(shard: int) -> Keys:
        n = tokens.local_n
        if mask is None:
            return tokens.valid(shard) + [(n + a, n + b) for a, b in prompt_tokens.valid(shard)]
        image = torch.zeros(len(mask), n, dtype=torch.bool)
        for a, b in tokens.valid(shard):
            image[:, a:b] = True
        return torch.cat([image, prompt_tokens.cut(mask, shard, dim=1)], 1)

    return valid
