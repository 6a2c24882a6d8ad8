"""Thirty mistakes of parallel programs, seeded one at a time into tt_dit, each with the upstream test that runs it.

A bug names a file, a function and what is changed in it, by structure. It counts as caught if upstream's own assert
fails, if ttnn or the shadow refuses the program, or if a check of collectives and buffers names it. That the same
test passes without the bug is measured, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.upstream.cases import (
    COLUMN,
    FEED_FORWARD,
    FLUX_BLOCK,
    LAYER_NORM,
    MOTIF_ATTENTION,
    MOTIF_BLOCK,
    PATCHES,
    RMS_NORM,
    ROW,
    SWIGLU,
    TIMESTEP,
    Case,
)
from benchmarks.upstream.edits import Argument, Assign, Condition, Drop, Edit, Keyword, Result, SwapTargets, Unwrap


@dataclass(frozen=True)
class Bug:
    """A mistake: what it is in words, where it is made, and the test that runs the place."""

    what: str
    file: str
    function: str
    edits: tuple[Edit, ...]
    case: Case


LINEAR, NORM = "tt_dit/layers/linear.py", "tt_dit/layers/normalization.py"
ATTENTION, BLOCK = "tt_dit/blocks/attention.py", "tt_dit/blocks/transformer_block.py"
MANAGER, EMBEDDINGS = "tt_dit/parallel/manager.py", "tt_dit/layers/embeddings.py"
RING = "ring_joint_scaled_dot_product_attention"
GATHER = "ccl_manager.all_gather_persistent_buffer"
SP, TP = "self.parallel_config.sequence_parallel", "self.parallel_config.tensor_parallel"

BUGS = {
    "row-weight-dim": Bug(
        "the weight of a row-parallel linear is sharded over the other dim",
        LINEAR,
        "RowParallelLinear.__init__",
        (Keyword("Parameter", "mesh_axes", "[fsdp_mesh_axis, mesh_axis]"),),
        ROW,
    ),
    "row-bias-every-rank": Bug(
        "the bias of a row-parallel linear is added on every rank, so its sum has it several times",
        LINEAR,
        "RowParallelLinear._prepare_torch_state",
        (Argument("torch.cat", 0, "[bias] * self._mesh_axis_size"),),
        ROW,
    ),
    "row-no-reduce-scatter": Bug(
        "the reduce-scatter after a row-parallel linear is missing",
        LINEAR,
        "RowParallelLinear.forward",
        (Condition("_mesh_axis_size", False),),
        ROW,
    ),
    "row-reduce-scatter-axis": Bug(
        "the reduce-scatter runs along the other mesh axis",
        LINEAR,
        "RowParallelLinear.forward",
        (Keyword("reduce_scatter", "mesh_axis", "1 - self.mesh_axis"),),
        ROW,
    ),
    "column-fsdp-gather-dim": Bug(
        "the weight of a column-parallel linear is gathered along the wrong dim",
        LINEAR,
        "ColParallelLinear.forward",
        (Keyword(GATHER, "dim", "3"),),
        COLUMN,
    ),
    "column-fsdp-no-gather": Bug(
        "the weight of a column-parallel linear is not gathered",
        LINEAR,
        "ColParallelLinear.forward",
        (Condition("fsdp_mesh_axis", False),),
        COLUMN,
    ),
    "column-bias-replicated-cut": Bug(
        "the bias of a column-parallel linear is cut along the other mesh axis",
        LINEAR,
        "ColParallelLinear.__init__",
        (Keyword("Parameter", "mesh_axes", "[None, fsdp_mesh_axis]", 1),),
        COLUMN,
    ),
    "feed-forward-no-activation": Bug(
        "the activation fused into the first linear is forgotten",
        LINEAR,
        "ColParallelLinear.forward",
        (Keyword("minimal_matmul", "fused_activation", "None"),),
        FEED_FORWARD,
    ),
    "swiglu-not-interleaved": Bug(
        "the two halves of a SwiGLU weight are not dealt out to the ranks",
        LINEAR,
        "ColParallelLinear._prepare_torch_state.permute_for_swiglu",
        (Unwrap("permute", receiver=True),),
        SWIGLU,
    ),
    "layer-norm-no-gather": Bug(
        "every rank normalises with the statistics of its own columns",
        NORM,
        "DistributedLayerNorm.forward",
        (Unwrap(GATHER),),
        LAYER_NORM,
    ),
    "layer-norm-eps": Bug(
        "epsilon of a layer norm is 1",
        NORM,
        "DistributedLayerNorm.forward",
        (Keyword("dit_layernorm_post_allgather", "epsilon", "1.0"),),
        LAYER_NORM,
    ),
    "layer-norm-weight-order": Bug(
        "the weight of a layer norm is dealt out in the wrong order",
        NORM,
        "DistributedLayerNorm._prepare_torch_state",
        (Unwrap("permute", receiver=True),),
        LAYER_NORM,
    ),
    "rms-norm-gather-axis": Bug(
        "the statistics of an RMS norm are gathered along the other mesh axis",
        NORM,
        "DistributedRMSNorm.forward",
        (Keyword(GATHER, "mesh_axis", "1 - self.mesh_axis"),),
        RMS_NORM,
    ),
    "gather-buffer-dtype": Bug(
        "the persistent buffer of a gather is bfloat16 whatever is gathered",
        MANAGER,
        "CCLManager.all_gather",
        (Keyword("get_ag_ping_pong_buffer", "dtype", "ttnn.bfloat16"),),
        RMS_NORM,
    ),
    "qkv-not-by-rank": Bug(
        "Q, K and V are joined before they are dealt out to the ranks",
        ATTENTION,
        "Attention._reshape_and_merge_qkv._merge_tensors",
        (Keyword("torch.cat", "dim", "1"),),
        MOTIF_ATTENTION,
    ),
    "qkv-order": Bug(
        "K and V change places in the fused weight",
        ATTENTION,
        "Attention._reshape_and_merge_qkv._merge_tensors",
        (Argument("torch.cat", 0, "[q, v, k]"),),
        MOTIF_ATTENTION,
    ),
    "head-padding-front": Bug(
        "the output projection of padded heads is not padded at its input but at its output",
        ATTENTION,
        "Attention._prepare_torch_state",
        (Keyword("pad_weight_tensor", "pad_input_dim", "False"),),
        MOTIF_ATTENTION,
    ),
    "rope-sign": Bug(
        "the rotated half of a rotary embedding is subtracted",
        ATTENTION,
        "_apply_rope",
        (Result("x * cos - ttnn.alt_complex_rotate90(x) * sin"),),
        FLUX_BLOCK,
    ),
    "padding-not-masked": Bug(
        "the padding of the sequence is attended to: logical_n counts it",
        ATTENTION,
        "Attention.forward",
        (Keyword(RING, "logical_n", f"q.shape[2] * {SP}.factor"),),
        MOTIF_ATTENTION,
    ),
    "ring-axis": Bug(
        "ring attention runs along the axis of tensor parallelism",
        ATTENTION,
        "Attention.forward",
        (Keyword(RING, "cluster_axis", f"{TP}.mesh_axis"),),
        MOTIF_ATTENTION,
    ),
    "ring-buffer-shape": Bug(
        "the persistent buffer of gathered K has the shape of the shard",
        ATTENTION,
        "Attention.forward",
        (Keyword(RING, "persistent_output_buffer_k", "ttnn.clone(k)"),),
        MOTIF_ATTENTION,
    ),
    "one-buffer-for-two": Bug(
        "the two persistent buffers never alternate: K and V are gathered into one",
        MANAGER,
        "CCLManager.get_ag_ping_pong_buffer",
        (Assign("self._ping_pong_buffer_indices[cache_key]", "current_idx", 1),),
        MOTIF_ATTENTION,
    ),
    "one-semaphore-for-two": Bug(
        "the semaphores of gathers never alternate: two gathers in a row share them",
        MANAGER,
        "CCLManager.get_ag_ping_pong_semaphore",
        (Assign("self.ag_ping_pong_idx[mesh_axis]", "cur_idx"),),
        MOTIF_BLOCK,
    ),
    "ring-on-a-line": Bug(
        "the topology is Ring where the fabric is a line",
        MANAGER,
        "CCLManager.__init__",
        (Assign("self.topology", "ttnn.Topology.Ring"),),
        MOTIF_ATTENTION,
    ),
    "modulation-not-by-rank": Bug(
        "the chunks of the modulation are not dealt out to the ranks",
        BLOCK,
        "TransformerBlock._prepare_torch_state",
        (Drop("prepare_chunked_linear_output"),),
        MOTIF_BLOCK,
    ),
    "modulation-order": Bug(
        "shift and gate of the modulation change places",
        BLOCK,
        "TransformerBlock.forward",
        (SwapTargets("spatial_shift_ff", "spatial_gate_ff"),),
        MOTIF_BLOCK,
    ),
    "gate-forgotten": Bug(
        "the gate of the prompt's feed-forward is forgotten",
        BLOCK,
        "TransformerBlock.forward",
        (Assign("prompt_ff", None, 1),),
        MOTIF_BLOCK,
    ),
    "residual-doubled": Bug(
        "the residual is added twice",
        BLOCK,
        "TransformerBlock.forward",
        (Assign("spatial", "spatial + spatial + spatial_ff", 1),),
        MOTIF_BLOCK,
    ),
    "timestep-halves": Bug(
        "sine and cosine of the timestep change places",
        EMBEDDINGS,
        "SD35CombinedTimestepTextProjEmbeddings.forward",
        (Argument("ttnn.concat", 0, "[s, c]"),),
        TIMESTEP,
    ),
    "patch-positions-axis": Bug(
        "the position embeddings are sharded over the wrong mesh axes",
        EMBEDDINGS,
        "PatchEmbed.__init__",
        (Keyword("Parameter", "mesh_axes", "[None, tp_mesh_axis, sp_mesh_axis]", 2),),
        PATCHES,
    ),
}
