"""Attention whose tokens are cut over a ring of devices.

K and V are gathered as they are stored, and one device's at a time are widened, with the joint stream behind them.

Legend: B batch, H heads, N tokens of this device, M tokens of the whole ring, L joint tokens, E head size, P devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import ttnn
from torch import Tensor

from tt_impl.mock.rules.attention import attend
from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.decode import unpaged
from tt_impl.mock.rules.registry import Call, across, nobodys
from tt_impl.mock.storage.values import Shards


@across(
    "transformer.ring_joint_scaled_dot_product_attention", "transformer.exp_ring_joint_scaled_dot_product_attention"
)
def ring_joint_scaled_dot_product_attention(
    call: Call,
    input_tensor_q: Shards,
    input_tensor_k: Shards,
    input_tensor_v: Shards,
    joint_tensor_q: Shards | None = None,
    joint_tensor_k: Shards | None = None,
    joint_tensor_v: Shards | None = None,
    *,
    joint_strategy: str,
    logical_n: int,
    logical_l: int = 0,
    scale: float | None = None,
    dim: int,
    cluster_axis: int,
    is_causal: bool = False,
    is_balanced: bool = False,
    is_cross: bool = False,
    attend_by_steps: Callable[..., Tensor] | None = None,
) -> tuple[list[Tensor], ...]:
    """Gather K and V [B, H, M, E], whose tokens are cut over the ring; token ``logical_n`` and later are padding.

    The joint stream is whole on every device (``logical_l`` 0), or cut over the ring too and padded from
    ``logical_l`` on. Returns attention of this device's tokens and of its joint tokens, and ttnn's third output,
    running maxima and sums that are nobody's business: NaN. The persistent buffers hold the gathered K and V then.
    ``attend_by_steps`` is told its place in the ring and attends to one shard after the other.
    """
    if dim != 2 or is_cross or not isinstance(logical_n, int):
        raise call.unsupported("dim other than 2, cross attention, logical_n as a tensor")
    k_all, v_all = (gathered(x, 2, cluster_axis, as_stored=True) for x in (input_tensor_k, input_tensor_v))
    call.written("persistent_output_buffer_k", k_all)
    call.written("persistent_output_buffer_v", v_all)
    has_joint = joint_tensor_q is not None and joint_tensor_q.shape[2] > 0
    if not has_joint:
        joint_tensor_k = None
        joint_tensor_v = None
    if is_causal or is_balanced:
        if not is_causal or input_tensor_q.shape[2] != input_tensor_k.shape[2]:
            raise call.unsupported("balanced attention that is not causal, or causal with other rows of Q than of K")
        attention = _attention(attend_by_steps, input_tensor_k, cluster_axis, k_all[0].shape[2], scale)
        out = _causal(call, input_tensor_q, (k_all, v_all), cluster_axis, logical_n, is_balanced, attention)
        return out, *_left_over(call, len(out))
    if has_joint and logical_l:
        joint_tensor_k, joint_tensor_v = _joined(call, joint_tensor_k, joint_tensor_v, logical_l, cluster_axis)

    attention, *ranks = _attention(attend_by_steps, input_tensor_k, cluster_axis, logical_n, scale)

    def of_device(q: Tensor, k: Tensor, v: Tensor, joint_k: Tensor, joint_v: Tensor, *rank: int) -> Tensor:
        seen = (_visible(*streams, logical_n, logical_l) for streams in ((k, joint_k), (v, joint_v)))
        return _narrow(call, attention(q, *seen, *rank))

    seen = k_all, v_all, joint_tensor_k, joint_tensor_v, *ranks
    out = call.each(of_device, input_tensor_q, *seen)
    rear, scratch = _left_over(call, len(out))
    return out, call.each(of_device, joint_tensor_q, *seen) if has_joint else rear, scratch


def _joined(call: Call, k: Shards, v: Shards, tokens: int, axis: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gather a joint stream that is cut over the ring, into the persistent buffers, too."""
    if tokens <= k.shape[2]:  # ttnn takes it for replicated then, whatever was meant
        raise call.unsupported(f"logical_l {tokens} of a joint stream of which one device has as many rows")
    k_all, v_all = (gathered(x, 2, axis, as_stored=True) for x in (k, v))
    call.written("persistent_output_buffer_joint_k", k_all)
    call.written("persistent_output_buffer_joint_v", v_all)
    return k_all, v_all


