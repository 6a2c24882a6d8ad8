"""One forward of a checkpoint on a mesh: a submesh per cfg group, both under way before either is read.

The model may be a transformer, a text encoder or a decoder: what it takes and gives is its own business.

    inputs --per sample: cut over cfg--> model of the group's submesh --read--> results --joined on the host--> by name
           --the same for all: whole--->

Counterpart of ``refsim.pipelines.transformer``.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.models.inputs import SAMPLE, by_name, is_per_sample, named_sizes, unbatched
from refsim.models.registry import spec_of_checkpoint
from refsim.models.spec import resolve
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
    """Run the model that the checkpoint's class names, by its counterpart in TTNN.

    Its ``__call__(**inputs)`` gives whatever it wants on the device, and ``read(that, sizes)`` the results on the host:
    one tensor, or several by name. Inputs that a model takes per sample are cut over cfg, others every group gets
    whole; whole numbers (ids, masks) stay what they are.

    Returns:
        ``sample``, the whole batch, negative half first, as the forward of diffusers or transformers returns it,
        further results by the names that refsim's model gives them, and ``guided`` where guidance is given.
    """
    spec = spec_of_checkpoint(checkpoint)
    if spec.ttnn is None:
        raise UserError(f"{checkpoint.class_name} has no counterpart in TTNN; leave out --backend {options.backend}.")
    if options.vae_parallel not in spec.vae_forms:
        raise UserError(f"a {checkpoint.class_name} is not cut by channel; leave out --vae-parallel.")
    model_class = resolve(spec.ttnn)
    config = checkpoint.as_config(spec.config_class)
    dims = spec.inputs(checkpoint.config)
    inputs = {name: unbatched(x, dims[name]) for name, x in inputs.items()}
    sizes = named_sizes(dims, {name: tuple(x.shape) for name, x in inputs.items()})
    running = []
    for group, submesh in enumerate(submeshes(device, options)):
        model = model_class(Weights(checkpoint, torch.bfloat16), Context(submesh, options), config)
        mine = {
            name: x.chunk(options.parallel.cfg)[group] if is_per_sample(dims[name]) else x for name, x in inputs.items()
        }
        running.append((model, model(**mine)))
    parts = [by_name(model.read(out, sizes)) for model, out in running]
    result = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if guidance is not None:
        uncond, cond = result[SAMPLE].chunk(2)
        result["guided"] = uncond + guidance * (cond - uncond)
    return result
