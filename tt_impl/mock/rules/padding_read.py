"""Padding of tiles that kernels read as if it were data, and what it does to their results.

Which operation reads it is known from the kernels and programs of ttnn 0.81.1:

* Reductions, ``prod``, ``topk``, ``sort``, ``gather`` and the first step of distributed norms fill it before;
  ``var``, ``std``, ``argmax``, layer and RMS norms, and softmax of interleaved tensors go by the shape; ``scatter`` and
  ``concat`` take rows without it. None of these reads it.
* Attention masks the keys beyond the shape where it makes the mask itself. A mask that it is given is read by whole
  tiles, so its padding decides whether the padding of K and V takes part: ``ATTENTION``. Keys that are a view of whole
  tiles have rows of padding that count (``JOINT``, too). Decoding without a position
  masks nothing (``DECODING``), and blocks of a paged cache are counted in whole tiles (``PAGED``).
* Matrix products add up whole tiles of the inner dim: ``PRODUCTS``. The readers of ``matmul`` and ``linear`` put zeros
  into the first operand's last tile, but for shards that are multiplied where they lie: :func:`_zeroed`.
* Softmax of sharded tensors and the sums of squares of ``SUMS_OF_SQUARES`` take whole tiles of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import TILE
from tt_impl.mock.storage.padding import PaddingRead, ends_inside
from tt_impl.mock.storage.values import Shards, Store, view_of
from tt_impl.mock.storage.views import shared
from tt_impl.trace.buffers import buffer_of
from tt_impl.trace.intercept import Arguments, on_device, tensors_in

ROWS = -2
COLUMNS = -1
HIDDEN = -100.0
"""A score this far below the others, or further, has no weight in a softmax."""


def _named(names: str) -> frozenset[str]:
    return frozenset(f"ttnn.{name}" for name in names.split())


ATTENTION = _named("transformer.scaled_dot_product_attention transformer.flash_mla_prefill")
DECODING = _named("transformer.scaled_dot_product_attention_decode transformer.flash_multi_latent_attention_decode")
_KEYS = {"input_tensor_k": 1}
_JOINT_KEYS = {"joint_tensor_k": 4}
JOINT = {
    "ttnn.transformer.joint_scaled_dot_product_attention": _KEYS | _JOINT_KEYS,
    "ttnn.transformer.ring_joint_scaled_dot_product_attention": _JOINT_KEYS,
    "ttnn.transformer.exp_ring_joint_scaled_dot_product_attention": _JOINT_KEYS,
}
"""Attention of two streams, and its keys by name and position; those cut over a ring end where ``logical_n`` says."""
PAGED = _named(
    "transformer.chunked_scaled_dot_product_attention transformer.chunked_flash_mla_prefill "
    "transformer.paged_scaled_dot_product_attention_decode transformer.paged_flash_multi_latent_attention_decode"
)
SOFTMAX = _named(
    "softmax softmax_in_place scale_mask_softmax scale_mask_softmax_in_place scale_causal_mask_hw_dims_softmax_in_place"
)
SUMS_OF_SQUARES = _named("experimental.wan_fused_rmsnorm_pre_allgather")
ROWS_ADDED_UP = SOFTMAX | SUMS_OF_SQUARES
_A_AND_B = (("input_tensor_a", 0), ("input_tensor_b", 1))
_INPUT_AND_WEIGHT = (("input_tensor", 0), ("weight_tensor", 1))
PRODUCTS = {
    "ttnn.matmul": _A_AND_B,
    "ttnn.linear": _A_AND_B,
    "ttnn.addmm": (("mat1_tensor", 1), ("mat2_tensor", 2)),
    "ttnn.experimental.attn_matmul": _A_AND_B,
    "ttnn.experimental.group_attn_matmul": _A_AND_B,
    "ttnn.experimental.minimal_matmul": _INPUT_AND_WEIGHT,
    "ttnn.experimental.minimal_matmul_split": _INPUT_AND_WEIGHT,
}
"""Both operands of a matrix product, by name and position."""
ZEROED = frozenset({"ttnn.matmul", "ttnn.linear", "ttnn.addmm"})


def padding_reads(call: Arguments, store: Store) -> list[PaddingRead]:
    """List what an operation reads of its inputs' padding that changes its result, or may."""
    if call.name in PAGED:
        return list(_of_blocks(call))
    if call.name in JOINT:
        return list(_of_views(call, store, JOINT[call.name]))
    if call.name in ATTENTION or call.name in DECODING:
        keys = keys_beyond(call, store)
        reads = [] if keys is None or keys.hidden else [keys.read]
        masked = call.kwargs.get("is_causal", True) or call.kwargs.get("attn_mask") is not None
        sees_all = call.name in ATTENTION and not masked
        return reads + list(_of_views(call, store, _KEYS)) if sees_all else reads
    if call.name in PRODUCTS:
        inner = inner_beyond(call, store)
        return [] if inner is None or 0.0 in inner.fills else [inner.read]
    if call.name in ROWS_ADDED_UP:
        row = row_beyond(call, store)
        return [] if row is None or row.hidden else [row.read]
    return []