def _visible(spatial: Tensor, joint: Tensor | None, tokens: int, joint_tokens: int) -> Tensor:
    """Return the rows that a device attends to, in float32: the tokens of the ring, then the joint ones (0: all)."""
    rows = spatial[:, :, :tokens].float()
    return rows if joint is None else torch.cat([rows, joint[:, :, : joint_tokens or None].float()], 2)


def _narrow(call: Call, out: Tensor) -> Tensor:
    """Round a device's answer at once where it is stored as bfloat16: answers of all devices are long sequences."""
    return out.bfloat16() if call.outputs[0].dtype == ttnn.bfloat16 else out


def _attention(
    attend_by_steps: Callable[..., Tensor] | None, k: Shards, axis: int, tokens: int, scale: float | None
) -> tuple:
    """Return attention of Q, K and V; one by steps is told where shards begin, and the ranks are another argument."""
    if attend_by_steps is None:
        return (partial(attend, scale=scale),)
    rows = [min(place * k.shape[2], tokens) for place in range(k.ring_size(axis) + 1)]
    return partial(attend_by_steps, rows=rows, scale=scale), k.places(axis)


def _left_over(call: Call, devices: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the attention of a joint stream that is not there, and what the device keeps for itself."""
    nothing = torch.zeros(tuple(call.outputs[1].shape))
    return [nothing] * devices, [nobodys(call.outputs[2].shape)] * devices


def _causal(
    call: Call, q: Shards, kv: tuple[list[Tensor], list[Tensor]], axis: int, tokens: int, balanced: bool,
    by_rank: tuple,
) -> list[Tensor]:  # fmt: skip
    """Attend to the tokens up to each; balanced, a device has one stretch from the front and one from the rear."""
    ranks = q.places(axis)
    size = q.ring_size(axis)
    places = [stretches(rank, size, q.shape[2], balanced) for rank in range(size)]
    columns = torch.cat(places)
    attend, *by_steps = by_rank

    def attention(q: Tensor, k: Tensor, v: Tensor, rank: int) -> Tensor:
        def hidden(rows: Tensor, seen: Tensor) -> Tensor:
            return (columns[seen] > places[rank][rows]) | (columns[seen] >= tokens)

        place = (rank,) if by_steps else ()
        return _narrow(call, attend(q, k.float(), v.float(), *place, hidden=hidden))

    return call.each(attention, q, *kv, ranks)


def stretches(rank: int, size: int, length: int, balanced: bool) -> Tensor:
    """Return the numbers in the whole sequence of a device's ``length`` tokens."""
    if not balanced:
        return torch.arange(rank * length, (rank + 1) * length)
    half = length // 2
    return torch.cat([stretches(place, 2 * size, half, False) for place in (rank, 2 * size - 1 - rank)])


@across("transformer.ring_distributed_scaled_dot_product_attention")
def ring_distributed_scaled_dot_product_attention(
    call: Call,
    input_tensor_q: Shards,
    input_tensor_k: Shards,
    input_tensor_v: Shards,
    ring_size: int,
    ring_id: int | None = None,
    *,
    scale: float | None = None,
    page_table: Shards | None = None,
    chunk_start_idx: int | None = None,
    attend: Callable[..., Tensor] = attend,
) -> list[Tensor]:
    """Attend causally from a part of the rows: device r of P has stretches r and 2P-1-r of 2P, after each other.

    Q holds all rows on every device, from token ``chunk_start_idx`` of K and V on, which may be paged.
    """
    rows, columns = input_tensor_q.mesh_shape
    if ring_id is not None:
        ranks = [ring_id] * (rows * columns)
    elif 1 in (rows, columns) and rows * columns == ring_size:
        ranks = list(range(ring_size))
    else:
        raise call.unsupported(f"no ring_id, with a ring of {ring_size} on a mesh of {rows}x{columns}")
    start = chunk_start_idx or 0
    length = input_tensor_q.shape[2] // ring_size

    def attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, rank: int) -> Tensor:
        places = stretches(rank, ring_size, length, balanced=True)
        if table is not None:
            k, v = (unpaged(cache, table) for cache in (k, v))

        def hidden(rows: Tensor, seen: Tensor) -> Tensor:
            return seen > places[rows] + start

        return attend(q[:, :, places], k, v, scale=scale, hidden=hidden)

    return call.each(attention, input_tensor_q, input_tensor_k, input_tensor_v, page_table, ranks)
