"""Properties of routers and of deformable attention, token by token and pixel by pixel."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, each, only, spread


def _gate(scores: list[float], bias: list[float], groups: int, per_group: int) -> tuple[list[int], list[float]]:
    """Ids by falling score plus bias, among the four groups whose best experts are worth most together, and weights."""
    own = [1 / (1 + math.exp(-x)) for x in scores]
    biased = [a + b for a, b in zip(own, bias, strict=True)]
    size = len(own) // groups
    members = [range(g * size, (g + 1) * size) for g in range(groups)]
    worth = [sum(sorted((biased[e] for e in group), reverse=True)[:per_group]) for group in members]
    best = sorted(range(groups), key=lambda g: -worth[g])[:4] if groups > 1 else [0]
    ids = sorted((e for g in best for e in members[g]), key=lambda e: -biased[e])[:8]
    total = sum(own[e] for e in ids)
    return ids, [own[e] / total for e in ids]


@drawn(4, scale=st.sampled_from([1.0, 2.5]), prefill=st.booleans(), groups=st.sampled_from([8, 1]))
def gates(t: Env, scale: float, prefill: bool, groups: int) -> None:
    """Distinct scores, so that no two experts tie."""
    only(prefill or groups == 8)
    tokens, experts = 4, 256
    order = torch.stack([torch.randperm(experts, generator=t.random) for _ in range(2 * tokens)])
    scores, bias = ((order - 128) / 64).reshape(2, 1, 1, tokens, experts).float()
    experimental = t.ttnn.experimental
    gate = experimental.deepseek_prefill.moe_grouped_topk if prefill else experimental.deepseek_grouped_gate
    held = [t.put(x) for x in (scores, bias)]
    weights, ids = gate(*held, n_groups=groups, route_scale=scale, **({"stable_sort": True} if prefill else {}))
    for found, chosen in zip(t.shadow.values(weights), t.shadow.values(ids), strict=True):
        for token in range(tokens):
            wanted_ids, wanted = _gate(scores[0, 0, token].tolist(), bias[0, 0, token].tolist(), groups, 2)
            assert sorted(chosen[0, 0, token].tolist()) == sorted(wanted_ids)
            by_id = dict(zip(wanted_ids, wanted, strict=True))
            expected = torch.tensor([scale * by_id[e] for e in chosen[0, 0, token].tolist()])
            torch.testing.assert_close(found[0, 0, token], expected, rtol=2**-7, atol=0.0)


def router(t: Env) -> None:
    """The linear layer, its four largest, their softmax."""
    x, w, b = t.rand(32, 2880), t.rand(2880, 128, scale=0.1), t.rand(1, 128).repeat(32, 1)
    ids, weights = t.ttnn.experimental.topk_router_gpt(
        t.put(x), weight_tensor=t.put(w), bias_tensor=t.put(b), k=4, num_experts=128
    )
    logits = x.double() @ w.double() + b.double()
    order = logits.argsort(-1, descending=True)[:, :4]
    t.check(ids, order)
    e = torch.exp(logits.gather(1, order) - logits.amax(1, keepdim=True))
    t.check(weights, (e / e.sum(1, keepdim=True)).float(), ulps=2)


def reduced_and_cut(t: Env) -> None:
    x, xs = spread(t, 8, 1, 32, 512)
    parts = t.ttnn.experimental.deepseek_moe_fast_reduce_nc(x, 0, split_size=256)
    for i, part in enumerate(parts):
        t.check(part, each(lambda x, i=i: torch.einsum("etsd->tsd", x)[None, ..., 256 * i : 256 * i + 256], xs), ulps=2)


def _sample(image: Tensor, x: float, y: float) -> Tensor:
    """[H, W, D] between four pixels, which are zero outside."""
    height, width, size = image.shape
    left, top, out = math.floor(x), math.floor(y), torch.zeros(size)
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < height and 0 <= column < width:
                out += image[row, column] * (1 - abs(x - column)) * (1 - abs(y - row))
    return out


@drawn(2, corners=st.booleans())
def deformable(t: Env, corners: bool) -> None:
    images, side, size, queries, points = 2, 6, 32, 4, 4
    value, attn = t.rand(images, side, side, size), t.rand(images, queries, points).abs()
    grid = t.rand(images, queries * points, 1, 2).clamp(-1.5, 1.5)
    held = [t.put(x, layout="ROW_MAJOR") for x in (value, grid, attn)]
    out = t.ttnn.experimental.multi_scale_deformable_attn(*held, align_corners=corners)
    wanted = torch.zeros(images, queries, size)
    for n in range(images):
        for q in range(queries):
            for p in range(points):
                place = grid[n, q * points + p, 0]
                x, y = ((place + 1) * (side - 1) / 2 if corners else (place + 1) * side / 2 - 0.5).tolist()
                wanted[n, q] += attn[n, q, p] * _sample(value[n], x, y)
    t.check(out, wanted, ulps=2)


CASES = collect(globals())