def with_padding(call: Arguments, store: Store, shards: dict[int, Shards]) -> dict[int, Shards]:
    """Return the inputs of an operation's rule with the padding that a device takes for data, where it is known."""
    grown: list[tuple[Any, int, int, float | None]] = []
    if call.name in ATTENTION or call.name in DECODING:
        keys = keys_beyond(call, store)
        if keys is not None and not keys.hidden:
            grown = [(keys.tensors[0], ROWS, keys.count, keys.k), (keys.tensors[1], ROWS, keys.count, keys.v)]
            grown.append((keys.tensors[2], COLUMNS, keys.count, keys.mask))
    elif call.name in PRODUCTS:
        inner = inner_beyond(call, store)
        if inner is not None and 0.0 not in inner.fills and inner.places[0][0] is not inner.places[1][0]:
            grown = [(*place, inner.count, fill) for place, fill in zip(inner.places, inner.fills, strict=True)]
    elif call.name in ROWS_ADDED_UP:
        row = row_beyond(call, store)
        if row is not None and not row.hidden:
            grown = [(tensor, COLUMNS, row.count, fill) for tensor, fill in row.parts]
    grown = [one for one in grown if one[0] is not None]
    if not grown or any(fill is None for *_, fill in grown):
        return shards
    return shards | {id(one[0]): _grown(shards[id(one[0])], *one[1:]) for one in grown if id(one[0]) in shards}


def within(shape: tuple[int, ...], values: list[Tensor]) -> list[Tensor]:
    """Return what lies within ``shape`` of every device's result of inputs with padding."""
    return shared(lambda value: value[tuple(slice(size) for size in shape)], values)


def _grown(shards: Shards, dim: int, count: int, fill: float) -> Shards:
    sides = (0, count) if dim == COLUMNS else (0, 0, 0, count)
    stored = shared(lambda value: F.pad(shards.shaped(value), sides, value=fill), shards.stored)
    return Shards(stored, stored[0].shape, shards.mesh_shape, shards.dtype)


def _read(argument: str, tensor: ttnn.Tensor, dim: int, fill: float | None, remedy: str) -> PaddingRead:
    view = view_of(tensor)
    return PaddingRead(argument, view.shape, dim, view.rows()[1][dim], fill, remedy)


def _ends_inside(tensor: Any, dim: int) -> bool:
    """Tell whether the rows, or the columns, of a tensor on a device end inside of a tile."""
    tensors = [] if isinstance(tensor, list | tuple) else tensors_in(tensor)
    return any(t.shape != t.padded_shape and on_device(t) and ends_inside(view_of(t))[dim] for t in tensors)


def _length(tensor: ttnn.Tensor, dim: int) -> int:
    """Return how many rows or columns fill up the last tile."""
    return -view_of(tensor).rows()[0][dim] % TILE


@dataclass(frozen=True)
class Keys:
    """The padding of K and V that attention lets take part, unless the padding of its mask hides it.

    Attributes:
        count: how many keys there are beyond the shape.
        k, v: what fills their rows; None if nobody knows.
        mask: what the mask adds to their scores; None if nobody knows.
        tensors: K, V if there is one, and the mask if there is one.
        read: how a finding puts it.
    """

    count: int
    k: float | None
    v: float | None
    mask: float | None
    tensors: tuple[Any, Any, Any]
    read: PaddingRead

    @property
    def hidden(self) -> bool:
        return self.mask is not None and self.mask <= HIDDEN


def keys_beyond(call: Arguments, store: Store) -> Keys | None:
    """Return the keys beyond the shape that attention does not mask itself; None if there are none."""
    arguments = call.named("input_tensor_q", "input_tensor_k", "input_tensor_v")
    k = arguments.get("input_tensor_k")
    mask = arguments.get("attn_mask")
    causal = arguments.get("is_causal", True)
    if not _ends_inside(k, ROWS) or causal or (mask is None and call.name in ATTENTION):
        return None
    v = next(iter(tensors_in(arguments.get("input_tensor_v"))), None)
    k_fill = store.fills(k).rows
    v_fill = k_fill if v is None else store.fills(v).rows
    if mask is None:
        remedy = "pass an attn_mask whose padding is -inf, or fill the cache up to whole tiles"
        read = _read("input_tensor_k", k, ROWS, k_fill, remedy)
        return Keys(_length(k, ROWS), k_fill, v_fill, 0.0, (k, v, None), read)
    added = store.fills(mask).columns
    remedy = "make the mask with pad_value=-inf, or fill it by ttnn.fill_implicit_tile_padding(mask, -inf)"
    read = _read("attn_mask", mask, COLUMNS, added, remedy)
    return Keys(_length(k, ROWS), k_fill, v_fill, added, (k, v, mask), read)


