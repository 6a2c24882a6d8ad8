"""Linear layers: replicated, column-parallel, row-parallel and the fused, reshuffled QKV."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.parallel.padding import padded_features, padded_heads
from refsim.parallel.sequence import Range
from refsim.parallel.tensor import (
    column_linear,
    concat_heads,
    fused_column_linear,
    row_linear,
    shard_range,
    split_heads,
)
from refsim.runtime.device import Device, in_module
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor


class Linear:
    """The whole linear on every device, for what is small or comes after the last gather."""

    def __init__(self, weights: Weights, name: str, *, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = weights.take(f"{name}.weight", (out_features, in_features))
        self.bias = weights.take(f"{name}.bias", (out_features,)) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ColParallelLinear:
    """Out features cut over tp. Input tp=Replicate (padded features allowed), output tp=Shard(-1), padded to tiles.

    Args:
        in_features: of a convolution over patches, used as a linear, the shape that its weight has in the checkpoint.
        gathered_input: the input comes from ``gather_features`` and so has the padded number of features.
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        in_features: int | tuple[int, ...],
        out_features: int,
        gathered_input: bool = False,
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        rows = shard_range(padded_features(out_features, tp.size), tp)
        sizes = (in_features,) if isinstance(in_features, int) else in_features
        columns = [(0, padded_features(sizes[0], tp.size))] if gathered_input else []
        self.weight = weights.take(f"{name}.weight", (out_features, *sizes), rows, *columns).flatten(1)
        self.bias = weights.take(f"{name}.bias", (out_features,), rows) if bias else None

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        out = column_linear(self._device, x, self.weight, self.bias)
        self._device.observe(self._name, out)
        return out


def take_part(
    weights: Weights,
    name: str,
    shape: tuple[int, ...],
    part: Range,
    mine: Range,
    *,
    dim: int,
    other: Range | None = None,
) -> Tensor:
    """Take this device's lanes of one part of a packed weight or bias, as if the part were one of its own.

    A part's padding must not reach into the next part, so its real lanes are taken and padded.

    Args:
        shape: of the whole.
        part: the lanes of ``dim`` that the part has.
        mine: lanes of the padded part that this device holds, counted from the part's first.
        other: range of a weight's other dim; lanes beyond the shape are zeros.
    """
    first, last = part
    start, stop = (min(first + lane, last) for lane in mine)
    others = [] if other is None else [other]
    ranges = ((start, stop), *others) if dim == 0 else (*others, (start, stop))
    lanes = weights.take(name, shape, *ranges)
    missing = (mine[1] - mine[0]) - (stop - start)
    return F.pad(lanes, (0, 0) * (len(shape) - 1 - dim) + (0, missing)) if missing else lanes


class PackedColumns:
    """Column-parallel linears of one input in one weight of the checkpoint, each part cut over tp by itself.

        checkpoint      [ part 0 | part 1 | ... ]        out features, one part after the other
        device d        [ d of part 0 | d of part 1 | ... ]

    Input tp=Replicate with padded features, output per part tp=Shard(-1), padded; padded out features are zero.

    Args:
        parts: of each, its out features and these with padding.
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        in_features: int,
        parts: list[tuple[int, int]],
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        stops = list(accumulate(features for features, _ in parts))
        self._parts = [(stop - features, stop) for (features, _), stop in zip(parts, stops, strict=True)]
        columns = (0, padded_features(in_features, tp.size))
        lanes = list(zip(self._parts, (shard_range(padded, tp) for _, padded in parts), strict=True))
        shape = (stops[-1], in_features)
        self.weights = [take_part(weights, f"{name}.weight", shape, *each, dim=0, other=columns) for each in lanes]
        self.biases: list[Tensor | None] = [None] * len(parts)
        if bias:
            self.biases = [take_part(weights, f"{name}.bias", shape[:1], *each, dim=0) for each in lanes]

    @in_module
    def __call__(self, x: MeshTensor) -> list[MeshTensor]:
        out = fused_column_linear(self._device, x, self.weights, self.biases)
        sizes = [len(weight) for weight in self.weights]
        parts = [out.with_local(local) for local in out.local.split(sizes, -1)]
        for (start, stop), part in zip(self._parts, parts, strict=True):
            self._device.observe(f"{self._name}@{start}:{stop}", part)
        return parts


class RowParallelLinear:
    """In features cut over tp. Input tp=Shard(-1), output tp=Shard(-1) after reduce_scatter, padded to tiles.

    Args:
        in_padded: number of features of the whole input, padding included, where it is not padded to tiles (heads are
            padded to whole heads).
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        in_features: int,
        out_features: int,
        in_padded: int | None = None,
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = name
        tp = device.groups["tp"]
        padded = padded_features(out_features, tp.size)
        columns = shard_range(in_padded or padded_features(in_features, tp.size), tp)
        self.weight = weights.take(f"{name}.weight", (out_features, in_features), (0, padded), columns)
        self.bias = weights.take(f"{name}.bias", (out_features,), shard_range(padded, tp)) if bias else None

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        self._device.observe(f"{self._name}.in", x)
        return self.project(x)

    def project(self, x: MeshTensor) -> MeshTensor:
        """Multiply what has been observed in a shape of its own."""
        out = row_linear(self._device, x, self.weight, self.bias, name=self._name)
        self._device.observe(self._name, out)
        return out


