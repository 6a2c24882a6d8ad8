"""Rotation of neighbouring pairs, tokens cut over sp on axis 0 or whole on every device."""

from __future__ import annotations

import torch

from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect


def _turned(t: Env, rows: int, split: bool) -> None:
    from tt_impl.layers.rope import pair_rotary, rotate_pairs
    from tt_impl.parallel.context import Context

    ctx = Context(t.device, RunOptions.of(mesh=t.mesh.spec, parallel="sp2_tp4", backend="ttnn-mock"))
    x, angles = t.rand(2, 3, rows, 64), torch.rand(rows, 32, generator=t.random, dtype=torch.float64) * 900
    turn = torch.polar(torch.ones_like(angles), angles)
    wanted = torch.view_as_real(torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * turn).flatten(-2)
    out = rotate_pairs(ctx.put(x, sp_dim=2 if split else None), pair_rotary(ctx, angles, split=split))
    found = ctx.get(out, sp_dim=2) if split else ctx.get_equal(out)
    assert (found.double() - wanted).abs().max() < 2**-6 * x.abs().max()  # cos, sin and the result in bf16


def pairs_cut_over_sp(t: Env) -> None:
    _turned(t, 128, split=True)


def pairs_on_every_device(t: Env) -> None:
    """An odd number of rows, as a prompt may have."""
    _turned(t, 29, split=False)


CASES = collect(globals())
