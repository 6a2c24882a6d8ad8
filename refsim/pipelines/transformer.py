"""The program behind ``refsim run``: one forward of a checkpoint on real inputs, with guidance.

The model may be a transformer, a text encoder or a decoder: what it takes and gives is its own business.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.files.tensor_file import TensorFile
from refsim.models.inputs import SAMPLE, Dims, by_name, is_exact, is_per_sample, unbatched
from refsim.models.registry import find_model, load_model, open_checkpoint
from refsim.parallel.cfg import batch_range, gather_batch, guide
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


def program(
    device: Device, *, checkpoint: str, inputs: str, guidance: float | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns ``sample`` (the whole batch), any further results by the names that the
    model gives them, and, with guidance, ``guided``.

    ``inputs`` is a safetensors file with the names of the diffusers ``forward`` arguments. A digest of the results on
    every rank comes along: all ranks must end with the same bits.
    """
    folder = open_checkpoint(checkpoint, device.options.variant, device.options.lora)
    storage = device.options.storage
    device.loading("its weights")
    weights = Weights(folder, storage, replica=device.replica)
    model = load_model(folder, weights, device)
    model_class, config = find_model(folder)
    file = TensorFile(inputs)
    arguments = {name: _load(file[name], dims, device) for name, dims in model_class.input_shapes(config).items()}
    device.activity(Kind.RUNNING, "the transformer")
    result = {name: gather_batch(device, x) for name, x in by_name(model(**arguments)).items()}
    if guidance is not None:
        result["guided"] = guide(result[SAMPLE], guidance)
    return {"digest": digest(*(result[name] for name in sorted(result)))}, result


def _load(whole: Tensor, dims: Dims, device: Device) -> Tensor:
    """Load this device's part of an input: the samples of its cfg group, in the storage dtype, or fp32 if exact."""
    whole = unbatched(whole, dims)
    start, stop = batch_range(device, whole.shape[0]) if is_per_sample(dims) else (0, whole.shape[0])
    x = whole[start:stop]
    dtype = torch.float32 if is_exact(dims) else device.options.storage
    return x.to(dtype) if x.is_floating_point() else x


def digest(*tensors: Tensor) -> str:
    """Return blake2b of the bytes of tensors, one after the other, in hex."""
    hasher = hashlib.blake2b()
    for x in tensors:
        hasher.update(x.contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
