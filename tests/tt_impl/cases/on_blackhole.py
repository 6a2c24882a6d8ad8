"""Elementwise operations that ttnn has for Blackhole only."""

from __future__ import annotations

import torch

from tests.tt_impl.env import Env, collect


def bounded_units(t: Env) -> None:
    ttnn, gate, up = t.ttnn, t.rand(1, 1, 32, 64, scale=3.0), t.rand(1, 1, 32, 64, scale=3.0)
    sigmoid = 1 / (1 + (-gate).exp())
    bounded = (2 / (1 + (-2 * gate / 3.0).exp()) - 1) * 3.0
    t.check(ttnn.softcap(t.put(gate), 3.0), bounded, ulps=2.0)
    t.check(ttnn.situ_glu(t.put(gate), t.put(up), 3.0, 2.0), bounded * sigmoid * 2 * torch.tanh(up / 2), ulps=4.0)
    low = torch.where(gate > 1.5, 1.5, gate)
    wanted = low / (1 + (-low).exp()) * torch.where(up > 1.5, 1.5, torch.where(up < -1.5, -1.5, up))
    t.check(ttnn.clamped_silu_glu(t.put(gate), t.put(up), 1.5), wanted, ulps=4.0)


CASES = collect(globals())
