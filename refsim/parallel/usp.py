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
from refsim.parallel.ring import ring_attention
from refsim.parallel.sequence import Range, TokenShards
from refsim.parallel.ulysses import Joint, ulysses_attention
from refsim.runtime.device import Device


def joint_attention(
    device: Device,
    spatial: tuple[Tensor, Tensor, Tensor],
    prompt: tuple[Tensor, Tensor, Tensor] | None,
    *,
    tokens: TokenShards,
    prompt_tokens: TokenShards | None = None,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Attention of image and prompt queries over image and prompt keys, over the device's sp group.

    Args:
        spatial: (q, k, v), each (B, H, local N, E): ``sp=Shard(2)``, heads local to the tp member.
        prompt: (q, k, v), each (B, H, L, E): ``sp=Replicate()``, or ``sp=Shard(2)`` where ``prompt_tokens`` is given.
            Its q may have no rows (a last block that drops the prompt).
        tokens: how the image tokens are cut; keys beyond ``tokens.logical_n`` are masked.
        prompt_tokens: how the prompt is cut, None if it is replicated.

    Returns:
        (out, prompt_out, lse): as the queries were laid out; lse (B, H, N + L) in fp32 if ``with_lse``.
    """
    q, k, v = spatial
    n = q.shape[2]
    valid: KeyRanges = tokens.valid
    joint: Joint | None = None
    if prompt is not None and prompt_tokens is not None:
        q, k, v = (torch.cat(pair, 2) for pair in zip(spatial, prompt, strict=True))
        valid = _both(tokens, prompt_tokens)
        if prompt[0].shape[2] == 0:
            # all rows must be equal over members for the exchange, so a silent prompt still brings its (zero) rows
            q = torch.cat([spatial[0], torch.zeros_like(prompt[1])], 2)
    elif prompt is not None:
        joint = prompt

    def ring(q: Tensor, k: Tensor, v: Tensor, joint: Joint | None, valid: KeyRanges) -> tuple[Tensor, Tensor]:
        return ring_attention(
            device,
            q if joint is None else torch.cat([q, joint[0]], 2),
            k,
            v,
            group=device.groups["ring"],
            valid=valid,
            rear=joint[1:] if joint is not None else None,
        )

    out, lse = ulysses_attention(
        device,
        q,
        k,
        v,
        joint,
        group=device.groups["ulysses"],
        valid=valid,
        inner=ring,
        pad_heads=device.options.pad_heads,
        with_lse=with_lse,
    )
    prompt_rows = prompt[0].shape[2] if prompt is not None else 0
    prompt_out = out[:, :, n : n + prompt_rows] if prompt is not None else None
    return out[:, :, :n], prompt_out, lse


def _both(tokens: TokenShards, prompt_tokens: TokenShards) -> KeyRanges:
    def valid(shard: int) -> list[Range]:
        n = tokens.local_n
        return tokens.valid(shard) + [(n + a, n + b) for a, b in prompt_tokens.valid(shard)]

    return valid
