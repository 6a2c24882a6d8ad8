"""Operations that look up, move or fill values by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device, table

Number = int | float
UNWRITTEN = 2**32 - 1
REDUCTIONS = {"add": "sum", "sum": "sum", "multiply": "prod", "prod": "prod", "amax": "amax", "amin": "amin"}


@per_device("gather", as_stored=True)
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if sparse_grad:
        raise TypeError("sparse_grad is not known")
    return torch.gather(input, dim, index)


@per_device("scatter")
def scatter(input: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str | None = None) -> Tensor:
    """Scatter; without ``reduce`` no place may be named twice: which value stays, nobody says."""
    if reduce is not None:
        return torch.scatter_reduce(input, dim, index, src, REDUCTIONS[reduce])
    _only_once(index, dim)
    return torch.scatter(input, dim, index, src)


def _only_once(index: Tensor, dim: int) -> None:
    """Refuse an index that names a place along ``dim`` twice, where one value would replace the other."""
    if bool((index.sort(dim).values.diff(dim=dim) == 0).any()):
        raise TypeError("an index that names a place twice is not known: which value stays, nobody says")


table(
    {
        # all bits of uint32 where an element is among the others, or is not with ``invert``
        "experimental.isin": lambda elements, test_elements, *, assume_unique=False, invert=False: (
            torch.isin(elements, test_elements, invert=invert).to(torch.int64) * (2**32 - 1)
        ),
        "scatter_add": lambda input, dim, index, src: torch.scatter_add(input, dim, index, src),
    }
)


@per_device("tosa_scatter", as_stored=True)
def tosa_scatter(input: Tensor, index: Tensor, src: Tensor) -> Tensor:
    """Replace rows of [N, K, C] that [N, W] names, each once, by [N, W, C]."""
    _only_once(index, 1)
    return torch.scatter(input, 1, index[..., None].expand(*index.shape, input.shape[2]), src.to(input.dtype))


table(
    {
        "index_fill": lambda input, dim, index, value: input.index_fill(dim, index.flatten(), value),
        "index_fill_new": lambda input, dim, index, value: input.index_fill(dim, index.flatten(), value),
        # from [N, K, C] by [N, W]: [N, W, C]
        "tosa_gather": lambda input, index: input.gather(1, index[..., None].expand(*index.shape, input.shape[2])),
    },
    as_stored=True,
)


@per_device("indexed_fill", as_stored=True)
def indexed_fill(batch_id: Tensor, input_tensor_a: Tensor, input_tensor_b: Tensor, *, dim: int = 0) -> Tensor:
    """Replace the entries of ``dim`` that ``batch_id`` names by those of the other tensor."""
    _only_once(batch_id.flatten(), 0)
    return torch.index_copy(input_tensor_a, dim, batch_id.flatten(), input_tensor_b)


@per_device("nonzero", with_call=True)
def nonzero(call: Call, input_tensor: Tensor) -> list[Tensor]:
    """Count what is not zero, in the first of [1, 1, 1, 8], and list the places (n, c, h, w) one after the other.

    What lies behind the count and behind the places is not written.
    """
    places = torch.nonzero(input_tensor)  # ttnn takes four dims only
    numbers = (torch.tensor([len(places)]), places.flatten())
    return [_first(values, tuple(out.shape)) for values, out in zip(numbers, call.outputs, strict=True)]


def _first(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Make a tensor of uint32 that begins with ``values``; the rest is what unwritten memory reads as here."""
    result = torch.full((math.prod(shape),), UNWRITTEN, dtype=torch.int64)
    result[: values.numel()] = values
    return result.reshape(shape)


@per_device("embedding", as_stored=True)
def embedding(
    input_tensor: Tensor, weight: Tensor, *, padding_idx: int | None = None, embeddings_type: Any = None
) -> Tensor:
    """Look ids [.., S] up in a table [V, D]: [.., S, D]; a padding id keeps the row it has in the table.

    Of ids [B, 1, 1, S] the dims of one are dropped.
    ``embeddings_type`` says what a device may keep of the table in its memory; the rows are the same.
    """
    ids = input_tensor.long()
    return F.embedding(ids.flatten(1) if ids.dim() > 2 else ids, weight.reshape(-1, weight.shape[-1]))


@per_device("embedding_bw", with_call=True)
def embedding_bw(call: Call, input_tensor: Tensor, weight_tensor: Any, output_gradient_tensor: Tensor) -> Tensor:
    """Sum gradients [1, 1, B * S, D] by ids [B, S] to those of the table, [1, 1, V, D]."""
    shape = tuple(call.outputs[0].shape)
    rows = torch.zeros(math.prod(shape[:-1]), shape[-1])
    gradients = output_gradient_tensor.reshape(-1, shape[-1])
    return rows.index_add(0, input_tensor.flatten().long(), gradients).reshape(shape)


@per_device("moreh_getitem", as_stored=True, with_call=True)
def moreh_getitem(call: Call, input: Tensor, index_tensors: Sequence[Tensor], index_dims: Sequence[int]) -> Tensor:
    """Index as ``input[:, index]`` in torch, one list of places for each of ``index_dims``; in tiles all dims stay."""
    places: list[Any] = [slice(None)] * input.dim()
    for dim, index in zip(index_dims, index_tensors, strict=True):
        places[dim] = index.flatten().long()
    rows = input[tuple(places)]
    shape = tuple(call.outputs[0].shape)
    return rows.reshape(shape) if [n for n in shape if n != 1] == [n for n in rows.shape if n != 1] else rows


@per_device("plus_one")
def plus_one(input_tensor: Tensor, sub_core_grids: Any = None, skip_negative_entries: bool = False) -> Tensor:
    if not skip_negative_entries:
        return input_tensor + 1
    counted = (input_tensor >= 0) & (input_tensor < 2**31 - 1)
    return torch.where(counted, input_tensor + 1, input_tensor)
