"""Tokens sent to the devices of their experts, and what the experts made of them sent back.

Legend: B x S tokens a device with H features and K experts chosen for each, D devices, E experts a device. Rows that
no token of a device's experts fills are placeholders, which a device leaves as they were: here they are not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tt_impl.mock.rules.registry import Call, across
from tt_impl.mock.storage.not_finite import UNWRITTEN
from tt_impl.mock.storage.values import Shards


def _by_device(x: Shards, cluster_axis: int | None, values: Callable[[int, list[int]], Tensor]) -> list[Tensor]:
    """Call ``values(device, its group)`` for every device."""
    result: dict[int, Tensor] = {}
    for group in x.groups(cluster_axis):
        for device in group:
            result[device] = values(device, group)
    return [result[device] for device in range(len(x))]


def _experts_of(mapping: Shards, device: int) -> list[int]:
    """Return the experts that a device has, by their numbers."""
    rows = mapping[device]
    return rows.reshape(-1, rows.shape[-1])[:, device].nonzero().flatten().tolist()


@across("all_to_all_dispatch")
def all_to_all_dispatch(
    call: Call,
    input_tensor: Shards,
    expert_indices_tensor: Shards,
    expert_mapping_tensor: Shards,
    *,
    cluster_axis: int | None = None,
    output_concat_dim: int = 1,
) -> tuple[list[Tensor], list[Tensor]]:
    """Send [B, S, 1, H] by [B, S, 1, K] (or with the dims of 1 and S exchanged) to the devices of the experts.

    Returns the tokens of a group of devices, [1, B*D, S, H], of those experts that a device has, and all experts
    chosen, [1, B*D, S, K].
    """

    def joined(x: Shards, group: list[int]) -> Tensor:
        parts = [x[i].reshape(x[i].shape[0], -1, x[i].shape[-1]) for i in group]
        return torch.cat(parts, output_concat_dim - 1).unsqueeze(0)

    def tokens(device: int, group: list[int]) -> Tensor:
        chosen = joined(expert_indices_tensor, group)
        here = expert_mapping_tensor[device].reshape(-1, expert_mapping_tensor[device].shape[-1])[:, device]
        wanted = (here[chosen] == 1).any(-1, keepdim=True)
        return torch.where(wanted, joined(input_tensor, group), torch.full((), UNWRITTEN))

    choices = _by_device(input_tensor, cluster_axis, lambda _, group: joined(expert_indices_tensor, group))
    return _by_device(input_tensor, cluster_axis, tokens), choices


@across("experimental.all_to_all_dispatch_metadata")
def all_to_all_dispatch_metadata(
    call: Call,
    input_tensor: Shards,
    expert_indices_tensor: Shards,
    expert_scores_tensor: Shards,
    expert_mapping_tensor: Shards,
    *,
    cluster_axis: int | None = None,
    shared_expert_ids: Sequence[int] | None = None,
) -> tuple[list[Tensor], ...]:
    """Send [B, S, 1, H] by [B, S, 1, K] to the devices of the experts, with the scores [B, S, 1, K].

    [D, experts] says on which device an expert is, as a device sees it that sends. Returns the tokens of a group of
    devices, [1, T, H], of those experts that a device has, and all experts chosen and their scores, [1, T, K]. Experts
    that are shared get every token, with a score of 1, behind those that were chosen. The source is
    tests/nightly/tg/ccl/moe/test_all_to_all_dispatch_metadata_6U.py of tt-metal.
    """
    shared = torch.tensor(list(shared_expert_ids or ()), dtype=torch.long)

    def rows(x: Shards, device: int, behind: Tensor | None = None) -> Tensor:
        part = x[device].reshape(-1, x.shape[-1])
        return part if behind is None else torch.cat([part, behind.to(part.dtype).expand(len(part), -1)], -1)

    def joined(x: Shards, group: list[int], behind: Tensor) -> Tensor:
        return torch.cat([rows(x, i, behind) for i in group]).unsqueeze(0)

    def tokens(device: int, group: list[int]) -> Tensor:
        parts = []
        for sender in group:
            owners = expert_mapping_tensor[sender][sender][rows(expert_indices_tensor, sender, shared).long()]
            here = (owners == device).any(-1, keepdim=True)
            parts.append(torch.where(here, rows(input_tensor, sender), torch.full((), UNWRITTEN)))
        return torch.cat(parts).unsqueeze(0)

    return (
        _by_device(input_tensor, cluster_axis, tokens),
        _by_device(input_tensor, cluster_axis, lambda _, group: joined(expert_indices_tensor, group, shared)),
        _by_device(
            input_tensor, cluster_axis, lambda _, group: joined(expert_scores_tensor, group, torch.ones(len(shared)))
        ),
    )


@across("all_to_all_combine")
def all_to_all_combine(
    call: Call,
    input_tensor: Shards,
    expert_metadata_tensor: Shards,
    expert_mapping_tensor: Shards,
    *,
    local_reduce: bool = False,
    output_shard_dim: int = 1,
    cluster_axis: int | None = None,
) -> list[Tensor]:
    """Send [E, B, S, H], what a device's experts made of all tokens of its group, back by [1, B, S, K], those chosen.

    Returns [K, B/D, S, H]: of a device's tokens what each of their experts made, on whatever device of the group.
    """
    if local_reduce:
        raise call.unsupported("local_reduce, whose rows depend on which expert a device takes first")

    def combined(device: int, group: list[int]) -> Tensor:
        choices = expert_metadata_tensor[device][0]
        made = torch.full((choices.shape[-1], *choices.shape[:-1], input_tensor[0].shape[-1]), UNWRITTEN)
        for other in group:
            for number, expert in enumerate(_experts_of(expert_mapping_tensor, other)):
                wanted = (choices == expert).movedim(-1, 0).unsqueeze(-1)
                made = torch.where(wanted, input_tensor[other][number], made)
        return made.chunk(len(group), output_shard_dim)[group.index(device)]

    return _by_device(input_tensor, cluster_axis, combined)


@across("moe_expert_token_remap")
def moe_expert_token_remap(
    call: Call,
    topk_tensor: Shards,
    expert_mapping_tensor: Shards,
    expert_metadata_tensor: Shards,
    *,
    reduction_size: int = 16,
) -> tuple[list[Tensor], list[Tensor]]:
    """Give each device the scores [1, B, S, E*D] of its own experts by [1, B, S, K], those chosen; zero if it was not.

    Returns [1, B, S, E], and which experts any of ``reduction_size`` tokens in a row has a score of: 1, or 0.
    """

    def scores(device: int) -> Tensor:
        chosen = torch.zeros_like(topk_tensor[device]).scatter(-1, expert_metadata_tensor[device].long(), 1.0)
        return (topk_tensor[device] * chosen)[..., _experts_of(expert_mapping_tensor, device)]

    def anybody(values: Tensor) -> Tensor:
        by_chunk = values.reshape(1, 1, -1, reduction_size, values.shape[-1])
        return (by_chunk != 0).any(3).long()

    mapped = [scores(device) for device in range(len(topk_tensor))]
    return mapped, [anybody(values) for values in mapped]


@across("moe_routing_remap")
def moe_routing_remap(
    call: Call,
    routing_weights_tensor: Shards,
    non_zero_weight_size: int,
    expert_parallel_size: int,
    cluster_axis: int,
) -> list[Tensor]:
    """Leave each device of an axis its part of the weights [1, E] that are not zero, as many as every other one."""
    each = non_zero_weight_size // expert_parallel_size

    def part(device: int, group: list[int]) -> Tensor:
        weights = routing_weights_tensor[device]
        place = group.index(device)
        used = (weights != 0).cumsum(-1)
        mine = (used > place * each) & (used <= (place + 1) * each)
        return torch.where(mine, weights, 0.0)

    return _by_device(routing_weights_tensor, cluster_axis, part)
