"""The program behind the block cases of parity: one transformer block on given streams, so that what the block itself
adds to them (the residual taken away) can be judged.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from refsim.checkpoint import Checkpoint, Weights
from refsim.models.registry import find_model
from refsim.models.sd35.block import SD35Block
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards, gather_tokens
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, Shard


def program(device: Device, *, checkpoint: str, inputs: str, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """``inputs``: ``spatial`` (B, N, D), ``prompt`` (B, L, D) and ``time`` (B, D) with silu applied.

    Returns ``spatial`` and, unless it is the last block, ``prompt`` after the block, whole.
    """
    folder = Checkpoint(checkpoint)
    config = find_model(folder)[1]
    storage = device.options.storage
    block = SD35Block(Weights(folder, storage), device, config, index)
    streams = {name: x.to(storage) for name, x in load_file(inputs).items()}
    tp, sp = device.groups["tp"], device.groups["sp"]
    tokens = TokenShards.of(streams["spatial"].shape[1], sp.size)
    start, stop = shard_range(padded_features(config.features, tp.size), tp)

    def features(x: Tensor) -> Tensor:
        lanes = x[..., start : min(stop, config.features)]
        return torch.nn.functional.pad(lanes, (0, stop - start - lanes.shape[-1]))

    cut_tp = {"tp": Shard(2) if tp.size > 1 else Replicate()}
    cut_sp = {"sp": Shard(1)} if sp.size > 1 else {}
    spatial, prompt = block(
        MeshTensor(features(tokens.cut(streams["spatial"], sp.index, dim=1)), {**cut_tp, **cut_sp}),
        MeshTensor(features(streams["prompt"]), cut_tp),
        streams["time"],
        tokens=tokens,
        prompt_tokens=None,
    )
    whole = {
        name: gather_features(device, x).local[..., : config.features].contiguous()
        for name, x in (("spatial", spatial), ("prompt", prompt))
        if x is not None
    }
    whole["spatial"] = gather_tokens(device, whole["spatial"], sp, tokens, dim=1).contiguous()
    return {}, whole