@dataclass(frozen=True)
class AttentionSizes:
    """Features of the stream, number of heads, and features of a head."""

    features: int
    num_heads: int
    head_dim: int

    @property
    def inner(self) -> int:
        """Return the features of all heads."""
        return self.num_heads * self.head_dim

    def padded(self, tp: Group) -> int:
        """Return the same, heads padded to a multiple of the group."""
        return padded_heads(self.num_heads, tp.size) * self.head_dim


class ColParallelQKV:
    """q, k, v (or only some of them) as one column-parallel linear, a device's share [q | k | v of its heads].

    Input (B, rows, D) tp=Replicate, output per name (B, local heads, rows, E) with tp=Shard(1) and the tokens cut as
    they came in; heads beyond the real ones have zero weights.
    """

    def __init__(
        self, weights: Weights, device: Device, names: tuple[str, ...], sizes: AttentionSizes, *, bias: bool = True
    ) -> None:
        self._device = device
        self._names = names
        self._head_dim = sizes.head_dim
        self._name = "+".join([names[0], *(name.rpartition(".")[2] for name in names[1:])])
        tp = device.groups["tp"]
        rows = shard_range(sizes.padded(tp), tp)
        columns = (0, padded_features(sizes.features, tp.size))
        self.weights = [weights.take(f"{n}.weight", (sizes.inner, sizes.features), rows, columns) for n in names]
        self.biases = [weights.take(f"{n}.bias", (sizes.inner,), rows) if bias else None for n in names]

    @in_module
    def __call__(self, x: MeshTensor) -> tuple[MeshTensor, ...]:
        qkv = fused_column_linear(self._device, x, self.weights, self.biases)
        parts = [qkv.with_local(t) for t in qkv.local.chunk(len(self.weights), -1)]
        for name, part in zip(self._names, parts, strict=True):
            self._device.observe(name, part)
        return tuple(split_heads(part, self._head_dim) for part in parts)


class RowParallelHeads:
    """The linear after attention: heads cut over tp side by side, then row-parallel.

    Input (B, local heads, rows, E) tp=Shard(1), output (B, rows, local D) tp=Shard(-1), tokens cut as they came in.
    """

    def __init__(
        self, weights: Weights, device: Device, name: str, sizes: AttentionSizes, *, bias: bool = True
    ) -> None:
        self._device = device
        self._name = name
        padded = sizes.padded(device.groups["tp"])
        self._linear = RowParallelLinear(
            weights, device, name, in_features=sizes.inner, out_features=sizes.features, in_padded=padded, bias=bias
        )

    @in_module
    def __call__(self, x_BHNE: MeshTensor) -> MeshTensor:
        self._device.observe(f"{self._name}.in", x_BHNE)
        return self._linear.project(concat_heads(x_BHNE))
