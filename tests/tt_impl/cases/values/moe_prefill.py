"""Experts of a prefill, over the columns and over the rows of the mesh: a token after the other, in Python."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Dims, Env, collect

TOKENS, FEATURES, CHOICES, EACH, ROWS = 32, 64, 2, 2, 512
AXES = (0, 1)


def _along(axis: int, dim: int) -> Dims:
    return (dim, None) if axis == 0 else (None, dim)


def _places(t: Env, axis: int) -> list[tuple[int, int]]:
    """Return of every device the number of its group, and its place there."""
    found = {rank: (number, place) for number, group in enumerate(t.groups(axis)) for place, rank in enumerate(group)}
    return [found[rank] for rank in range(t.n)]


class _Case:
    """Tokens of every device and which experts they go to; experts of a group lie behind each other."""

    def __init__(self, t: Env, axis: int) -> None:
        self.groups = t.groups(axis)
        self.size = len(self.groups[0])
        self.places = _places(t, axis)
        self.experts = EACH * t.n
        by_device = (t.n, 1, TOKENS, FEATURES)
        self.tokens = t.rand(*by_device)
        self.chosen = torch.rand(t.n, TOKENS, self.experts, generator=t.random).argsort(-1)[..., :CHOICES]
        if axis == 0:  # the other axis holds replicas
            keep = torch.arange(t.n) // t.shape[1] * t.shape[1]
        else:
            keep = torch.arange(t.n) % t.shape[1]
        self.tokens, self.chosen = self.tokens[keep], self.chosen[keep]
        table = torch.arange(self.experts) // EACH
        self.table = torch.stack(
            [torch.where(table // self.size == group, table % self.size, -1) for group, _ in self.places]
        )
        counts = torch.zeros(t.n, self.experts, dtype=torch.long)
        for device in range(t.n):
            for expert in self.chosen[device].flatten().tolist():
                counts[device, expert] += int(self.table[device, expert] >= 0)
        self.counts = counts

    def layout(self, device: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (first rows of a device, sums, regions), an expert after the other."""
        group, place = self.places[device]
        members = self.groups[group]
        sums = self.counts[members].sum(0)
        regions = torch.zeros_like(sums)
        for expert in range(self.experts):
            if expert % EACH:
                regions[expert] = regions[expert - 1] + -(-int(sums[expert - 1]) // 32) * 32
        return regions + self.counts[members[:place]].sum(0), sums, regions


def _spread(t: Env, parts: Tensor, dtype: str = "uint32", layout: str = "ROW_MAJOR") -> Any:
    """Put [devices, ...] on the mesh, a part on each device, with a first dim of 1."""
    rows = parts.reshape(*t.shape, *parts.shape[1:])
    mapper = t.ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(0, 1))
    device = t.ttnn.from_torch(
        rows, dtype=getattr(t.ttnn, dtype), layout=getattr(t.ttnn, f"{layout}_LAYOUT"), device=t.device,
        mesh_mapper=mapper,
    )  # fmt: skip
    return t.ttnn.reshape(device, list(parts.shape[1:]) if parts.dim() > 2 else [1, parts.shape[-1]])


def counted_and_placed(t: Env) -> None:
    prefill = t.ttnn.experimental.deepseek_prefill
    for axis in AXES:
        case = _Case(t, axis)
        rows = case.chosen.repeat(1, 2, 1)  # the operation wants 64 rows
        rows[:, TOKENS:, 0] = case.experts  # no expert
        chosen = _spread(t, rows.unsqueeze(1).int(), "uint16", "TILE")
        counts = prefill.masked_bincount(
            t.ttnn.reshape(chosen, [2 * TOKENS, CHOICES]), _spread(t, case.table.int(), "int32"),
            n_routed_experts=case.experts, num_experts_per_token=CHOICES,
        )  # fmt: skip
        first = torch.stack([torch.bincount(part[:, 0], minlength=case.experts) for part in case.chosen])
        t.check(counts, list(2 * case.counts - torch.where(case.table >= 0, first, 0)))
        less = prefill.masked_bincount(
            t.ttnn.reshape(chosen, [2 * TOKENS, CHOICES]), _spread(t, case.table.int(), "int32"),
            n_routed_experts=case.experts, num_experts_per_token=1,
        )  # fmt: skip
        t.check(less, list(torch.where(case.table >= 0, first, 0)))
        histogram = t.ttnn.reshape(_spread(t, case.counts.int()), [case.experts])
        outputs = prefill.offset_cumsum(
            histogram, cluster_axis=axis, num_links=1, experts_per_chip=EACH, memory_config=t.ttnn.DRAM_MEMORY_CONFIG
        )
        wanted = [case.layout(device) for device in range(t.n)]
        for out, parts in zip(outputs, zip(*wanted, strict=True), strict=False):
            t.check(out, [part.unsqueeze(0) for part in parts])
        if len(outputs) > 3:
            t.check(outputs[3], [torch.stack([wanted[i][0] for i in case.groups[group]]) for group, _ in case.places])


