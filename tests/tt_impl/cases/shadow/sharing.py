"""What devices share is computed once, and attention never lays its scores out whole."""

from __future__ import annotations

import resource

import torch
from torch import Tensor

from tests.tt_impl.cases.shadow.numerics import _rounds
from tests.tt_impl.cases.values.attention import _ring, sdpa
from tests.tt_impl.env import Dims, Env, collect

MEBIBYTE = 2**20


def _evaluated(t: Env, operation: str) -> int:
    """How often the rule of ``ttnn.<operation>`` computed since the last time this was asked."""
    return t.shadow.evaluations.pop(f"ttnn.{operation}", 0)


def replicas(t: Env) -> None:
    """One evaluation per distinct part, from the host through operations and back from a sum over the mesh."""
    ttnn, x, w = t.ttnn, t.rand(1, 1, 64, 256), t.rand(256, 512)
    rows, columns = t.shape
    cuts: list[tuple[Dims, int]] = [((None, None), 1), ((2, None), rows), ((None, 2), columns)]
    for dims, parts in cuts:
        weight = t.put(w)
        out = ttnn.linear(t.put(x, dims), weight)
        ttnn.gelu(out)
        assert [_evaluated(t, name) for name in ("linear", "gelu")] == [parts, parts], dims
    partial = ttnn.linear(t.put(x, (None, 3)), t.put(w, (None, 0)), dtype=ttnn.float32)
    total = ttnn.all_reduce(partial, cluster_axis=1)
    assert _evaluated(t, "linear") == columns
    ttnn.gelu(total)
    assert _evaluated(t, "gelu") == 1
    t.check(total, x @ w, ulps=16)
    ttnn.gelu(ttnn.mesh_partition(total, 3, 0))
    assert _evaluated(t, "gelu") == rows


def replicas_through_the_host(t: Env) -> None:
    """Replicas are computed once after a way over the host; zeros of another sign are another value."""
    ttnn, value = t.ttnn, t.rand(1, 1, 32, 64)
    on_host = ttnn.from_device(t.put(value))
    back = ttnn.to_device(on_host, t.device)
    ttnn.gelu(back)
    assert _evaluated(t, "gelu") == 1
    t.check(back, value)
    signs = torch.zeros(t.n, 1, 32, 64, dtype=torch.bfloat16)
    signs[1::2] *= -1.0
    of_signs = ttnn.to_device(ttnn.from_device(t.put(signs.view(*t.shape, 32, 64), (0, 1))), t.device)
    ttnn.reciprocal(of_signs)
    assert _evaluated(t, "reciprocal") == 2


def gathered_and_scattered(t: Env) -> None:
    """Groups along one axis differ here: a gathered tensor is one per group, a scattered one differs everywhere."""
    ttnn, (rows, columns) = t.ttnn, t.shape
    x = t.put(t.rand(1, rows, 256, 256), (1, 3))
    ttnn.gelu(ttnn.all_gather(x, 3, cluster_axis=1))
    assert _evaluated(t, "gelu") == rows
    ttnn.gelu(ttnn.reduce_scatter(x, 3, cluster_axis=0))
    assert _evaluated(t, "gelu") == rows * columns


def ring(t: Env) -> None:
    """Heads cut over axis 0, tokens over the ring on axis 1: the joint rows are the same on all of a ring."""
    rows, columns = t.shape
    spatial, prompt = [t.rand(1, 4, 256, 64) for _ in range(3)], [t.rand(1, 4, 32, 64) for _ in range(3)]
    t.shadow.evaluations.clear()
    (_, rear, _), _ = _ring(t, spatial, [t.put(x, (1, None)) for x in prompt], 256)
    joint = rows
    wanted = rows * columns + joint
    assert _evaluated(t, "transformer.ring_joint_scaled_dot_product_attention") == wanted
    t.ttnn.gelu(rear)
    assert _evaluated(t, "gelu") == joint


def same_values_apart(t: Env) -> None:
    """Replicas stay right when one of two inputs differs between them."""
    a, b = t.rand(1, 1, 32, 64), t.rand(1, 1, 64, 64)
    out = t.ttnn.add(t.put(a), t.put(b, (2, None)))
    t.check(out, [a + part for part in t.shards(b, (2, None))])
    assert _evaluated(t, "add") == t.shape[0]


