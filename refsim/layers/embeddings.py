"""Embeddings: sinusoidal time step, pooled text, tokens, and image patches with the cropped positional table."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.linear import ColParallelLinear, Linear
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards, cut_tokens
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor

Grid = tuple[int, int, int]
"""Patches of a video: frames, rows, columns."""


def timestep_embedding(timestep: Tensor, features: int, *, scale: int = 1) -> Tensor:
    """Map (B,) or (B, N) in 0..1000, in fp32, to (..., features) in fp32: [cos, sin] of t * 10000^(-k / half).

    ``scale``: what the angles are multiplied by, for times in 0..1.
    """
    half = features // 2
    exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32) / half
    angles = timestep[..., None] * torch.exp(exponent)
    if scale != 1:
        angles = scale * angles
    return torch.cat([angles.cos(), angles.sin()], -1)


class TwoLinears:
    """``linear_1``, SiLU, ``linear_2`` of the module ``name``, on every device; ``bias``: both have one."""

    def __init__(self, weights: Weights, name: str, *, in_features: int, features: int, bias: bool = True) -> None:
        out = {"out_features": features, "bias": bias}
        self._first = Linear(weights, f"{name}.linear_1", in_features=in_features, **out)
        self._second = Linear(weights, f"{name}.linear_2", in_features=features, **out)

    def __call__(self, x: Tensor) -> Tensor:
        return self._second(F.silu(self._first(x)))


class TimestepEmbedding:
    """The sinusoid of a time step, or of another number, through two linears of the module ``name``, on every device.

    Args:
        width: of the sinusoid.
        scale: what its angles are multiplied by.
        bias: both linears have one.
    """

    def __init__(
        self, weights: Weights, name: str, *, features: int, width: int = 256, scale: int = 1, bias: bool = True
    ) -> None:
        self._width = width
        self._scale = scale
        self._linears = TwoLinears(weights, name, in_features=width, features=features, bias=bias)

    def __call__(self, timestep: Tensor, dtype: torch.dtype) -> Tensor:
        """Map (B,) or (B, N), in fp32, to (..., features) in ``dtype``."""
        return self._linears(timestep_embedding(timestep, self._width, scale=self._scale).to(dtype))


class TimeTextEmbedding:
    """Time step and pooled text, each through Linear, SiLU, Linear, then summed; replicated on every device."""

    def __init__(self, weights: Weights, name: str, *, features: int, pooled_features: int) -> None:
        self._time = TimestepEmbedding(weights, f"{name}.timestep_embedder", features=features)
        self._text = TwoLinears(weights, f"{name}.text_embedder", in_features=pooled_features, features=features)

    def __call__(self, timestep_B: Tensor, pooled_BP: Tensor) -> Tensor:
        return self._time(timestep_B, pooled_BP.dtype) + self._text(pooled_BP)


class PatchEmbed:
    """Patches of a latent -> tokens, plus the positional table cropped around its centre.

    A device embeds its own tokens only: latent rows are cut into patches on the host, the table is cut to the same
    tokens (and, over tp, to the same features).

        table (S, S) --centre crop--> (h, w) --row-major--> token t = row * w + column
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        patch: int,
        in_channels: int,
        features: int,
        table_size: int,
    ) -> None:
        self._device = device
        self._weights = weights.alone()
        self._name = name
        self._patch = patch
        self._features = features
        self.table_size = table_size
        self._proj = ColParallelLinear(
            weights, device, f"{name}.proj", in_features=(in_channels, patch, patch), out_features=features
        )
        self.table_rows([(0, 0)])  # declares the table as used, reads nothing

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the patches (rows, columns) of a latent; ``UserError`` if it does not fit the patch or the table."""
        p = self._patch
        s = self.table_size
        if height % p or width % p:
            raise UserError(f"a latent of {height}x{width} does not divide into {p}x{p} patches; pad or crop it.")
        rows = height // p
        columns = width // p
        if max(rows, columns) > s:
            raise UserError(
                f"a latent of {height}x{width} needs a positional table of {max(rows, columns)} but the checkpoint "
                f"has pos_embed_max_size {s}; use at most {s * p}x{s * p}."
            )
        return rows, columns

    def patchify(self, latent_BCHW: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, N, C * p * p), tokens row-major."""
        rows, columns = self.grid(*latent_BCHW.shape[2:])
        p = self._patch
        x = latent_BCHW.unflatten(2, (rows, p)).unflatten(4, (columns, p))
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    @in_module
    def __call__(self, latent_BCHW: Tensor, tokens: TokenShards, shard: int) -> MeshTensor:
        """Map latent on the host to (B, local N, local D), sp=Shard(1), tp=Shard(-1)."""
        patches = cut_tokens(self._device, MeshTensor(self.patchify(latent_BCHW)), tokens, dim=1)
        rows, columns = self.grid(*latent_BCHW.shape[2:])
        x = self._proj(patches)
        table = self.position(rows, columns, tokens.tokens(shard))
        return x.map("positional table", F.pad(table, (0, 0, 0, x.local.shape[1] - table.shape[0])).add)

    def position(self, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
        """Return the positional rows (tokens of ``span``, local D)."""
        s = self.table_size
        top = (s - rows) // 2
        left = (s - columns) // 2
        spans = []
        start, stop = span
        while start < stop:
            row, column = divmod(start, columns)
            length = min(columns - column, stop - start)
            first = (top + row) * s + left + column
            spans.append((first, first + length))
            start += length
        return torch.cat(self.table_rows(spans or [(0, 0)]))

    def table_rows(self, spans: list[tuple[int, int]]) -> list[Tensor]:
        tp = self._device.groups["tp"]
        features = shard_range(padded_features(self._features, tp.size), tp)
        shape = (1, self.table_size**2, self._features)
        return [self._weights.take(f"{self._name}.pos_embed", shape, None, span, features)[0] for span in spans]


class VideoPatches:
    """The convolution over patches of a video as a column-parallel linear on this member's tokens, and back.

    Args:
        patch: frames, rows and columns of a patch.
        in_features: of the linear, C * frames * rows * columns; the dims of its weight where it is a convolution's.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        patch: Grid,
        in_features: int | tuple[int, ...],
        features: int,
    ) -> None:
        self._device = device
        self._patch = patch
        self._proj = ColParallelLinear(weights, device, name, in_features=in_features, out_features=features)

    def grid(self, size: tuple[int, ...]) -> Grid:
        """Return how many patches a latent (frames, height, width) has; ``UserError`` if it does not fit."""
        if any(n % p for n, p in zip(size, self._patch, strict=True)):
            raise UserError(
                f"a latent of {'x'.join(map(str, size))} (frames, height, width) does not divide into "
                f"{'x'.join(map(str, self._patch))} patches; pad or crop it."
            )
        frames, rows, columns = (n // p for n, p in zip(size, self._patch, strict=True))
        return frames, rows, columns

    def __call__(self, latent_BCTHW: Tensor, tokens: TokenShards) -> MeshTensor:
        """Map a latent on every device to (B, local N, local D), sp=Shard(1), tp=Shard(-1)."""
        t, h, w = self.grid(latent_BCTHW.shape[2:])
        pt, ph, pw = self._patch
        x = latent_BCTHW.unflatten(4, (w, pw)).unflatten(3, (h, ph)).unflatten(2, (t, pt))
        patches_BNP = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)  # (B, t h w, C pt ph pw)
        return self._proj(cut_tokens(self._device, MeshTensor(patches_BNP), tokens, dim=1))

    def unpatchify(self, out_BNP: Tensor, grid: Grid) -> Tensor:
        """Map (B, N, pt * ph * pw * C) with the channel innermost to (B, C, T, H, W)."""
        x = out_BNP.unflatten(2, (*self._patch, -1)).unflatten(1, grid)
        return x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6).flatten(4, 5).flatten(2, 3).contiguous()


class TokenEmbedding:
    """Rows of a table of tokens, each read when it is first asked for: the table is larger than several layers.

    Raises:
        UserError: the table is missing or has another shape; at a call, an id that is not in the vocabulary.
    """

    def __init__(self, weights: Weights, name: str, *, vocab_size: int, features: int) -> None:
        self._weights = weights.alone()
        self._name = f"{name}.weight"
        self._shape = (vocab_size, features)
        self._rows: dict[int, Tensor] = {0: self._read(0)}  # also declares the table as used

    def __call__(self, ids_BN: Tensor) -> Tensor:
        """Map ids of any shape to (..., features)."""
        known, where = ids_BN.unique(return_inverse=True)
        vocab_size = self._shape[0]
        for index in (int(known[0]), int(known[-1])):
            if not 0 <= index < vocab_size:
                raise UserError(
                    f"the tokenizer gave the id {index}, but the text encoder knows 0 to {vocab_size - 1}; use the "
                    "tokenizer that belongs to it."
                )
        return torch.stack([self._row(index) for index in known.tolist()])[where]

    def _row(self, index: int) -> Tensor:
        if index not in self._rows:
            self._rows[index] = self._read(index)
        return self._rows[index]

    def _read(self, index: int) -> Tensor:
        return self._weights.take(self._name, self._shape, (index, index + 1))[0]
