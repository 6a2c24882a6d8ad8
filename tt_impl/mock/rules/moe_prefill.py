"""Experts of a prefill: the tokens of a device's experts in one buffer, an expert's region behind another's.

    tokens --dispatch--> buffer, and where each row is from --experts--> buffer --combine--> rows of tokens --> sums

Legend: S tokens a device of H features, K experts of a token, N routed experts, T rows of a buffer. A dispatch group
is the devices along ``cluster_axis``; ``table`` [N] says in which place of it an expert is, -1 if in none; ``start``
[N] is the first row of an expert's region, on a whole tile. Rows that no token fills are not a number, or -1 in
integers. As the documentation of ttnn 0.81.1 and models/demos/deepseek_v3_d_p/reference of tt-metal have it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.collectives import exchanged
from tt_impl.mock.rules.registry import REQUIRED, TILE, Call, across, nobodys, per_device
from tt_impl.mock.storage.values import Shards

_PREFILL = "experimental.deepseek_prefill"


def _whole_tiles(rows: Tensor) -> Tensor:
    return (rows + TILE - 1) // TILE * TILE


@per_device(f"{_PREFILL}.masked_bincount")
def masked_bincount(
    input_tensor: Tensor, expert_mask: Tensor, n_routed_experts: int, num_experts_per_token: int
) -> Tensor:
    """Count how often each expert of the group is among [S, K]: [N], 0 for those whose mask is negative."""
    chosen = input_tensor[..., :num_experts_per_token].flatten().long()
    counts = torch.bincount(chosen[chosen < n_routed_experts], minlength=n_routed_experts)
    return torch.where(expert_mask.flatten()[:n_routed_experts] >= 0, counts, 0)


def _along(call: Call, x: Shards, cluster_axis: int | None) -> list[list[int]]:
    """Group devices along an axis that the call has to name."""
    if cluster_axis is None:
        raise call.unsupported("no cluster_axis")
    return x.groups(cluster_axis)


@across(f"{_PREFILL}.offset_cumsum")
def offset_cumsum(
    call: Call, input_tensor: Shards, cluster_axis: int, _num_links: Any = None, experts_per_chip: int = REQUIRED
) -> tuple[list[Tensor], ...]:
    """Give every device its first rows in the buffers of others by counts [N]; sums, regions and all devices' rows.

    Experts of a device lie one behind the other, each on a whole tile; of an expert, devices' tokens in their order.
    """

    def placed(counts: list[Tensor]) -> list[list[Tensor]]:
        table = torch.stack([part.flatten() for part in counts])
        sums = table.sum(0, keepdim=True)
        tiles = _whole_tiles(sums).unflatten(-1, (-1, experts_per_chip))
        regions = (tiles.cumsum(-1) - tiles).flatten(-2)
        rows = table.cumsum(0) - table + regions
        return [[rows[place : place + 1], sums, regions, rows] for place in range(len(counts))]

    parts: list[Any] = exchanged(list(input_tensor), input_tensor.groups(cluster_axis), placed)
    return tuple(list(output)[: len(input_tensor)] for output in zip(*parts, strict=True))[: len(call.outputs)]


@across(f"{_PREFILL}.dispatch")
def dispatch(
    call: Call,
    input_tensor: Shards,
    indices_tensor: Shards,
    expert_offsets_tensor: Shards,
    expert_dispatch_table_tensor: Shards,
    *,
    dispatch_group_size: int,
    experts_per_chip: int,
    num_routed_experts: int,
    num_experts_per_tok: int,
    metadata_len: int,
    max_dispatch_buffer_token_size: int,
    cluster_axis: int | None = None,
    fp8_output: bool = False,
    fp8_scaled_input: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Send [1, S, H] by [1, S, K] to the experts: [1, 1, T, H], and [1, 1, T, 3]: of which device, token and choice."""
    if fp8_output or fp8_scaled_input or metadata_len != 3:
        raise call.unsupported("values in fp8, and metadata of more than device, token and choice")
    groups = _along(call, input_tensor, cluster_axis)
    if dispatch_group_size != (devices := input_tensor.ring_size(cluster_axis)):
        raise call.unsupported(f"a group of {dispatch_group_size} on an axis of {devices} devices")
    rows = max_dispatch_buffer_token_size
    buffers = [nobodys((1, 1, rows, input_tensor.shape[-1])) for _ in input_tensor]
    origins = [torch.full((1, 1, rows, metadata_len), -1) for _ in input_tensor]
    for group in groups:
        for device in group:
            tokens = input_tensor[device].reshape(-1, input_tensor.shape[-1])
            chosen = indices_tensor[device].reshape(-1, indices_tensor.shape[-1])[:, :num_experts_per_tok]
            start = expert_offsets_tensor[device].flatten()
            table = expert_dispatch_table_tensor[device].flatten()
            for expert in (table[:num_routed_experts] >= 0).nonzero().flatten().tolist():
                token, choice = (chosen == expert).nonzero(as_tuple=True)
                first = int(start[expert])
                token, choice = (which[: max(rows - first, 0)] for which in (token, choice))
                target = group[int(table[expert])]
                buffers[target][0, 0, first : first + len(token)] = tokens[token]
                origin = torch.stack([torch.full_like(token, device), token, choice], -1)
                origins[target][0, 0, first : first + len(token)] = origin
    return buffers, origins


