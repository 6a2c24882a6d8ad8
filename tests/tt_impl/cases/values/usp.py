"""Attention over sp on a 2x4 mesh against torch on whole sequences: ring, Ulysses and both, heads that do not divide,
the prompt on every device or split."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect, raises

USP = {"parallel": "sp8", "attention": "usp", "ring": 2, "ulysses": 4}
ULYSSES = {"parallel": "sp4_tp2", "attention": "ulysses"}
RING = {"parallel": "sp2_tp4"}
N, L, HEADS = 201, 141, 3
LOUD = 6.0
"""What rows of padding hold, so that a single one that is not masked shows."""


def _context(t: Env, given: dict[str, Any], **more: Any) -> Any:
    from tt_impl.parallel.context import Context

    return Context(t.device, RunOptions.of(mesh=t.mesh.spec, backend="ttnn-mock", **given, **more))


def _attend(t: Env, given: dict[str, Any], prompt_layout: str, text: int = L, **more: Any) -> None:
    """Both streams' answers of the real heads and rows; ``more`` goes to ``joint_attention``."""
    from tt_impl.parallel.padding import padded_heads, padded_tokens
    from tt_impl.parallel.sequence import split_length
    from tt_impl.parallel.usp import joint_attention

    ctx = _context(t, given, prompt_layout=prompt_layout)
    split = ctx.options.splits_prompt
    heads = padded_heads(HEADS, ctx.tp * ctx.ulysses) - HEADS

    def put(x: Tensor, *, cut: bool) -> Any:
        rows = padded_tokens(x.shape[2], ctx.sp) - x.shape[2] if cut else 0
        loud = F.pad(x, (0, 0, 0, rows), value=LOUD)
        return ctx.put(F.pad(loud, (0, 0, 0, 0, 0, heads)), sp_dim=2 if cut else None, tp_dim=1)

    image, prompt = ([t.rand(1, HEADS, rows, 64) for _ in "qkv"] for rows in (N, text))
    streams = [put(x, cut=True) for x in image], [put(x, cut=split) for x in prompt]
    out, prompt_out = joint_attention(ctx, *streams, logical_n=N, logical_l=split_length(ctx, text), **more)
    wanted = F.scaled_dot_product_attention(*(torch.cat(pair, 2) for pair in zip(image, prompt, strict=True)))
    _same(ctx, out, wanted[:, :, :N], cut=True)
    if not more:
        _same(ctx, prompt_out, wanted[:, :, N:], cut=split)


def _same(ctx: Any, out: Any, wanted: Tensor, *, cut: bool) -> None:
    """Every device's rows and real heads, those of tp's members side by side."""
    whole = ctx.ccl.all_gather(out, dim=1, axis=ctx.tp_axis) if ctx.tp > 1 else out
    found = (ctx.get(whole, sp_dim=2) if cut else ctx.get_equal(whole))[:, : wanted.shape[1], : wanted.shape[2]]
    torch.testing.assert_close(found.float(), wanted, rtol=0.0, atol=0.02)


def usp_prompt_on_every_device(t: Env) -> None:
    """Three heads on four devices of Ulysses."""
    _attend(t, USP, "replicated")


def usp_split_prompt(t: Env) -> None:
    """141 prompt tokens in eight shards of 32: the fifth holds 13, the rest padding only."""
    _attend(t, USP, "split")


def usp_split_prompt_that_asks_nothing(t: Env) -> None:
    _attend(t, USP, "split", drop_prompt=True)


def ulysses_inside_tp(t: Env) -> None:
    """Three heads become eight: one head a device of the first tp member but its last, none in the second."""
    _attend(t, ULYSSES, "replicated")
    _attend(t, ULYSSES, "split")
    _attend(t, ULYSSES, "split", text=5)


def ring_inside_tp(t: Env) -> None:
    _attend(t, RING, "replicated")
    _attend(t, RING, "split")


def a_prompt_on_one_device_of_the_ring(t: Env) -> None:
    """ttnn would take it for a replicated one, and attend to its padding."""
    advice = "use prompt_layout replicated"
    raises(UserError, lambda: _attend(t, RING, "split", text=29), "a prompt of 29 tokens in shards of 32 ", advice)
    raises(UserError, lambda: _attend(t, USP, "split", text=128), "a prompt of 128 tokens in shards of 128 ", advice)


def heads_that_may_not_be_padded(t: Env) -> None:
    from tt_impl.layers.linear import AttentionSizes

    ctx = _context(t, ULYSSES, pad_heads=False)
    assert AttentionSizes(512, 8, 64).padded(ctx) == 512
    says = "tp 2 x ulysses 4 cannot split 3 heads evenly; allow padding to 8 with pad_heads."
    raises(UserError, lambda: AttentionSizes(192, 3, 64).padded(ctx), says)


CASES = collect(globals())
