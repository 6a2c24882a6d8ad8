"""What goes into Wan's blocks: video patches, rotary tables, the time step's modulation, prompt and image embedded;
counterpart of ``refsim.models.wan22.embeddings``.

A patch has its channel innermost on the way in and on the way out, so that a denoising step can add the one to the
other on the device.
"""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.wan22.config import WanConfig
from tt_impl.layers.embeddings import timestep_embedding
from tt_impl.layers.linear import ColParallelLinear, RowParallelLinear, pad_to
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm, LayerNorm
from tt_impl.layers.rope import PairTables, pair_rotary, rotary_angles, token_positions
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features, padded_tokens
from tt_impl.parallel.sequence import put_tokens
from tt_impl.parallel.tensor import gather_features

Grid = tuple[int, int, int]


class VideoPatches:
    """The convolution over patches as a column-parallel linear on a device's tokens, and the way back."""

    def __init__(self, weights: Weights, ctx: Context, config: WanConfig) -> None:
        self._ctx = ctx
        self._config = config
        d = config.features
        padded = padded_features(config.features, ctx.tp)
        kernel = weights.take("patch_embedding.weight", (d, config.in_channels, *config.patch_size))
        weight_PD = kernel.movedim(1, -1).flatten(1).t()
        self._weight = ctx.put(pad_to(weight_PD, weight_PD.shape[0], padded)[None, None], tp_dim=3)
        bias = pad_to(weights.take("patch_embedding.bias", (d,)), padded)
        self._bias = ctx.put(bias[None, None, None], tp_dim=3)

    def grid(self, size: tuple[int, ...]) -> Grid:
        """Return the patches (frames, rows, columns) of a latent of ``size``."""
        frames, rows, columns = (n // p for n, p in zip(size, self._config.patch_size, strict=True))
        return frames, rows, columns

    def put(self, latent_BCTHW: torch.Tensor) -> ttnn.Tensor:
        """Map a latent on the host to patches (B, 1, local N, pt * ph * pw * C) on the devices."""
        t, h, w = self.grid(latent_BCTHW.shape[2:])
        pt, ph, pw = self._config.patch_size
        x = latent_BCTHW.unflatten(4, (w, pw)).unflatten(3, (h, ph)).unflatten(2, (t, pt))
        patches = x.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4).flatten(1, 3)
        return put_tokens(self._ctx, patches)

    def __call__(self, patches: ttnn.Tensor) -> ttnn.Tensor:
        """Map (B, 1, local N, pt * ph * pw * C) to (B, 1, local N, local D)."""
        return ttnn.linear(patches, self._weight, bias=self._bias, compute_kernel_config=self._ctx.linear_config)

    def unpatchify(self, out_BNP: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Map (B, N, pt * ph * pw * C) on the host to (B, C, T, H, W)."""
        x = out_BNP.unflatten(2, (*self._config.patch_size, self._config.out_channels)).unflatten(1, grid)
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.flatten(6).flatten(4, 5).flatten(2, 3).contiguous()


def rotary_tables(ctx: Context, config: WanConfig, grid: Grid) -> PairTables:
    """Tables in fp32 of the tokens of ``grid`` in the order (frame, row, column), cut over sp.

    A head of E features gives 2 * (E // 6) to rows and to columns each, the rest to frames. Padding stands at 0.
    """
    side = 2 * (config.attention_head_dim // 6)
    sizes = (config.attention_head_dim - 2 * side, side, side)
    tokens = math.prod(grid)
    angles_NP = rotary_angles(token_positions(grid, (0, tokens)), sizes)
    padded = pad_to(angles_NP, padded_tokens(tokens, ctx.sp), angles_NP.shape[1])
    return pair_rotary(ctx, padded, split=True, dtype=ttnn.float32)


class ConditionEmbedder:
    """``condition_embedder``: the time step, its six chunks per block cut over tp, and the prompt.

    The time step's first two linears are kept in fp32, as diffusers keeps them.
    """

    def __init__(self, weights: Weights, ctx: Context, config: WanConfig) -> None:
        self._ctx = ctx
        self._freq_dim = config.freq_dim
        d = config.features
        name = "condition_embedder"
        self._time_1 = _ExactLinear(weights, ctx, f"{name}.time_embedder.linear_1", config.freq_dim, d)
        self._time_2 = _ExactLinear(weights, ctx, f"{name}.time_embedder.linear_2", d, d)
        self._time_proj = Modulation(weights, ctx, f"{name}.time_proj", features=d, chunks=6)
        text = f"{name}.text_embedder"
        self._text_1 = ColParallelLinear(weights, ctx, f"{text}.linear_1", in_features=config.text_dim, out_features=d)
        self._text_2 = RowParallelLinear(weights, ctx, f"{text}.linear_2", in_features=d, out_features=d)

    def time(self, timestep: torch.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Map (B,) in 0..1000 on the host to (temb (B, 1, 1, D), replicated; six chunks (B, 1, 1, 6 * local D)).

        (B, N), a time step for every token, gives the same with local N rows.
        """
        sinusoid = timestep_embedding(timestep, self._freq_dim)
        if timestep.ndim == 2:
            put = put_tokens(self._ctx, sinusoid, dtype=ttnn.float32)
        else:
            put = self._ctx.put(sinusoid[:, None, None], dtype=ttnn.float32)
        x = self._time_1(put)
        temb = ttnn.typecast(self._time_2(ttnn.silu(x)), self._ctx.dtype)
        return temb, self._time_proj.joined(ttnn.silu(temb))

    def text(self, prompt_BLT: ttnn.Tensor) -> ttnn.Tensor:
        """Map (B, 1, L, text_dim) on every device to (B, 1, L, D), gathered, for all blocks."""
        hidden = ttnn.gelu(self._text_1(prompt_BLT), variant=ttnn.GeluVariant.Tanh)
        return gather_features(self._ctx, self._text_2(hidden))


class ImageEmbedder:
    """``image_embedder`` of Wan2.1's image-to-video model: features of an image, normed, two linears, normed again."""

    EPS = 1e-5

    def __init__(self, weights: Weights, ctx: Context, config: WanConfig, image_dim: int) -> None:
        self._ctx = ctx
        d = config.features
        name = "condition_embedder.image_embedder"
        self._norm1 = LayerNorm(ctx, features=image_dim, eps=self.EPS, affine=(weights, f"{name}.norm1"))
        of_image = {"in_features": image_dim}
        self._in = ColParallelLinear(weights, ctx, f"{name}.ff.net.0.proj", out_features=image_dim, **of_image)
        self._out = RowParallelLinear(weights, ctx, f"{name}.ff.net.2", out_features=d, **of_image)
        self._norm2 = DistributedLayerNorm(ctx, features=d, eps=self.EPS, affine=(weights, f"{name}.norm2"))

    def __call__(self, image_BMI: ttnn.Tensor) -> ttnn.Tensor:
        """Map (B, 1, M, image_dim) on every device to (B, 1, M, D), gathered, for all blocks."""
        hidden = self._out(ttnn.gelu(self._in(self._norm1(image_BMI))))
        return gather_features(self._ctx, self._norm2(hidden))


class _ExactLinear:
    """The whole linear on every device in fp32, inputs and results too."""

    def __init__(self, weights: Weights, ctx: Context, name: str, in_features: int, out_features: int) -> None:
        self._ctx = ctx
        exact = weights.to(torch.float32)
        weight = exact.take(f"{name}.weight", (out_features, in_features))
        self._weight = ctx.put(weight.t()[None, None], dtype=ttnn.float32)
        self._bias = ctx.put(exact.take(f"{name}.bias", (out_features,))[None, None, None], dtype=ttnn.float32)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.linear(x, self._weight, bias=self._bias, compute_kernel_config=self._ctx.norm_config)
