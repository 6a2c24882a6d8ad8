"""Rank programs of the model tests: layers with poisoned padding, and what a rank reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from refsim.blocks.sequences import Sequences
from refsim.blocks.stack import build_block
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.layers.attention import StreamQKV
from refsim.layers.linear import AttentionSizes, ColParallelLinear, ColParallelQKV
from refsim.layers.modulation import Modulation
from refsim.layers.norm import DistributedLayerNorm
from refsim.models.registry import load_model
from refsim.models.sd35.config import SD35Config
from refsim.parallel.padding import padded_features, padded_heads
from refsim.parallel.sequence import TokenShards
from refsim.runtime.tensor import MeshTensor, Shard


def padded_lanes(device, *, checkpoint: str):
    """Which padded lanes do something; every value of the answer must be zero (or True where it says equal)."""
    folder = Checkpoint(checkpoint)
    config = SD35Config.from_dict(folder.config)
    weights = Weights(folder, torch.float32)
    d, tp = config.features, device.groups["tp"]
    padded = padded_features(d, tp.size)
    size = padded // tp.size
    real = max(0, min(d - tp.index * size, size))
    generator = torch.Generator().manual_seed(tp.index)
    garbage = 1e4 * torch.randn(1, 5, padded, generator=torch.Generator().manual_seed(9))
    answer = {"padded_features": padded - d, "padded_heads": padded_heads(3, tp.size) - 3}

    # a column-parallel linear does not see what stands in padded lanes of its (gathered) input
    ff_in = ColParallelLinear(
        weights, device, "transformer_blocks.0.ff.net.0.proj", in_features=d, out_features=4 * d, gathered_input=True
    )
    x = torch.randn(1, 5, d, generator=torch.Generator().manual_seed(8))
    clean, dirty = F.pad(x, (0, padded - d)), garbage.clone()
    dirty[..., :d] = x
    answer["linear_equal"] = torch.equal(ff_in(MeshTensor(clean)).local, ff_in(MeshTensor(dirty)).local)

    # the distributed norm does not count them, and leaves them zero
    shard = torch.randn(1, 5, size, generator=generator)
    placement = {"tp": Shard(2)}
    poisoned = shard.clone()
    poisoned[..., real:] = 1e4
    norm = DistributedLayerNorm(device, features=d, eps=1e-6)
    normed = norm(MeshTensor(poisoned, placement)).local
    answer["norm_equal"] = torch.equal(normed, norm(MeshTensor(shard, placement)).local)
    answer["norm_padding"] = float(normed[..., real:].abs().sum())

    modulation = Modulation(weights, device, "transformer_blocks.0.norm1.linear", features=d, chunks=9)
    time = torch.randn(1, d, generator=torch.Generator().manual_seed(7))
    answer["modulation_padding"] = float(sum(c.local[..., real:].abs().sum() for c in modulation(time)))

    # padded heads: zero values, whatever queries and keys are
    projection = StreamQKV(weights, device, "transformer_blocks.0.attn", AttentionSizes(d, 3, 16))
    heads = padded_heads(3, tp.size) // tp.size
    real_heads = max(0, min(3 - tp.index * heads, heads))
    answer["padded_values"] = float(projection(MeshTensor(clean))[2].local[:, real_heads:].abs().sum())

    # the residual stream keeps them zero through a whole block
    block = build_block(weights, device, config, 0)
    spatial = F.pad(shard[..., :real], (0, size - real))
    out, prompt = block(
        MeshTensor(spatial, placement),
        MeshTensor(spatial[:, :3], placement),
        time,
        sequences=Sequences(TokenShards.of(5, 1), None),
    )
    answer["residual_padding"] = float(out.local[..., real:].abs().sum() + prompt.local[..., real:].abs().sum())
    return answer, {}


def fused_qkv(device, *, checkpoint: str):
    """Whether this rank's fused weight is [q of its heads | k of its heads | v of its heads] (heads that divide)."""
    folder = Checkpoint(checkpoint)
    d, tp = SD35Config.from_dict(folder.config).features, device.groups["tp"]
    names = tuple(f"transformer_blocks.0.attn.to_{n}" for n in "qkv")
    weights = Weights(folder, torch.float32)
    heads = d // 16
    qkv = ColParallelQKV(weights, device, names, AttentionSizes(d, heads, 16))
    mine = torch.cat([weights.take(f"{n}.weight", (d, d)).chunk(tp.size)[tp.index] for n in names])
    weight = torch.cat(qkv.weights)
    return {"equal": torch.equal(weight, F.pad(mine, (0, weight.shape[1] - d)))}, {}


def elements_read(device, *, checkpoint: str):
    """How many elements this rank takes from the checkpoint."""
    taken = []

    class Counting(Weights):
        def take(self, *args):
            tensor = super().take(*args)
            taken.append(tensor.numel())
            return tensor

    folder = Checkpoint(checkpoint)
    load_model(folder, Counting(folder, torch.float32), device)
    return {"elements": sum(taken)}, {}