def sent_and_sent_back(t: Env) -> None:
    prefill = t.ttnn.experimental.deepseek_prefill
    case = _Case(t, 0)  # ttnn takes no other axis
    layouts = [case.layout(device) for device in range(t.n)]
    first, sums, regions = (torch.stack(parts) for parts in zip(*layouts, strict=True))
    tokens = _spread(t, case.tokens.reshape(t.n, 1, TOKENS, FEATURES), "bfloat16")
    buffer, origins = prefill.dispatch(
        t.ttnn.reshape(tokens, [1, TOKENS, FEATURES]),
        _spread(t, torch.cat([case.chosen, case.chosen], -1).int().unsqueeze(1), "uint16"),
        _spread(t, first.int(), "int32"), _spread(t, case.table.int(), "int32"), dispatch_group_size=case.size,
        experts_per_chip=EACH, num_routed_experts=case.experts, num_experts_per_tok=CHOICES, metadata_len=3,
        max_dispatch_buffer_token_size=ROWS, cluster_axis=0, num_links=1, topology=t.linear,
    )  # fmt: skip
    rows = torch.full((t.n, 1, 1, ROWS, FEATURES), float("nan"))
    whence = torch.full((t.n, 1, 1, ROWS, 3), -1)
    back = torch.zeros(t.n, 1, 1, TOKENS, CHOICES, FEATURES)
    behind = first.clone()
    for device, (group, _) in enumerate(case.places):
        for token in range(TOKENS):
            for choice, expert in enumerate(case.chosen[device, token].tolist()):
                place = int(case.table[device, expert])
                if place >= 0:
                    row = int(behind[device, expert])
                    behind[device, expert] += 1
                    target = case.groups[group][place]
                    rows[target, 0, 0, row] = case.tokens[device, 0, token]
                    whence[target, 0, 0, row] = torch.tensor([device, token, choice])
                    back[device, 0, 0, token, choice] = case.tokens[device, 0, token]
    t.check(buffer, list(rows))
    t.check(origins, list(whence))
    out = prefill.combine(
        buffer, origins, _spread(t, sums.int(), "int32"), _spread(t, regions.int(), "int32"),
        dispatch_group_size=case.size, experts_per_chip=EACH, num_experts_per_tok=CHOICES, seq_len_per_chip=TOKENS,
        cluster_axis=0, num_links=1, topology=t.linear, init_zeros=True,
    )  # fmt: skip
    t.check(out, list(back))


def _weights(t: Env) -> list[Tensor]:
    shapes = ((FEATURES, 96), (FEATURES, 96), (96, FEATURES))
    return [t.rand(*shape, scale=shape[0] ** -0.5) for shape in shapes]


def _made(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def _regions(t: Env) -> tuple[Any, Tensor, list[Any], list[int]]:
    """Return rows of a buffer, (first rows, counts, numbers of a device's experts), and which expert is which."""
    rows = t.rand(256, FEATURES)
    start = torch.tensor([[0, 96, 64, 160]])
    counts = torch.tensor([[40, 33, 5, 64]])
    numbers = torch.tensor([[2, 1]])
    arguments = [t.put(x.int(), dtype="uint32", layout="ROW_MAJOR") for x in (start, counts, numbers)]
    return t.put(rows, dtype="bfloat8_b"), rows, arguments, [2, 1]


def a_region_and_back(t: Env) -> None:
    """The region of the second of a device's experts, 33 rows from 96 on, so two tiles."""
    ttnn = t.ttnn
    prefill = ttnn.experimental.deepseek_prefill
    buffer, _, where, _ = _regions(t)
    rows = t.shadow.values(buffer)[0]
    region = prefill.extract(buffer, *where, local_expert_id=1, max_dispatched_tokens_per_expert=96)
    t.check(region, F.pad(rows[96:160], (0, 0, 0, 32), value=float("nan")))
    x, gate, up, down = (t.rand(96, FEATURES), *_weights(t))
    made = prefill.routed_expert_ffn(*(t.put(value) for value in (x, gate, up, down)))
    t.check(made, _made(x, gate, up, down), ulps=8)
    new = t.put(t.rand(96, FEATURES), dtype="bfloat8_b")
    out = prefill.insert(buffer, new, *where, local_expert_id=1)
    wanted = torch.cat([rows[:96], t.shadow.values(new)[0][:64], rows[160:]])
    t.check(out, wanted)
    t.check(buffer, wanted)


def sums_of_experts_by_weight(t: Env) -> None:
    """Experts elsewhere do not count, whatever is in their rows; without a table those of no weight do not."""
    reduce = t.ttnn.experimental.deepseek_prefill.post_combine_reduce
    experts = 8
    rows = t.rand(1, TOKENS, experts, 1024)
    weights = t.rand(1, TOKENS, experts, 1)
    weights[0, ::3, 1] = 0
    weights[0, 1::3, 2] = 1
    chosen = torch.rand(1, TOKENS, 16, generator=t.random).argsort(-1)[..., :experts]
    table = torch.arange(16) % 5 - 1
    near = (table[chosen] >= 0).unsqueeze(-1)
    flat = dict(layout="ROW_MAJOR")
    whole = [t.put(x, **flat) for x in (rows, weights)]
    heavy = t.put(rows.where(weights != 0, torch.tensor(float("inf"))), **flat)
    out = reduce(heavy, whole[1], expert_dim=2, output_memory_config=t.ttnn.DRAM_MEMORY_CONFIG)
    t.check(out, (rows * weights).sum(2), 4)
    out = reduce(
        t.put(rows.where(near, torch.tensor(float("inf"))), **flat), whole[1],
        indices=t.put(chosen.int(), dtype="uint16", **flat),
        expert_dispatch_table=t.put(table.int(), dtype="int32", **flat), expert_dim=2,
        output_memory_config=t.ttnn.DRAM_MEMORY_CONFIG,
    )  # fmt: skip
    t.check(out, torch.where(near, rows * weights, 0.0).sum(2), 4)


CASES = collect(globals())