def _of_views(call: Arguments, store: Store, keys: dict[str, int]) -> Iterator[PaddingRead]:
    """Find keys that are a view of whole tiles, so that rows of padding count as rows of the tensor."""
    for name, position in keys.items():
        for k in tensors_in(call.argument(name, position)):
            rows = store.rows_within(k)
            shape = view_of(k).shape
            if rows < shape[ROWS] and not call.kwargs.get("logical_l"):
                remedy = "pass the tensor in its own shape, whose padding attention hides"
                fill = store.values[buffer_of(k)].padding.rows
                yield PaddingRead(name, (*shape[:ROWS], rows, shape[COLUMNS]), ROWS, shape[ROWS], fill, remedy)


def _of_blocks(call: Arguments) -> Iterator[PaddingRead]:
    """Find a paged cache whose blocks end inside of a tile: a device takes the number of whole tiles for their size."""
    k = call.argument("input_tensor_k", 1)
    decodes = "decode" in call.name and view_of(k).shape[ROWS] < TILE  # then the kernel masks the rest of the tile
    if _ends_inside(k, ROWS) and not decodes and call.kwargs.get("paged_cache_geometry") is None:
        yield _read("input_tensor_k", k, ROWS, 0.0, "make the blocks of the cache whole tiles of 32 tokens")


@dataclass(frozen=True)
class Inner:
    """What fills up the inner dim of a matrix product.

    Attributes:
        count: how many columns of one operand, and rows of the other, there are beyond their shapes.
        places: both operands, each with its inner dim.
        fills: what is there in each; None if nobody knows.
        read: how a finding puts it.
    """

    count: int
    places: tuple[tuple[Any, int], tuple[Any, int]]
    fills: tuple[float | None, ...]
    read: PaddingRead


def _zeroed(call: Arguments, a: ttnn.Tensor, b: ttnn.Tensor) -> bool:
    """Whether a product's reader puts zeros beyond the inner dim of ``a``, which no program does to shards in place."""
    config = call.kwargs.get("program_config")
    in_place = getattr(config, "gather_in0", False) or isinstance(config, ttnn.MatmulMultiCoreReuseProgramConfig)
    if config is None:
        in_place = math.prod(tuple(b.shape)[:-2]) > 1
    return call.name in ZEROED and not (a.is_sharded() and in_place)


def inner_beyond(call: Arguments, store: Store) -> Inner | None:
    """Return the padding that a matrix product adds up; None if there is none, or zeros take its place."""
    names = PRODUCTS[call.name]
    a, b = (call.argument(*place) for place in names)
    dim_a = ROWS if call.kwargs.get("transpose_a") else COLUMNS
    dim_b = COLUMNS if call.kwargs.get("transpose_b") else ROWS
    if not _ends_inside(a, dim_a) or not _ends_inside(b, dim_b) or _zeroed(call, a, b):
        return None
    places = ((a, dim_a), (b, dim_b))
    fills = tuple(_fill(store, *place) for place in places)
    fill = None if None in fills else fills[0]
    remedy = f"fill that of this operand or of {names[1][0]} with 0 by ttnn.fill_implicit_tile_padding"
    return Inner(_length(a, dim_a), places, fills, _read(names[0][0], a, dim_a, fill, remedy))


def _fill(store: Store, tensor: ttnn.Tensor, dim: int) -> float | None:
    fills = store.fills(tensor)
    return fills.rows if dim == ROWS else fills.columns


@dataclass(frozen=True)
class Row:
    """The columns beyond the shape that an operation over rows takes along.

    Attributes:
        count: how many.
        hidden: whether they are known to change nothing.
        parts: the tensors that have them, and what is there in each; None if nobody knows.
        read: how a finding puts it.
    """

    count: int
    hidden: bool
    parts: tuple[tuple[Any, float | None], ...]
    read: PaddingRead


def row_beyond(call: Arguments, store: Store) -> Row | None:
    """Return the columns beyond the shape that an operation over rows takes along; None if it takes none."""
    x = call.argument("input_tensor", 0)
    if not _ends_inside(x, COLUMNS):
        return None
    count = _length(x, COLUMNS)
    fill = store.fills(x).columns
    if call.name in SUMS_OF_SQUARES:
        remedy = "fill it with 0 by ttnn.fill_implicit_tile_padding before"
        return Row(count, fill == 0.0, ((x, fill),), _read("input_tensor", x, COLUMNS, fill, remedy))
    if not isinstance(call.kwargs.get("program_config"), ttnn.SoftmaxShardedMultiCoreProgramConfig):
        return None
    mask = call.argument("mask", 2) if "mask" in call.name else None
    scale = call.argument("scale", 1) if "mask" in call.name else None
    parts = ((x, fill), *(() if mask is None else ((mask, store.fills(mask).columns),)))
    known = all(number is not None for _, number in parts)
    score = sum(number * (scale or 1.0) ** (tensor is x) for tensor, number in parts) if known else None
    remedy = "fill it with -inf by ttnn.fill_implicit_tile_padding before"
    read = _read("input_tensor", x, COLUMNS, score, remedy)
    return Row(count, score is not None and score <= HIDDEN, parts, read)
