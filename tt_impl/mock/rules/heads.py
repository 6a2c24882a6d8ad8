"""Between [.., N, D] and heads [B, H, N, E]."""

from __future__ import annotations

from torch import Tensor

from tt_impl.mock.rules.registry import per_device


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, (1,) N, H*E] -> [B, H, N, E]."""
    batch, rows = x.shape[0], x.shape[-2]
    return x.reshape(batch, rows, heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, N, E] -> [B, N, H*E]."""
    batch, _, rows, _ = x.shape
    return x.transpose(1, 2).reshape(batch, rows, -1)


def _split_qkv(qkv: Tensor, kv: Tensor | None, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Columns [all heads of Q | all of K | all of V], K and V possibly from a tensor of their own.

    With no heads of K and V, all columns are Q's, and K and V come out as [B, 0, N, E].
    """
    if kv_heads == 0:
        q = split_heads(qkv, heads)
        return q, q[:, :0], q[:, :0]
    if kv is None:
        size = qkv.shape[-1] // (heads + 2 * kv_heads)
        q, k, v = qkv.split([heads * size, kv_heads * size, kv_heads * size], -1)
    else:
        q, (k, v) = qkv, kv.chunk(2, -1)
    return split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)


@per_device("experimental.nlp_create_qkv_heads")
def nlp_create_qkv_heads(
    input: Tensor,
    input_kv: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    kv_tied: bool = False,
) -> list[Tensor]:
    """[B, 1, N, (H + 2 Hkv) * E] -> q [B, H, N, E], k and v [B, Hkv, N, E]; k transposed by default."""
    if kv_tied:
        raise TypeError("kv_tied is not known")
    q, k, v = _split_qkv(input, input_kv, num_heads, num_heads if num_kv_heads is None else num_kv_heads)
    return [q, k.transpose(-1, -2) if transpose_k_heads else k, v]


@per_device("transformer.split_query_key_value_and_split_heads")
def split_query_key_value_and_split_heads(
    input_tensor: Tensor,
    kv_input_tensor: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_key: bool = True,
) -> list[Tensor]:
    """[B, N, (H + 2 Hkv) * E] -> q [B, H, N, E], k and v [B, Hkv, N, E]; k transposed by default."""
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    q, k, v = _split_qkv(input_tensor, kv_input_tensor, num_heads, kv_heads)
    return [q, k.transpose(-1, -2) if transpose_key else k, v]


@per_device("transformer.concatenate_heads")
def concatenate_heads(input_tensor: Tensor) -> Tensor:
    return join_heads(input_tensor)


@per_device("experimental.nlp_concat_heads")
def nlp_concat_heads(input_tensor: Tensor) -> Tensor:
    """[B, H, N, E] -> [B, 1, N, H*E]."""
    return join_heads(input_tensor).unsqueeze(1)


@per_device("experimental.nlp_create_qkv_heads_decode")
def nlp_create_qkv_heads_decode(
    input_tensor: Tensor, *, num_heads: int, num_kv_heads: int | None = None, overlap_qk_coregrid: bool | None = True
) -> list[Tensor]:
    """One token of B users, [1, 1, B, (H + 2 Hkv) * E] -> q [1, B, H, E], k and v [1, B, Hkv, E]."""
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    return [x.transpose(1, 2) for x in _split_qkv(input_tensor, None, num_heads, kv_heads)]


@per_device("experimental.nlp_concat_heads_decode")
def nlp_concat_heads_decode(input_tensor: Tensor, *, num_heads: int) -> Tensor:
    """[1, B, >= H, E] -> [1, 1, B, H*E]."""
    return input_tensor[:, :, :num_heads].flatten(2).unsqueeze(1)