def repeated_calls(t: Env) -> None:
    """A call whose output holds what it would write is not computed again; one that would write anything else is."""
    ttnn, first, second = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    x, y, out = t.put(first), t.put(second), t.put(torch.zeros(1, 1, 32, 64))
    t.shadow.evaluations.clear()
    for number, computed, wanted in (
        (2.0, 1, first * 2), (2.0, 0, first * 2), (3.0, 1, first * 3), (1, 1, first), (True, 1, first),
    ):  # fmt: skip
        ttnn.multiply(x, number, output_tensor=out)
        assert _evaluated(t, "multiply") == computed, number
        t.check(out, wanted)
    ttnn.add(x, y, output_tensor=out)
    t.check(out, first + second)
    ttnn.add(y, y, output_tensor=out)
    ttnn.add(x, y, output_tensor=out)
    assert _evaluated(t, "add") == 3
    t.check(out, first + second)
    ttnn.copy(y, x)
    ttnn.add(x, y, output_tensor=out)
    assert _evaluated(t, "add") == 1
    t.check(out, second + second)
    ttnn.add_(x, 1.0)
    ttnn.add_(x, 1.0)
    t.check(x, (second + 1).bfloat16().float() + 1)


def repeated_calls_with_another_config(t: Env) -> None:
    """With numerics an option that rounds otherwise counts, also one that was changed in the same config."""
    _rounds(t)
    ttnn, weight, out = t.ttnn, t.put(t.rand(64, 64)), t.put(torch.zeros(1, 1, 32, 64))
    x = t.put(t.rand(1, 1, 32, 64))
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4)
    results = []
    for fidelity in (ttnn.MathFidelity.HiFi4, ttnn.MathFidelity.LoFi, ttnn.MathFidelity.LoFi):
        config.math_fidelity = fidelity
        ttnn.matmul(x, weight, compute_kernel_config=config, optional_output_tensor=out)
        results.append(t.shadow.values(out)[0])
    assert not torch.equal(results[0], results[1]) and torch.equal(results[1], results[2])
    assert t.shadow.numerics.rounded["ttnn.matmul"] == 2


def repeated_replays(t: Env) -> None:
    """A trace that finds its inputs as its last replay did writes nothing anew, but where somebody wrote in between."""
    ttnn, first, second = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    x, y, kept = t.put(first), t.put(second), t.put(torch.zeros(1, 1, 32, 64))
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    out = ttnn.add(ttnn.multiply(x, 2.0), y)
    ttnn.multiply(x, 4.0, output_tensor=kept)
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    t.check(kept, torch.zeros(1, 1, 32, 64))
    for write, computed in (
        (lambda: None, [2, 1]),
        (lambda: None, [0, 0]),
        (lambda: ttnn.copy(x, kept), [1, 0]),
        (lambda: ttnn.copy(y, x), [2, 1]),
        (lambda: ttnn.copy(y, x), [2, 1]),
    ):
        write()
        t.shadow.evaluations.clear()
        ttnn.execute_trace(t.device, trace, cq_id=0, blocking=True)
        assert [_evaluated(t, name) for name in ("multiply", "add")] == computed
        value = t.shadow.values(x)[0]
        t.check(kept, value * 4)
        t.check(out, (value * 2).bfloat16().float() + second)


def scores_of_a_video(t: Env) -> None:
    """9,450 rows of 75,600 keys: the scores of one head alone would take 2.7 GiB."""
    from tt_impl.mock.rules.attention import attend

    q, k, v = (torch.randn(1, 1, rows, 32, generator=t.random) for rows in (9450, 75600, 75600))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = attend(q, k, v)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 256 * MEBIBYTE, f"{grown / MEBIBYTE:.0f} MiB"
    some = torch.randint(9450, (64,), generator=t.random)
    torch.testing.assert_close(out[:, :, some], _plain(q[:, :, some], k, v))
    narrow = attend(q[:, :, some], k, v[..., :8])
    torch.testing.assert_close(narrow, sdpa(q[:, :, some], k, v)[..., :8])


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


CASES = collect(globals())
