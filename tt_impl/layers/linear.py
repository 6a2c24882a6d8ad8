"""Linear layers: replicated, column-parallel, row-parallel, with or without bias, and around attention.

Legend: B batch, H local heads, N rows, E features of a head, D features of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import ttnn

from refsim.base.errors import UserError
from refsim.base.padded import note
from refsim.files.checkpoint import Weights
from tt_impl.layers.matmul import Residual, add_gated, gather_matmul, gather_split_matmul, matmul, split_matmul
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE, padded_features, padded_heads
from tt_impl.parallel.tensor import reduce_scatter_features


def pad_to(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Zeros at the end of the last dims until they have ``sizes``."""
    pads = [p for size, have in zip(reversed(sizes), reversed(x.shape), strict=False) for p in (0, size - have)]
    return F.pad(x, pads)


class Linear:
    """The whole linear on every device."""

    def __init__(
        self, weights: Weights, ctx: Context, name: str, *, in_features: int, out_features: int, bias: bool = True
    ) -> None:
        self._ctx = ctx
        self._bias = None
        weight = weights.take(f"{name}.weight", (out_features, in_features))
        self._weight = ctx.put_weight(weight.t()[None, None])
        if bias:
            self._bias = ctx.put(weights.take(f"{name}.bias", (out_features,))[None, None, None])

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return matmul(self._ctx, x, self._weight, self._bias)


