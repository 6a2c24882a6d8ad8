"""One block of Wan: self-attention and feed-forward modulated by the time step, cross-attention to the prompt between.

    spatial --LN--mod--all_gather--> self-attention --reduce_scatter--gate--+
            --LN affine--all_gather--> cross-attention (no gate) -----------+     over the prompt, and an image
            --LN--mod--all_gather--> FF --reduce_scatter--gate--------------+-->

The residual stream lives cut over tp (features) and sp (tokens). Norms, modulation and gates are computed in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.feedforward import ParallelFeedForward
from refsim.layers.modulation import modulate
from refsim.layers.norm import DistributedLayerNorm
from refsim.models.wan22.attention import CrossAttention, SelfAttention
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.embeddings import rotary_tables
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, shards


class WanBlock:
    """``blocks.{index}`` of diffusers' WanTransformer3DModel."""

    def __init__(self, weights: Weights, device: Device, config: WanConfig, index: int) -> None:
        self._device = device
        d = config.features
        prefix = f"blocks.{index}"
        tp = device.groups["tp"]
        exact = weights.to(torch.float32)
        columns = shard_range(padded_features(d, tp.size), tp)
        self._table_16D = exact.take(f"{prefix}.scale_shift_table", (1, 6, d), None, None, columns)
        self._norm1, self._norm3 = (
            DistributedLayerNorm(device, features=d, eps=config.eps, name=f"{prefix}.{name}")
            for name in ("norm1", "norm3")
        )
        self._attn1 = SelfAttention(weights, device, f"{prefix}.attn1", config)
        self._norm2 = None
        if config.cross_attn_norm:
            self._norm2 = DistributedLayerNorm(device, features=d, eps=config.eps, affine=(exact, f"{prefix}.norm2"))
        self._attn2 = CrossAttention(weights, device, f"{prefix}.attn2", config)
        self._ffn = ParallelFeedForward(weights, device, f"{prefix}.ffn", features=d, hidden=config.ffn_dim)

    def __call__(
        self,
        spatial: MeshTensor,
        prompt: MeshTensor,
        time: list[MeshTensor],
        *,
        rotary: tuple[Tensor, Tensor],
        tokens: TokenShards,
        image: MeshTensor | None = None,
    ) -> MeshTensor:
        """Run the block on (B, local N, local D); prompt (B, L, D) and image (B, M, D) gathered, time six chunks
        (B, 1 or local N, local D).
        """
        dtype = spatial.local.dtype
        shift, scale, gate, shift_ff, scale_ff, gate_ff = (
            chunk.map("scale_shift_table", self._table_16D[:, i : i + 1].add) for i, chunk in enumerate(time)
        )

        def stored(x: MeshTensor) -> MeshTensor:
            return x.map("cast", lambda y: y.to(dtype))

        normed = modulate(self._norm1(_exact(spatial)), shift, scale)
        attn = self._attn1(gather_features(self._device, stored(normed)), rotary, tokens)
        spatial = stored(_exact(spatial) + attn * gate)

        normed = spatial if self._norm2 is None else stored(self._norm2(_exact(spatial)))
        spatial = spatial + self._attn2(gather_features(self._device, normed), prompt, image)

        normed = modulate(self._norm3(_exact(spatial)), shift_ff, scale_ff)
        ff = self._ffn(gather_features(self._device, stored(normed)))
        return stored(_exact(spatial) + _exact(ff) * gate_ff)


def bind_block(
    weights: Weights, device: Device, config: WanConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Return block ``index`` for patches of ``grid`` (frames, rows, columns) and the time step's chunks ``modulation``
    (B, 6, D); it hands no prompt on.
    """
    frames, rows, columns = inputs["grid"].tolist()
    tp = device.groups["tp"]
    sp = device.groups["sp"]
    tokens = TokenShards.of(math.prod((frames, rows, columns)), sp.size)
    rotary = rotary_tables(config, (frames, rows, columns), tokens, sp.index)
    padded = padded_features(config.features, tp.size)
    start, stop = shard_range(padded, tp)
    modulation = F.pad(inputs["modulation"].to(device.options.storage), (0, padded - config.features))[..., start:stop]
    time = [MeshTensor(chunk, shards(device.groups, tp=2)) for chunk in modulation.split(1, 1)]
    block = WanBlock(weights, device, config, index)

    def run(spatial: MeshTensor, prompt: MeshTensor, _time_BD: Tensor) -> tuple[MeshTensor, None]:
        return block(spatial, gather_features(device, prompt), time, rotary=rotary, tokens=tokens), None

    return run


def _exact(x: MeshTensor) -> MeshTensor:
    return x.map("cast", Tensor.float)
