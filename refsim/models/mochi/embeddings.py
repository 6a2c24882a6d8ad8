"""What goes into Mochi's blocks: patches of every frame, learned rotations, the time step with the pooled prompt.

    rotation   angle of a pair of head h at (t, y, x) = t * f[0, h] + y * f[1, h] + x * f[2, h], f learned
               t counts frames; y and x are centres of patches, the picture centred and stretched to 192 * 192 of area
    pooling    the mean of a prompt's valid tokens asks it and them, 8 heads; projected, and added to the time step

A member of sp makes the rotations of its own tokens, a member of tp those of its own heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TwoLinears, timestep_embedding
from refsim.layers.linear import ColParallelLinear, Linear
from refsim.layers.rope import Rotary
from refsim.models.mochi.config import POOL_HEADS, MochiConfig
from refsim.parallel.padding import padded_heads
from refsim.parallel.sequence import TokenShards, cut_tokens
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

_AREA = 192 * 192
Grid = tuple[int, int, int]


class VideoPatches:
    """The convolution over the patches of every frame as a column-parallel linear on this member's tokens, and back."""

    def __init__(self, weights: Weights, device: Device, config: MochiConfig) -> None:
        self._device = device
        self._patch = config.patch_size
        shape = (config.in_channels, config.patch_size, config.patch_size)
        self._proj = ColParallelLinear(
            weights, device, "patch_embed.proj", in_features=shape, out_features=config.features
        )

    def __call__(self, latent_BCTHW: Tensor, grid: Grid, tokens: TokenShards) -> MeshTensor:
        """Map a latent on every device to (B, local N, local D), sp=Shard(1), tp=Shard(-1)."""
        _, rows, columns = grid
        x = latent_BCTHW.unflatten(4, (columns, self._patch)).unflatten(3, (rows, self._patch))
        patches_BNP = x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)  # (B, t h w, C p p)
        return self._proj(cut_tokens(self._device, MeshTensor(patches_BNP), tokens, dim=1))

    def unpatchify(self, out_BNP: Tensor, grid: Grid) -> Tensor:
        """Map (B, N, p * p * C) with the channel innermost to (B, C, T, H, W)."""
        x = out_BNP.unflatten(2, (self._patch, self._patch, -1)).unflatten(1, grid)  # (B, t, h, w, p, p, C)
        return x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4).contiguous()


def learned_rotary(device: Device, frequencies_3HP: Tensor, grid: Grid, tokens: TokenShards) -> Rotary:
    """Return (cos, sin) of this member's tokens and heads, (local heads, local N, E / 2), all of it in fp32.

    Args:
        frequencies_3HP: of all heads, how fast a pair turns along each axis.
    """
    tp = device.groups["tp"]
    heads = frequencies_3HP.shape[1]
    padded = padded_heads(heads, tp.size)
    mine_3HP = F.pad(frequencies_3HP.float(), (0, 0, 0, padded - heads))[:, slice(*shard_range(padded, tp))]
    positions_N3 = tokens.cut(positions(grid), device.groups["sp"].index, dim=0)
    angles_HNP = torch.einsum("nd,dhp->hnp", positions_N3.to(mine_3HP.device), mine_3HP)
    return angles_HNP.cos(), angles_HNP.sin()


def positions(grid: Grid) -> Tensor:
    """Return (t, y, x) of all tokens of a grid (frames, rows, columns), (N, 3) in fp32, t slowest."""
    frames, rows, columns = grid
    scale = (_AREA / (rows * columns)) ** 0.5
    axes = [torch.arange(frames, dtype=torch.float32)]
    for size in (rows, columns):
        edges = torch.linspace(-size * scale / 2, size * scale / 2, size + 1)
        axes.append((edges[:-1] + edges[1:]) / 2)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)


class Conditioning:
    """``time_embed``: the time step through two linears plus the pooled prompt, on every device."""

    def __init__(self, weights: Weights, config: MochiConfig) -> None:
        self._width = config.time_embed_dim
        name = "time_embed"
        text = config.text_embed_dim
        self._time = TwoLinears(weights, f"{name}.timestep_embedder", in_features=self._width, features=config.features)
        self._kv, self._q, self._out = (
            Linear(weights, f"{name}.pooler.{part}", in_features=text, out_features=features)
            for part, features in (("to_kv", 2 * text), ("to_q", text), ("to_out", config.features))
        )

    def __call__(self, timestep_B: Tensor, prompt_BLT: Tensor, mask_BL: Tensor) -> Tensor:
        """Map a time step in 0..1000 and a prompt, of which ``mask_BL`` (bool) says what is valid, to (B, D)."""
        time_BD = self._time(timestep_embedding(timestep_B, self._width).to(prompt_BLT.dtype))
        return time_BD + self._pooled(prompt_BLT, mask_BL)

    def _pooled(self, prompt_BLT: Tensor, mask_BL: Tensor) -> Tensor:
        valid_B1L = mask_BL[:, None].to(prompt_BLT.dtype)
        count_B11 = valid_B1L @ valid_B1L.transpose(1, 2)
        mean_B1T = valid_B1L / count_B11.clamp(min=1) @ prompt_BLT
        heads = (POOL_HEADS, -1)
        kv = self._kv(torch.cat([mean_B1T, prompt_BLT], 1)).unflatten(2, (2, *heads))
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, 1 + L, T / heads)
        q = self._q(mean_B1T).unflatten(2, heads).transpose(1, 2)
        keys = F.pad(mask_BL, (1, 0), value=True)[:, None, None]
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=keys).transpose(1, 2).flatten(1))
