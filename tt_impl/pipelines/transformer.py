"""One forward of a checkpoint's transformer on a mesh: a submesh per cfg group, both under way before either is read.

Counterpart of ``refsim.pipelines.transformer``.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.checkpoint import Checkpoint, Weights
from refsim.models.sd35.config import SD35Config
from refsim.options import RunOptions
from tt_impl.models.sd35.transformer import SD35Transformer
from tt_impl.parallel.context import Context


def submeshes(device: ttnn.MeshDevice, options: RunOptions) -> list[ttnn.MeshDevice]:
    """One submesh per cfg group, in group order."""
    parallel = options.parallel
    if parallel.cfg == 1:
        return [device]
    shape = list(options.mesh.shape)
    shape[parallel.cfg_parallel.mesh_axis] //= parallel.cfg
    return device.create_submeshes(ttnn.MeshShape(*shape))


def program(
    device: ttnn.MeshDevice,
    options: RunOptions,
    *,
    checkpoint: Checkpoint,
    inputs: dict[str, torch.Tensor],
    guidance: float | None = None,
) -> dict[str, torch.Tensor]:
    """``sample``, the whole batch (B, C, H, W), negative half first, as the diffusers forward returns it, and
    ``guided`` where guidance is given."""
    model_config = SD35Config.from_dict(checkpoint.config)
    height, width = inputs["hidden_states"].shape[2:]
    running = []
    for group, submesh in enumerate(submeshes(device, options)):
        model = SD35Transformer(Weights(checkpoint, torch.bfloat16), Context(submesh, options), model_config)
        running.append((model, model(**{name: x.chunk(options.parallel.cfg)[group] for name, x in inputs.items()})))
    sample = torch.cat([model.read(out, height, width) for model, out in running])
    result = {"sample": sample}
    if guidance is not None:
        uncond, cond = sample.chunk(2)
        result["guided"] = uncond + guidance * (cond - uncond)
    return result
