"""A transformer block of tt_dit, from a checkout outside of this project, on a mesh of a ttnn backend.

Runs in the process of :mod:`tt_impl.run.worker`. Nothing of tt_dit is in this repository: the folder ``tree`` is put
on the import path, and its own classes load the weights and run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from tt_impl.pipelines.ops import entry
from tt_impl.trace.intercept import intercepted
from tt_impl.trace.optable import OpTable

Tensors = dict[str, torch.Tensor]


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, tree: str, weights: str, sizes: Mapping[str, int], inputs: Tensors
) -> tuple[dict[str, Any], Tensors]:
    """Run one block of SD3.5 and note its operations.

    Args:
        tree: a checkout of tt-metal.
        weights: safetensors with the block's weights, by diffusers' names within the block.
        sizes: ``features``, ``heads``, ``head_dim``.
        inputs: ``spatial`` (B, N, D), ``prompt`` (B, L, D), ``time`` (B, D) without silu.

    Returns:
        The operations as :func:`tt_impl.pipelines.ops.entry` has them, and ``spatial`` and ``prompt``, whole.
    """
    if options.parallel.cfg != 1 or options.parallel.tp == 1 or options.parallel.ulysses != 1:
        raise UserError("the comparison with tt_dit is of sp and tp over ring attention; give both, such as sp2_tp4.")
    sys.path.insert(0, tree)
    block, where = _block(device, options, sizes)
    block.load_torch_state_dict(dict(safetensors.torch.load_file(weights)))
    from models.tt_dit.utils.tensor import bf16_tensor, bf16_tensor_2dshard

    sp_axis, tp_axis = where
    spatial = bf16_tensor_2dshard(inputs["spatial"][None], device=device, shard_mapping={sp_axis: 2, tp_axis: 3})
    prompt = bf16_tensor(inputs["prompt"][None], device=device, mesh_axis=tp_axis, shard_dim=3)
    time = bf16_tensor(inputs["time"][None, None], device=device)
    table = OpTable()
    with intercepted(table):
        spatial, prompt = block(spatial, prompt, time, inputs["spatial"].shape[1])
    dims = {sp_axis: 2, tp_axis: 3}
    read = {"spatial": _whole(device, spatial, dims)[0]}
    read["prompt"] = _whole(device, prompt, {sp_axis: 0, tp_axis: 3})[0]
    return entry("block", 1, table.rows), read


def _block(device: ttnn.MeshDevice, options: RunOptions, sizes: Mapping[str, int]) -> tuple[Any, tuple[int, int]]:
    """Build the block as tt_dit's own tests do, and the mesh axes of sp and tp."""
    from models.tt_dit.models.transformers.transformer_sd35 import SD35TransformerBlock
    from models.tt_dit.parallel.config import DiTParallelConfig, ParallelFactor
    from models.tt_dit.parallel.manager import CCLManager
    from models.tt_dit.utils.padding import PaddingConfig

    parallel = options.parallel
    sp_axis = parallel.sequence_parallel.mesh_axis
    tp_axis = parallel.tensor_parallel.mesh_axis
    heads = sizes["heads"]
    head_dim = sizes["head_dim"]
    padding = None
    if heads % parallel.tp:
        padding = PaddingConfig.from_tensor_parallel_factor(heads, head_dim, parallel.tp)
    links = min(options.mesh.links[sp_axis], options.mesh.links[tp_axis])
    block = SD35TransformerBlock(
        dim=sizes["features"],
        num_heads=heads,
        head_dim=head_dim,
        context_pre_only=False,
        mesh_device=device,
        ccl_manager=CCLManager(mesh_device=device, num_links=links, topology=ttnn.Topology.Linear),
        parallel_config=DiTParallelConfig(
            cfg_parallel=ParallelFactor(1, 0),
            tensor_parallel=ParallelFactor(parallel.tp, tp_axis),
            sequence_parallel=ParallelFactor(parallel.sp, sp_axis),
        ),
        padding_config=padding,
    )
    return block, (sp_axis, tp_axis)


def _whole(device: ttnn.MeshDevice, x: ttnn.Tensor, dims: Mapping[int, int]) -> torch.Tensor:
    """``x`` on the host, put together along the dim of each mesh axis; what lies along dim 0 is the same again."""
    composer = ttnn.ConcatMesh2dToTensor(device, mesh_shape=tuple(device.shape), dims=(dims[0], dims[1]))
    return ttnn.to_torch(x, mesh_composer=composer)[: x.shape[0]]