class ColParallelLinear:
    """Out features cut over tp, no communication; padded out features are zero.

    Args:
        in_features: of a convolution over patches, used as a linear, the shape that its weight has in the checkpoint.
        gathered_input: the input comes from ``gather_features`` and so has the padded number of features.
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        in_features: int | tuple[int, ...],
        out_features: int,
        gathered_input: bool = False,
        bias: bool = True,
    ) -> None:
        self._ctx = ctx
        self._bias = None
        out_padded = padded_features(out_features, ctx.tp)
        sizes = (in_features,) if isinstance(in_features, int) else in_features
        weight = weights.take(f"{name}.weight", (out_features, *sizes)).flatten(1)
        width = weight.shape[1]
        weight = pad_to(weight, out_padded, padded_features(width, ctx.tp) if gathered_input else width)
        self._weight = ctx.put_weight(weight.t()[None, None], tp_dim=3)
        if bias:
            values = pad_to(weights.take(f"{name}.bias", (out_features,)), out_padded)
            self._bias = ctx.put(values[None, None, None], tp_dim=3)

    def __call__(self, x: ttnn.Tensor, activation: str | None = None) -> ttnn.Tensor:
        """``activation`` as in :func:`tt_impl.layers.matmul.matmul`."""
        return matmul(self._ctx, x, self._weight, self._bias, activation=activation)

    def of_shards(self, x: ttnn.Tensor, activation: str | None = None, *, within: bool = False) -> ttnn.Tensor:
        """Apply to ``x`` with features still cut over tp, gathered on the way; arguments as of ``gather_matmul``."""
        return gather_matmul(self._ctx, x, self._weight, self._bias, activation=activation, within=within)


def put_packed(ctx: Context, parts: Sequence[torch.Tensor], sizes: Sequence[int], width: int) -> ttnn.Tensor:
    """Put parts (out, in) of one column-parallel weight: a device has its lanes of each, one part after the other.

    ``sizes``: of the parts, ``width`` of the in features, with padding.
    """
    padded = [pad_to(part, size, width).unflatten(0, (ctx.tp, -1)) for part, size in zip(parts, sizes, strict=True)]
    return ctx.put_weight(torch.cat(padded, 1).flatten(0, 1).t()[None, None], tp_dim=3)


class PackedColumns:
    """Column-parallel linears of one input in one weight of the checkpoint, each part cut over tp by itself.

    checkpoint      [ part 0 | part 1 | ... ]        out features, one part after the other
    device d        [ d of part 0 | d of part 1 | ... ]

    Args:
        parts: of each, its out features and these with padding, the same for all.
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        in_features: int,
        parts: list[tuple[int, int]],
        bias: bool = True,
    ) -> None:
        self._ctx = ctx
        self._bias = None
        self._chunks = len(parts)
        features = [size for size, _ in parts]
        padded = [size for _, size in parts]
        whole = weights.take(f"{name}.weight", (sum(features), in_features))
        self._weight = put_packed(ctx, whole.split(features), padded, padded_features(in_features, ctx.tp))
        if bias:
            values = weights.take(f"{name}.bias", (sum(features),)).split(features)
            of_device = [pad_to(x, size).unflatten(0, (ctx.tp, -1)) for x, size in zip(values, padded, strict=True)]
            self._bias = ctx.put(torch.cat(of_device, 1).flatten()[None, None, None], tp_dim=3)

    def of_shards(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """(B, 1, rows, local D), gathered on the way -> per part (B, 1, rows, local features)."""
        return gather_split_matmul(self._ctx, x, self._weight, self._bias, chunks=self._chunks)


class RowParallelLinear:
    """In features cut over tp; the partial results are reduced and scattered.

    The bias is added by the first member's matmul, the others' is zero, so that the sum has it once.

    Args:
        in_padded: number of features of the whole input, padding included, where it is not padded to tiles (heads are
            padded to whole heads).
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        in_features: int,
        out_features: int,
        in_padded: int | None = None,
        bias: bool = True,
    ) -> None:
        self._ctx = ctx
        self._bias = None
        out_padded = padded_features(out_features, ctx.tp)
        width = in_padded or padded_features(in_features, ctx.tp)
        weight = pad_to(weights.take(f"{name}.weight", (out_features, in_features)), out_padded, width)
        self._weight = ctx.put_weight(weight.t()[None, None], tp_dim=2)
        if bias:
            values = weights.take(f"{name}.bias", (out_features,))
            self._bias = ctx.put(pad_to(values, out_padded * ctx.tp)[None, None, None], tp_dim=3)

    def __call__(self, x: ttnn.Tensor, onto: Residual | None = None) -> ttnn.Tensor:
        """(B, 1, rows, local K) -> (B, 1, rows, local D); with ``onto``, gated and added to its stream."""
        partial = matmul(self._ctx, x, self._weight, self._bias)
        out = reduce_scatter_features(self._ctx, partial)
        return out if onto is None else add_gated(onto, out)


@dataclass(frozen=True)
class AttentionSizes:
    """Features of the stream, number of heads, and features of a head."""

    features: int
    num_heads: int
    head_dim: int

    @property
    def inner(self) -> int:
        """Features of all heads."""
        return self.num_heads * self.head_dim

    def padded(self, ctx: Context) -> int:
        """Return :attr:`inner` with heads padded to a multiple of tp times what Ulysses cuts a member's heads into."""
        heads = padded_heads(self.num_heads, ctx.tp * ctx.ulysses)
        if heads != self.num_heads and not ctx.options.pad_heads:
            raise UserError(
                f"tp {ctx.tp} x ulysses {ctx.ulysses} cannot split {self.num_heads} heads evenly; allow padding to "
                f"{heads} with --pad-heads."
            )
        over = "tp" if ctx.ulysses == 1 else f"ulysses{ctx.ulysses} x tp"
        return note("heads", self.num_heads, heads, over, ctx.tp) * self.head_dim


def check_head_dim(head_dim: int) -> None:
    """Raise ``UserError`` for heads that :func:`create_heads` cannot split."""
    if head_dim % TILE:
        raise UserError(f"TTNN splits heads by whole tiles, so a head size of {head_dim} must be a multiple of {TILE}.")


def create_heads(qkv: ttnn.Tensor, heads: int) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
    """(B, 1, rows, 3 * heads * E), a device's q, k and v side by side -> three (B, heads, rows, E)."""
    return ttnn.experimental.nlp_create_qkv_heads(
        qkv,
        num_heads=heads,
        num_kv_heads=heads,
        transpose_k_heads=False,
        memory_config=ttnn.DRAM_MEMORY_CONFIG,
    )


class ColParallelQKV:
    """q, k, v as one column-parallel linear; each device gets ``[its q heads | its k heads | its v heads]``."""

    def __init__(
        self, weights: Weights, ctx: Context, names: tuple[str, ...], sizes: AttentionSizes, *, bias: bool = True
    ) -> None:
        self._ctx = ctx
        self._bias = None
        check_head_dim(sizes.head_dim)
        inner = sizes.inner
        padded = sizes.padded(ctx)
        self._parts = len(names)
        self._local_heads = padded // sizes.head_dim // ctx.tp
        width = padded_features(sizes.features, ctx.tp)
        weight = torch.stack(
            [pad_to(weights.take(f"{n}.weight", (inner, sizes.features)), padded, width) for n in names]
        )
        self._weight = ctx.put_weight(self._per_device(weight).t()[None, None], tp_dim=3)
        if bias:
            values = torch.stack([pad_to(weights.take(f"{n}.bias", (inner,)), padded) for n in names])
            self._bias = ctx.put(self._per_device(values)[None, None, None], tp_dim=3)

    def _per_device(self, x: torch.Tensor) -> torch.Tensor:
        """(3, tp * local, ...) -> (tp * 3 * local, ...)."""
        return x.unflatten(1, (self._ctx.tp, -1)).transpose(0, 1).flatten(0, 2)

    def __call__(self, x: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
        """(B, 1, rows, D) gathered -> three (B, local heads, rows, E)."""
        return self._heads(matmul(self._ctx, x, self._weight, self._bias, within=True))

    def of_shards(self, x: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
        """Apply to ``x`` (B, 1, rows, local D), gathered on the way; the result as of a call."""
        return self._heads(gather_matmul(self._ctx, x, self._weight, self._bias, within=True))

    def _heads(self, qkv: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
        return create_heads(qkv, self._local_heads)

    def columns(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """(B, 1, rows, D) gathered -> per name (B, 1, rows, local heads * E), for a norm over all heads."""
        return split_matmul(self._ctx, x, self._weight, self._bias, chunks=self._parts)

    def columns_of_shards(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """Do as :meth:`columns` with ``x`` (B, 1, rows, local D), gathered on the way."""
        if self._parts == 1:
            return [gather_matmul(self._ctx, x, self._weight, self._bias)]
        return gather_split_matmul(self._ctx, x, self._weight, self._bias, chunks=self._parts)


class RowParallelHeads:
    """The linear after attention: the device's heads side by side, then row-parallel."""

    def __init__(self, weights: Weights, ctx: Context, name: str, sizes: AttentionSizes, *, bias: bool = True) -> None:
        padded = sizes.padded(ctx)
        self._linear = RowParallelLinear(
            weights, ctx, name, in_features=sizes.inner, out_features=sizes.features, in_padded=padded, bias=bias
        )

    def __call__(self, x_BHNE: ttnn.Tensor, onto: Residual | None = None) -> ttnn.Tensor:
        """(B, local heads, rows, E) -> (B, 1, rows, local D); with ``onto``, gated and added to its stream."""
        return self._linear(ttnn.experimental.nlp_concat_heads(x_BHNE), onto)
