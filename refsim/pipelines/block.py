"""The program behind the block cases of parity: one transformer block on given streams, so that what the block itself
adds to them (the residual taken away) can be judged.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.tensor_file import TensorFile
from refsim.models.registry import spec_of_checkpoint
from refsim.models.spec import resolve
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards, cut_tokens, gather_tokens
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, shards


def program(device: Device, *, checkpoint: str, inputs: str, index: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run block ``index`` of the model that the checkpoint's class names, its prompt laid out as the run's options say.

    ``inputs`` is a file of ``spatial`` (B, N, D), ``prompt`` (B, L, D or a width of its own), ``time`` (B, D) with silu
    applied, and what the model's blocks take besides. Returns ``spatial`` and, unless the block drops it, ``prompt``
    after the block, whole.
    """
    folder = Checkpoint(checkpoint, device.options.variant)
    spec = spec_of_checkpoint(folder)
    storage = device.options.storage
    tensors = TensorFile(inputs).all()
    if spec.block is None:
        raise UserError(f"{folder.class_name} has no blocks that run by themselves; run the whole model.")
    config = folder.as_config(spec.config_class)
    block = resolve(spec.block)(Weights(folder, storage), device, config, index, tensors)
    streams = {name: tensors[name].to(storage) for name in ("spatial", "prompt", "time")}
    tp = device.groups["tp"]
    sp = device.groups["sp"]
    tokens = TokenShards.of(streams["spatial"].shape[1], sp.size)
    prompt_tokens = TokenShards.of_prompt(streams["prompt"].shape[1], sp.size)
    split = device.options.splits_prompt

    def cut_features(x: Tensor) -> MeshTensor:
        """Return this member's features, tp=Shard(-1); streams may differ in width."""
        start, stop = shard_range(padded_features(x.shape[-1], tp.size), tp)
        mine = x[..., start:stop]
        padding = stop - start - mine.shape[-1]
        return MeshTensor(torch.nn.functional.pad(mine, (0, padding)), shards(device.groups, tp=2))

    prompt = cut_features(streams["prompt"])
    spatial, prompt = block(
        cut_tokens(device, cut_features(streams["spatial"]), tokens, dim=1),
        cut_tokens(device, prompt, prompt_tokens, dim=1) if split else prompt,
        streams["time"],
    )
    whole = {
        name: gather_features(device, x).map(
            "real features", partial(Tensor.narrow, dim=-1, start=0, length=streams[name].shape[-1])
        )
        for name, x in (("spatial", spatial), ("prompt", prompt))
        if x is not None
    }
    whole["spatial"] = gather_tokens(device, whole["spatial"], tokens, dim=1)
    if split and "prompt" in whole:
        whole["prompt"] = gather_tokens(device, whole["prompt"], prompt_tokens, dim=1)
    return {}, {name: x.local.contiguous() for name, x in whole.items()}
