"""What models of experts fuse around them: choices, tokens sent with their scores, and sums of what came back."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.cases.values.fused_heads import config, cores
from tests.tt_impl.env import Dims, Env, collect
from tests.tt_impl.properties import spread

FLAT = dict(layout="ROW_MAJOR")


def gathered_last_first(t: Env) -> None:
    x, parts = spread(t, 1, 1, 64, 128)
    out = t.ttnn.experimental.all_gather_async_reversed(
        x, dim=3, multi_device_global_semaphore=t.semaphores(2), num_links=1, topology=t.linear, cluster_axis=1,
        barrier_semaphore=t.semaphores(1)[0], memory_config=t.ttnn.DRAM_MEMORY_CONFIG,
    )  # fmt: skip
    wanted = list(parts)
    for group in t.groups(1):
        for device in group:
            wanted[device] = torch.cat([parts[other] for other in reversed(group)], 3)
    t.check(out, wanted)


def each_its_part_of_the_weights(t: Env) -> None:
    weights = torch.zeros(1, 32)
    used = torch.randperm(32, generator=t.random)[:8].sort().values
    weights[0, used] = t.rand(8).abs() + 0.5
    for axis in (0, 1):
        each = 8 // t.shape[axis]
        out = t.ttnn.moe_routing_remap(t.put(weights, **FLAT), 8, t.shape[axis], axis)
        wanted = []
        for device in range(t.n):
            place = divmod(device, t.shape[1])[axis]
            part = torch.zeros_like(weights)
            for expert in used[place * each : (place + 1) * each]:
                part[0, expert] = weights[0, expert]
            wanted.append(part)
        t.check(out, wanted)


def _sent(t: Env, shared: list[int]) -> None:
    """Send over the columns; of a row of the mesh every device learns which experts all of its tokens chose."""
    tokens, features, choices, experts = 8, 64, 4, 2 * t.n
    dims: Dims = (None, 0)
    x = t.rand(4 * tokens, 1, 1, features)
    chosen = torch.rand(4 * tokens, experts, generator=t.random).argsort(-1)[:, :choices].view(-1, 1, 1, choices)
    scores = t.rand(4 * tokens, 1, 1, choices)
    owners = (torch.arange(experts) // 2).repeat(t.n, 1)
    for device in range(t.n if shared else 0):
        owners[device, shared[0]] = device // 4 * 4  # of a shared expert each row of the mesh has one
    how = dict(shared_expert_ids=shared) if shared else {}
    out, ids, weights = t.ttnn.experimental.all_to_all_dispatch_metadata(
        t.put(x, dims, **FLAT), t.put(chosen.int(), dims, dtype="uint16", **FLAT), t.put(scores, dims, **FLAT),
        t.put(owners.int(), dtype="uint16", **FLAT), cluster_axis=1, num_links=1, drain_sync_tilizer_core=(0, 0),
        worker_mode=t.ttnn.WorkerMode.DIRECT,
        dispatch_algorithm=t.ttnn.DispatchAlgorithm.SPARSE_MCAST_SHORTEST_PATH, **how,
    )  # fmt: skip
    every = F.pad(chosen.view(1, -1, choices), (0, len(shared)), value=shared[0] if shared else 0)
    t.check(ids, every)
    t.check(weights, F.pad(scores.view(1, -1, choices), (0, len(shared)), value=1.0))
    wanted = []
    for device in range(t.n):
        rows = torch.full((1, 4 * tokens, features), float("nan"))
        for token in range(4 * tokens):
            sender = device // 4 * 4 + token // tokens
            if any(int(owners[sender, expert]) == device for expert in every[0, token].tolist()):
                rows[0, token] = x[token, 0, 0]
        wanted.append(rows)
    t.check(out, wanted)


def tokens_and_scores_sent(t: Env) -> None:
    _sent(t, [])


def tokens_sent_to_a_shared_expert(t: Env) -> None:
    _sent(t, [5])


def eight_of_256_experts(t: Env) -> None:
    """Two users, a core for each; numbers as the caller has them, so that they may begin anywhere."""
    ttnn = t.ttnn
    users = 2
    order = torch.stack([torch.randperm(256, generator=t.random) for _ in range(2 * users)]).float()
    logits, bias = ((order - 128) / 64).reshape(2, users, 16, 16)
    numbers = (torch.arange(256) + 1000).reshape(1, 16, 16).expand(users, -1, -1)
    one_each = cores(t, users, 1)

    def put(x: Tensor, dtype: str = "bfloat16") -> Any:
        return ttnn.to_memory_config(t.put(x, dtype=dtype), config(t, "HEIGHT", one_each, (32, 32)))

    def chosen(eps: float) -> list[torch.Tensor]:
        outputs = ttnn.experimental.deepseek.moe.deepseek_moe_gate(
            put(logits), bias_tensor=put(bias.mT), input_indices_tensor=put(numbers.mT.int(), "uint16"),
            output_tensor=put(torch.zeros(users, 1, 16)), eps=eps, scaling_factor=2.5, enable_sigmoid=True,
            output_indices_tensor=put(torch.zeros(users, 1, 16).int(), "uint16"),
        )  # fmt: skip
        return [t.shadow.values(x)[0][:, 0, :8] for x in outputs]

    weights, ids = chosen(1e-20)
    less, _ = chosen(2.0)
    for user in range(users):
        scores = logits[user].flatten().sigmoid()
        biased = (scores + bias[user].flatten()).tolist()
        groups = [range(first, first + 32) for first in range(0, 256, 32)]
        groups.sort(key=lambda group: -sum(sorted((biased[e] for e in group), reverse=True)[:2]))
        best = sorted((e for group in groups[:4] for e in group), key=lambda e: -biased[e])[:8]
        assert sorted(ids[user].tolist()) == sorted(1000 + e for e in best)
        share = {1000 + e: 2.5 * scores[e] / scores[best].sum() for e in best}
        wanted = torch.stack([share[number] for number in ids[user].tolist()])
        torch.testing.assert_close(weights[user], wanted, rtol=2**-7, atol=0)
        total = scores[best].sum()
        torch.testing.assert_close(less[user], wanted * total / (total + 2), rtol=2**-6, atol=0)


def sums_of_near_experts(t: Env) -> None:
    """Experts on another row (or column) of the mesh count nothing, a shared one as much as it is told."""
    ttnn = t.ttnn
    tokens, features, choices, experts = 8, 256, 4, 2 * t.n
    owners = (torch.arange(experts) // 2).view(1, -1)
    for axis in (0, 1):
        x = t.rand(choices + 1, 1, tokens, features)
        scores = t.rand(tokens, 1, 1, choices)
        chosen = torch.rand(tokens, experts, generator=t.random).argsort(-1)[:, :choices].view(-1, 1, 1, choices)
        outputs = ttnn.experimental.deepseek_moe_fast_reduce_nc_fused(
            t.put(x), t.put(chosen.int(), dtype="uint16", **FLAT), t.put(owners.int(), dtype="uint16", **FLAT),
            reduce_dim=0, split_size=128, cluster_axis=axis, output_memory_config=ttnn.L1_MEMORY_CONFIG,
            scores_tensor=t.put(scores, **FLAT), num_shared_experts=1, shared_expert_scale=0.5,
        )  # fmt: skip
        wanted = []
        for device in range(t.n):
            near = torch.zeros(tokens, choices)
            for token in range(tokens):
                for choice, expert in enumerate(chosen[token, 0, 0].tolist()):
                    other = int(owners[0, expert])
                    row = (other // 4, device // 4) if axis == 1 else (other % 4, device % 4)
                    near[token, choice] = scores[token, 0, 0, choice] if row[0] == row[1] else 0.0
            whole = torch.cat([near, torch.full((tokens, 1), 0.5)], -1)
            wanted.append(torch.einsum("kotd,tk->otd", x, whole).unsqueeze(0))
        for number, out in enumerate(outputs):
            t.check(out, [w[..., 128 * number : 128 * (number + 1)] for w in wanted], ulps=4)


def tiles_of_what_came_back(t: Env) -> None:
    ttnn = t.ttnn
    spec = ttnn.NdShardSpec(ttnn.Shape([32, 1024]), cores(t, 7, 8), ttnn.ShardOrientation.ROW_MAJOR)
    x = t.rand(8, 1, 32, 7168)
    out = ttnn.experimental.deepseek_moe_post_combine_tilize(
        t.put(x, **FLAT), output_memory_config=ttnn.MemoryConfig(ttnn.BufferType.L1, spec)
    )
    t.check(out, x)


def weights_sent_ahead(t: Env) -> None:
    """The operation itself gives nothing, and leaves the weights as they are."""
    ttnn = t.ttnn
    sender, *receivers = (ttnn.CoreCoord(x, 0) for x in range(3))
    one = ttnn.CoreRangeSet([ttnn.CoreRange(sender, sender)])
    behind = ttnn.CoreRangeSet([ttnn.CoreRange(receivers[0], receivers[-1])])
    buffer = ttnn.create_global_circular_buffer(t.device, [(sender, behind)], 200 * 2048)
    values = t.rand(1, 1, 64, 128)
    spec = ttnn.ShardSpec(one, (64, 128), ttnn.ShardOrientation.ROW_MAJOR)
    in_dram = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, spec)
    weight = ttnn.to_memory_config(t.put(values), in_dram)
    places = t.put(torch.tensor([[weight.buffer_address()]]), dtype="uint32", **FLAT)
    out = ttnn.dram_prefetcher(
        [weight, ttnn.to_memory_config(places, config(t, "HEIGHT", one, (1, 1)))], num_layers=1, global_cb=buffer,
        enable_performance_mode=False,
    )  # fmt: skip
    t.check(out, torch.full(tuple(out.shape), float("nan")))
    t.check(weight, values)


CASES = collect(globals())
