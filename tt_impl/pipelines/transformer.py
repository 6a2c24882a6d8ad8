"""One forward of a checkpoint's transformer on a mesh: a submesh per cfg group, both under way before either is read.

Counterpart of ``refsim.pipelines.transformer``.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.checkpoint import Checkpoint, Weights
from refsim.config import DiTParallelConfig
from refsim.mesh import MeshSpec
from refsim.models.sd35.config import SD35Config
from tt_impl.models.sd35.transformer import SD35Transformer
from tt_impl.parallel.context import Context


def submeshes(device: ttnn.MeshDevice, spec: MeshSpec, config: DiTParallelConfig) -> list[ttnn.MeshDevice]:
    """One submesh per cfg group, in group order."""
    if config.cfg == 1:
        return [device]
    shape = list(spec.shape)
    shape[config.cfg_parallel.mesh_axis] //= config.cfg
    return device.create_submeshes(ttnn.MeshShape(*shape))


def program(
    device: ttnn.MeshDevice,
    spec: MeshSpec,
    config: DiTParallelConfig,
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
    for group, submesh in enumerate(submeshes(device, spec, config)):
        model = SD35Transformer(Context(submesh, spec, config), Weights(checkpoint, torch.bfloat16), model_config)
        running.append((model, model(**{name: x.chunk(config.cfg)[group] for name, x in inputs.items()})))
    sample = torch.cat([model.read(out, height, width) for model, out in running])
    result = {"sample": sample}
    if guidance is not None:
        uncond, cond = sample.chunk(2)
        result["guided"] = uncond + guidance * (cond - uncond)
    return result
