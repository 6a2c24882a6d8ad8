"""Which experts a token goes to, and sums of what they gave; deformable attention, which samples where it is told.

Legend: T tokens, E experts, k experts of a token, Q queries, P points of a query, D columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import REQUIRED, Call, across, per_device
from tt_impl.mock.storage.not_finite import UNWRITTEN
from tt_impl.mock.storage.values import Shards

SCORES = {"none": lambda x: x, "sigmoid": torch.sigmoid, "sqrtsoftplus": lambda x: F.softplus(x).sqrt()}


@per_device("experimental.topk_router_gpt")
def topk_router_gpt(
    input_tensor: Tensor, *, weight_tensor: Tensor, bias_tensor: Tensor, k: int = 4, num_experts: int = 128
) -> list[Tensor]:
    """Find the k largest of x @ w + b [T, E] and their softmax: ids and weights, [T, k]."""
    values, ids = torch.topk(input_tensor @ weight_tensor + bias_tensor, k, -1)
    return [ids, torch.softmax(values, -1)]


@per_device("experimental.deepseek_grouped_gate", "experimental.deepseek_prefill.moe_grouped_topk")
def grouped_gate(
    scores: Tensor,
    bias: Tensor,
    *,
    n_groups: int = 8,
    summed_experts_per_group: int = 2,
    topk_groups: int = 4,
    n_activated_experts: int = 8,
    route_scale: float = 1.0,
    epsilon: float = 1e-20,
    stable_sort: bool = False,
    score_func: str = "sigmoid",
) -> list[Tensor]:
    """Choose by scores [.., E] the best experts of the best groups, by score plus ``bias``: weights and ids [.., k].

    A group is as good as its best ``summed_experts_per_group`` together. Weights are scores without bias, of sum
    ``route_scale``.
    """
    unbiased = SCORES[score_func](scores)
    biased = unbiased + bias
    if n_groups > 1:
        by_group = biased.unflatten(-1, (n_groups, -1))
        worth = by_group.topk(summed_experts_per_group, -1).values.sum(-1)
        chosen = torch.zeros_like(worth).scatter(-1, worth.topk(topk_groups, -1).indices, 1.0)
        biased = by_group.masked_fill(chosen[..., None] == 0, float("-inf")).flatten(-2)
    ids = torch.sort(biased, dim=-1, descending=True, stable=stable_sort).indices[..., :n_activated_experts]
    weights = unbiased.gather(-1, ids)
    return [route_scale * weights / (weights.sum(-1, keepdim=True) + epsilon), ids]


@per_device("experimental.deepseek.moe.deepseek_moe_gate")
def deepseek_moe_gate(
    input_tensor: Tensor,
    bias_tensor: Tensor,
    input_indices_tensor: Tensor,
    _output: Tensor | None = None,
    output_indices_tensor: Tensor = REQUIRED,
    *,
    eps: float = 1e-20,
    scaling_factor: float = 2.5,
    enable_sigmoid: bool = False,
) -> list[Tensor]:
    """Choose 8 of 256 experts by [U, 16, 16], of 8 groups of 32 the best 4: weights and numbers in [U, .., 16].

    Bias and numbers come transposed. What lies behind the 8 weights is nobody's; behind their numbers, what was there.
    The source is models/demos/deepseek_v3/tt/deepseek_moe_gate/op.py of tt-metal.
    """
    users = len(input_tensor)
    numbers = input_indices_tensor.mT.reshape(users, 256)
    weights, ids = grouped_gate(
        input_tensor.reshape(users, 256), bias_tensor.mT.reshape(users, 256), route_scale=scaling_factor, epsilon=eps,
        score_func="sigmoid" if enable_sigmoid else "none",
    )  # fmt: skip
    before = output_indices_tensor.reshape(users, -1)
    whole = F.pad(weights, (0, before.shape[-1] - ids.shape[-1]), value=UNWRITTEN)
    numbers = torch.cat([numbers.gather(-1, ids), before[:, ids.shape[-1] :]], -1)
    return [x.reshape(output_indices_tensor.shape) for x in (whole, numbers)]


@across("experimental.deepseek_moe_fast_reduce_nc_fused")
def deepseek_moe_fast_reduce_nc_fused(
    call: Call,
    input_tensor: Shards,
    expert_indices_tensor: Shards,
    expert_mapping_tensor: Shards,
    reduce_dim: int,
    *,
    split_size: int,
    cluster_axis: int | None = None,
    scores_tensor: Shards | None = None,
    num_shared_experts: int = 0,
    shared_expert_scale: float = 1.0,
) -> tuple[list[Tensor], ...]:
    """Sum [K, 1, T, H] over experts by the scores [T, 1, S, K] of those that lie on the device's own axis.

    [1, experts] says on which device of the mesh an expert is. The last ``num_shared_experts`` of K count
    ``shared_expert_scale``. Without scores all count 1.
    """
    columns = input_tensor.mesh_shape[1]

    def summed(device: int) -> list[Tensor]:
        x = input_tensor[device]
        if scores_tensor is not None:
            owners = expert_mapping_tensor[device].flatten()[expert_indices_tensor[device].long()]
            near = owners % columns == device % columns if cluster_axis == 0 else owners // columns == device // columns
            scores = torch.where(near, scores_tensor[device], 0.0)
            scores = F.pad(scores, (0, num_shared_experts), value=shared_expert_scale)
            x = x * scores.permute(3, 1, 0, 2).reshape(*x.shape[:-1], 1)
        return deepseek_moe_fast_reduce_nc(x, reduce_dim, split_size=split_size)

    return tuple(map(list, zip(*map(summed, range(len(input_tensor))), strict=True)))


@per_device("experimental.deepseek_moe_post_combine_tilize", as_stored=True)
def deepseek_moe_post_combine_tilize(input_tensor: Tensor) -> Tensor:
    """Change the layout alone."""
    return input_tensor


@per_device("experimental.deepseek_moe_fast_reduce_nc")
def deepseek_moe_fast_reduce_nc(input_tensor: Tensor, dim: int, *, split_size: int) -> list[Tensor]:
    """Sum over ``dim``; the columns come in pieces of ``split_size``."""
    return list(input_tensor.sum(dim, keepdim=True).split(split_size, -1))


@per_device("experimental.multi_scale_deformable_attn")
def multi_scale_deformable_attn(value: Tensor, grid: Tensor, attn: Tensor, *, align_corners: bool = False) -> Tensor:
    """Read [N, H, W, D] at places [N, Q * P, 1, 2] in -1 .. 1 between pixels, weighed by [N, Q, P]: [N, Q, D]."""
    sampled = F.grid_sample(value.permute(0, 3, 1, 2), grid, padding_mode="zeros", align_corners=align_corners)
    return torch.einsum("ndqp,nqp->nqd", sampled.squeeze(-1).unflatten(-1, attn.shape[1:]), attn)
