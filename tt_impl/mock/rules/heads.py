"""Between [.., N, D] and heads [B, H, N, E]."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import TILE, Call, nobodys, per_device, table
from tt_impl.mock.storage.not_finite import UNWRITTEN


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Turn [B, (1,) N, H*E] into [B, H, N, E]."""
    return x.reshape(x.shape[0], x.shape[-2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Turn [B, H, N, E] into [B, N, H*E]."""
    return x.transpose(1, 2).flatten(2)


def _split_qkv(
    qkv: Tensor, kv: Tensor | None, heads: int, kv_heads: int | None, transposed: bool = False, kv_tied: bool = False
) -> list[Tensor]:
    """Split columns [all heads of Q | all of K | all of V], K and V possibly from another tensor, or one section.

    K and V have as many heads as Q unless ``kv_heads`` says how many; K comes out ``transposed`` if asked for. With no
    heads of K and V, all columns are Q's, and K and V come out as [B, 0, N, E].
    """
    kv_heads = heads if kv_heads is None else kv_heads
    if kv_heads == 0:
        q = split_heads(qkv, heads)
        k = q[:, :0]
        v = k
        return [q, k.mT if transposed else k, v]
    if kv is None:
        size = qkv.shape[-1] // (heads + (1 if kv_tied else 2) * kv_heads)
        q, kv = qkv.split([heads * size, qkv.shape[-1] - heads * size], -1)
    else:
        q = qkv
    k, v = (kv, kv) if kv_tied else kv.chunk(2, -1)
    return _heads_of(q, k, v, heads, kv_heads, transposed)


def _heads_of(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, transposed: bool) -> list[Tensor]:
    k = split_heads(k, kv_heads)
    return [split_heads(q, heads), k.mT if transposed else k, split_heads(v, kv_heads)]


def _split_groups(qkv: Tensor, kv: Tensor | None, heads: int, kv_heads: int | None, transposed: bool) -> list[Tensor]:
    """Split columns of group after group of heads: [Q heads of the group | its K | its V], K and V possibly apart."""
    kv_heads = heads if kv_heads is None else kv_heads
    shared = heads // kv_heads
    by_group = qkv.unflatten(-1, (kv_heads, -1))
    if kv is None:
        size = by_group.shape[-1] // (shared + 2)
        q, k, v = by_group.split([shared * size, size, size], -1)
    else:
        q = by_group
        k, v = kv.unflatten(-1, (kv_heads, -1)).chunk(2, -1)
    return _heads_of(q.flatten(-2), k.flatten(-2), v.flatten(-2), heads, kv_heads, transposed)


def _split_pairs(qkv: Tensor, kv: Tensor | None, heads: int, kv_heads: int | None, transposed: bool) -> list[Tensor]:
    """Split pairs of tokens, [1, N, N, (H + 2 Hkv) * E], into q [H, N, N, E], k and v [Hkv, N, N, E]."""
    if qkv.shape[0] != 1 or transposed:
        raise TypeError("a batch, or transpose_k_heads, is not known")
    kv = None if kv is None else kv[0]
    return [x.transpose(0, 1) for x in _split_qkv(qkv[0], kv, heads, kv_heads)]


def _split_by(split: Callable[..., list[Tensor]], *names: str) -> None:
    """Register what splits [B, 1, N, (H + 2 Hkv) * E] into q [B, H, N, E], k and v [B, Hkv, N, E]; k transposed by
    default. K and V may come in a tensor of their own.
    """

    def rule(
        input: Tensor,
        input_kv: Tensor | None = None,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        transpose_k_heads: bool = True,
        **tied: bool,
    ) -> list[Tensor]:
        return split(input, input_kv, num_heads, num_kv_heads, transpose_k_heads, **tied)

    rule.__qualname__ = names[0].rpartition(".")[2]
    per_device(*names)(rule)


_split_by(_split_qkv, "experimental.nlp_create_qkv_heads")
_split_by(_split_pairs, "experimental.nlp_create_qkv_heads_boltz")
_split_by(_split_groups, "experimental.create_qkv_heads", "experimental.create_qkv_heads_from_separate_tensors")


@per_device("experimental.nlp_create_qkv_heads_segformer", with_call=True)
def nlp_create_qkv_heads_segformer(call: Call, input: Tensor) -> list[Tensor]:
    """Split [B, 1, N, H * 32] into q [B, H, N, 32]; the other two outputs are not written: NaN."""
    rest = (nobodys(output.shape) for output in call.outputs[1:])
    return [split_heads(input, call.outputs[0].shape[1]), *rest]


@per_device("experimental.nlp_create_q_heads_split")
def nlp_create_q_heads_split(input: Tensor, *, num_heads: int, split_head_dim: int) -> list[Tensor]:
    """Split [B, 1, N, H * E] into heads [B, H, N, E], cut into the first ``split_head_dim`` columns and the others."""
    return list(split_heads(input, num_heads).tensor_split([split_head_dim], -1))


@per_device("transformer.split_query_key_value_and_split_heads", with_call=True)
def split_query_key_value_and_split_heads(
    call: Call,
    input_tensor: Tensor,
    kv_input_tensor: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_key: bool = True,
    use_falcon7b_backend: bool = False,
) -> list[Tensor]:
    """Split [B, N, (H + 2 Hkv) * E] into q [B, H, N, E], k and v [B, Hkv, N, E]; k transposed by default.

    The columns of a sharded input are those of ``create_qkv_heads``: group after group.
    """
    split = _split_groups if call.argument("input_tensor", 0).is_sharded() else _split_qkv
    return split(input_tensor, kv_input_tensor, num_heads, num_kv_heads, transpose_key)


table(
    {
        "experimental.nlp_concat_heads": lambda input_tensor: join_heads(input_tensor).unsqueeze(1),
        # [H, N, N, E] -> [1, N, N, H*E]
        "experimental.nlp_concat_heads_boltz": lambda input_tensor: input_tensor.permute(1, 2, 0, 3).flatten(2)[None],
        # 71 heads of Q and one each of K and V, of 64
        "experimental.nlp_create_qkv_heads_falcon7b": lambda input: _split_qkv(input, None, 71, 1),
        # twelve heads of 64 each of Q, K and V
        "experimental.nlp_create_qkv_heads_vit": lambda input: _split_qkv(input, None, 12, 12),
        "transformer.concatenate_heads": lambda input_tensor: join_heads(input_tensor),
    }
)


@per_device("experimental.nlp_create_qkv_heads_decode")
def nlp_create_qkv_heads_decode(
    input_tensor: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    overlap_qk_coregrid: bool | None = True,
    batch_offset: Tensor | None = None,
    slice_size: int | None = None,
) -> list[Tensor]:
    """Split one token of B users, [1, 1, B, (H + 2 Hkv) * E], into q [1, B, H, E], k and v [1, B, Hkv, E].

    With a ``slice_size``, that many users from ``batch_offset`` on.
    """
    if slice_size is not None:
        first = 0 if batch_offset is None else int(batch_offset.reshape(-1)[0])
        input_tensor = input_tensor[:, :, first : first + slice_size]
    return [x.transpose(1, 2) for x in _split_qkv(input_tensor, None, num_heads, num_kv_heads)]


@per_device("experimental.nlp_concat_heads_decode")
def nlp_concat_heads_decode(input_tensor: Tensor, *, num_heads: int) -> Tensor:
    """Join [1, B, >= H, E] to [1, 1, max(B, 32), H*E]; what lies behind the rows of the users is not written: NaN."""
    rows = input_tensor[:, :, :num_heads].flatten(2).unsqueeze(1)
    return F.pad(rows, (0, 0, 0, max(0, TILE - rows.shape[2])), value=UNWRITTEN)
