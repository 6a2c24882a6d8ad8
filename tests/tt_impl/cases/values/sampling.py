"""Sampling of tokens: what may be chosen, how often, and what seeds repeat."""

from __future__ import annotations

from typing import Any

import torch

from tests.tt_impl.env import Env, collect

USERS, WIDTH = 32, 64


def _inputs(t: Env, k: list[int], p: list[float], temp: float = 1.0) -> tuple[torch.Tensor, dict[str, Any]]:
    """Logits, and the arguments of a call with them; an index is 1000 and a place."""
    row_major: dict[str, Any] = {"layout": "ROW_MAJOR"}
    values = t.rand(1, 1, USERS, WIDTH).argsort(dim=-1) / 8.0  # no two of a user are equal
    indices = (torch.arange(WIDTH, dtype=torch.int32) + 1000).expand(1, 1, USERS, WIDTH).contiguous()
    return values, {
        "input_values_tensor": t.put(values),
        "input_indices_tensor": t.put(indices, dtype="int32", **row_major),
        "k": t.put(torch.tensor(k * (USERS // len(k)), dtype=torch.int32), dtype="uint32", **row_major),
        "p": t.put(torch.tensor(p * (USERS // len(p))), **row_major),
        "temp": t.put(torch.full((USERS,), temp), **row_major),
    }


def _sampled(t: Env, arguments: dict[str, Any], **options: Any) -> torch.Tensor:
    values = t.shadow.values(t.ttnn.sampling(**arguments, **options))
    assert all(value.equal(values[0]) for value in values)
    return values[0].flatten() - 1000


def sampling_of_one(t: Env) -> None:
    """With p = 0, or k = 1, the largest remains."""
    for k, p in (([32], [0.0]), ([1], [0.9])):
        values, arguments = _inputs(t, k, p)
        assert _sampled(t, arguments, seed=3).equal(values[0, 0].argmax(dim=-1))


def sampling_keeps_k_and_p(t: Env) -> None:
    """No choice lies outside of what k and p leave, by torch's own softmax, and all of it is chosen some time."""
    k, p = [5, 3, 32, 10], [0.6, 1.0, 0.2, 0.5]
    values, arguments = _inputs(t, k, p)
    seen = torch.stack([_sampled(t, arguments, seed=seed) for seed in range(1, 41)])
    for user in range(USERS):
        top, places = values[0, 0, user].topk(k[user % 4])
        before = top.softmax(dim=-1).cumsum(dim=-1) - top.softmax(dim=-1)
        allowed = set(places[before <= p[user % 4] + 0.01].tolist())
        assert set(seen[:, user].tolist()) <= allowed
        assert len(allowed) == 1 or len(seen[:, user].unique()) > 1


def sampling_knows_no_more_candidates(t: Env) -> None:
    """All 64 are as likely by ``k`` and ``temp``, but no more than the 32 largest are sorted."""
    values, arguments = _inputs(t, [WIDTH], [1.0], 0.001)
    largest = values[0, 0].topk(32).values[:, -1]
    last = False
    for _ in range(8):
        chosen = values[0, 0].gather(1, _sampled(t, arguments)[:, None])[:, 0]
        assert bool((chosen >= largest).all())
        last |= bool((chosen == largest).any())
    assert last


def sampling_temperature(t: Env) -> None:
    """``temp`` multiplies: a large one leaves the largest, a small one makes all of k as likely."""
    values, cold = _inputs(t, [4], [1.0], 100.0)
    hot = cold | {"temp": t.put(torch.full((USERS,), 0.001), layout="ROW_MAJOR")}
    place = values[0, 0].topk(4).indices
    found = torch.stack([_sampled(t, hot, seed=seed) for seed in range(1, 101)])
    shares = (found[:, :, None] == place).float().mean(dim=0)
    assert shares.min() > 0.05 and shares.max() < 0.6
    halves = hot | {"p": t.put(torch.full((USERS,), 0.4), layout="ROW_MAJOR")}  # two of four exceed it
    found = torch.stack([_sampled(t, halves, seed=seed) for seed in range(1, 31)])
    shares = (found[:, :, None] == place).float().mean(dim=0)
    assert bool((shares[:, 2:] == 0).all()) and 0.3 < shares[:, :2].min() <= shares[:, :2].max() < 0.7
    clear = (values[0, 0].topk(2).values.diff().abs() > 0.1).flatten()
    assert _sampled(t, cold, seed=1)[clear].equal(values[0, 0].argmax(dim=-1)[clear])


def manual_seed_repeats(t: Env) -> None:
    ttnn = t.ttnn
    _, arguments = _inputs(t, [32], [1.0])
    device: dict[str, Any] = {"device": t.device}
    ttnn.manual_seed(42, **device)
    first = _sampled(t, arguments)
    assert _sampled(t, arguments, seed=42).equal(_sampled(t, arguments, seed=42))
    assert not _sampled(t, arguments).equal(first)  # without a seed the generator goes on
    ttnn.manual_seed(seeds=42, **device)
    ttnn.manual_seed(seeds=2**32 - 1, **device)  # leaves it as it is
    assert _sampled(t, arguments).equal(first)
    changed = set()
    for seed in range(7, 13):
        ttnn.manual_seed(seeds=42, **device)
        ttnn.manual_seed(seeds=seed, user_ids=5, **device)
        changed |= set((_sampled(t, arguments) != first).nonzero().flatten().tolist())
    assert changed == {5}
    row_major: dict[str, Any] = {"layout": "ROW_MAJOR", "dtype": "uint32"}
    users = t.put(torch.arange(USERS, dtype=torch.int32), **row_major)
    seeds = t.put(torch.arange(1, USERS + 1, dtype=torch.int32), **row_major)
    again = []
    for _ in range(2):
        ttnn.manual_seed(seeds=seeds, user_ids=users)
        again.append(_sampled(t, arguments))
    assert again[0].equal(again[1])


def seeded_in_a_trace(t: Env) -> None:
    """Seeds are given in the trace that samples with them; a replay gives what was sampled then."""
    ttnn = t.ttnn
    _, arguments = _inputs(t, [32], [1.0])
    users = t.put(torch.arange(USERS, dtype=torch.int32), layout="ROW_MAJOR", dtype="uint32")
    ttnn.manual_seed(seeds=users, user_ids=users)
    eager = _sampled(t, arguments)
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    ttnn.manual_seed(seeds=users, user_ids=users)
    out = ttnn.sampling(**arguments)
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    ttnn.execute_trace(t.device, trace, cq_id=0, blocking=True)
    assert (t.shadow.values(out)[0].flatten() - 1000).equal(eager)


CASES = collect(globals())