@across(f"{_PREFILL}.combine")
def combine(
    call: Call,
    dispatched_buffer: Shards,
    dispatched_metadata: Shards,
    expert_token_counts: Shards,
    expert_region_offsets: Shards,
    *,
    dispatch_group_size: int,
    experts_per_chip: int,
    num_experts_per_tok: int,
    seq_len_per_chip: int,
    cluster_axis: int | None = None,
    init_zeros: bool = True,
    use_fp8_combine: bool = False,
) -> list[Tensor]:
    """Send rows [1, 1, T, H] back to where they are from: [1, 1, S, K, H], 0 (or nobody's) for experts elsewhere."""
    groups = _along(call, dispatched_buffer, cluster_axis)
    if use_fp8_combine or dispatch_group_size != dispatched_buffer.ring_size(cluster_axis):
        raise call.unsupported("values in fp8, or a group that is not all devices of an axis")
    shape = (1, 1, seq_len_per_chip, num_experts_per_tok, dispatched_buffer.shape[-1])
    results = [torch.zeros(shape) if init_zeros else nobodys(shape) for _ in dispatched_buffer]
    for number, group in enumerate(groups):
        for place, device in enumerate(group):
            rows = dispatched_buffer[device].reshape(-1, shape[-1])
            origins = dispatched_metadata[device].reshape(len(rows), -1)
            first = (number * len(group) + place) * experts_per_chip
            for expert in range(first, first + experts_per_chip):
                start = int(expert_region_offsets[device].flatten()[expert])
                used = slice(start, start + int(expert_token_counts[device].flatten()[expert]))
                for row, (source, token, choice) in zip(rows[used], origins[used, :3].long().tolist(), strict=True):
                    results[source][0, 0, token, choice] = row
    return results


@per_device(f"{_PREFILL}.post_combine_reduce", with_call=True)
def post_combine_reduce(
    call: Call,
    combine_output: Tensor,
    weights: Tensor,
    indices: Tensor | None = None,
    expert_dispatch_table: Tensor | None = None,
    *,
    expert_dim: int = 3,
) -> Tensor:
    """Sum [.., S, K, H] over experts by weights [.., S, K, 1]; without those elsewhere, or those of no weight."""
    if expert_dim != combine_output.dim() - 2:
        raise call.unsupported(f"experts along dim {expert_dim} of {combine_output.dim()}")
    weights = weights.reshape(*combine_output.shape[:-1], 1)
    if indices is None or expert_dispatch_table is None:
        wanted = weights != 0
    else:
        wanted = (expert_dispatch_table.flatten()[indices.long()] >= 0).reshape(weights.shape)
    return torch.where(wanted, combine_output * weights, torch.zeros(())).sum(expert_dim)


def _region(start: Tensor, counts: Tensor, table: Tensor, local_expert: int) -> tuple[int, int]:
    """Return (first row, rows in whole tiles) of the expert with that number on a device."""
    expert = int(table.flatten()[local_expert])
    return int(start.flatten()[expert]), int(_whole_tiles(counts.flatten()[expert]))


@per_device(f"{_PREFILL}.extract")
def extract(
    global_tensor: Tensor,
    start: Tensor,
    counts: Tensor,
    global_expert_idx_table: Tensor,
    *,
    local_expert_id: int,
    max_dispatched_tokens_per_expert: int,
) -> Tensor:
    """Copy the region of an expert, in whole tiles, out of [T, H]; what lies behind it in the result is nobody's."""
    first, rows = _region(start, counts, global_expert_idx_table, local_expert_id)
    region = global_tensor[first : first + min(rows, max_dispatched_tokens_per_expert)]
    rest = max_dispatched_tokens_per_expert - len(region)
    return torch.cat([region, nobodys((rest, global_tensor.shape[-1]))])


@per_device(f"{_PREFILL}.insert")
def insert(
    global_tensor: Tensor,
    local_tensor: Tensor,
    start: Tensor,
    counts: Tensor,
    global_expert_idx_table: Tensor,
    *,
    local_expert_id: int,
) -> Tensor:
    """Write the first rows of [R, H], in whole tiles, into the region of an expert in [T, H]."""
    first, rows = _region(start, counts, global_expert_idx_table, local_expert_id)
    rows = min(rows, len(local_tensor), len(global_tensor) - first)
    result = global_tensor.clone()
    result[first : first + rows] = local_tensor[:rows]
    return result


@per_device(f"{_PREFILL}.routed_expert_ffn")
def routed_expert_ffn(x: Tensor, gate_proj: Tensor, up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Compute (silu(x @ gate) * (x @ up)) @ down."""
    return (F.silu(x @ gate_proj) * (x @ up_proj)) @ down_proj


@per_device(f"{_PREFILL}.unified_routed_expert_moe", with_call=True)
def unified_routed_expert_moe(
    call: Call,
    dispatched_buffer: Tensor,
    expert_region_offsets: Tensor,
    expert_token_counts: Tensor,
    global_expert_idx_table: Tensor,
    gate_projs: list[Tensor],
    up_projs: list[Tensor],
    down_projs: list[Tensor],
    max_dispatched_tokens_per_expert: int,
    *,
    activation: Any = None,
) -> Tensor:
    """Have each expert of a device make of its region of [T, H] what ``routed_expert_ffn`` does."""
    if activation is not None and activation.name.lower() != "silu":
        raise call.unsupported(f"the activation {activation.name}, whose constants are not documented")
    rows = dispatched_buffer.reshape(-1, dispatched_buffer.shape[-1])
    result = nobodys(rows.shape)
    for number, weights in enumerate(zip(gate_projs, up_projs, down_projs, strict=True)):
        first, count = _region(expert_region_offsets, expert_token_counts, global_expert_idx_table, number)
        region = slice(first, first + min(count, max_dispatched_tokens_per_expert))
        result[region] = routed_expert_ffn(rows[region], *(x.reshape(x.shape[-2:]) for x in weights))
    return result.reshape(dispatched_buffer.shape)
