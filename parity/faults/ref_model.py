"""Faults of the reference in the model: reductions, weights, norms, tables, modulation, guidance."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.faults.around import Patch, at, instead
from parity.faults.ref_cases import CFG2, SERIAL, SP2, SP2_TP2, TP2
from parity.faults.registry import fault
from refsim.files import checkpoint
from refsim.layers import linear
from refsim.parallel import cfg, tensor
from refsim.runtime.tensor import MeshTensor

reduction = partial(fault, "reduction", case=TP2)
order = partial(fault, "order", case=TP2)
precision = partial(fault, "precision", case=TP2)
weights = partial(fault, "weights", case=SERIAL)
padding = partial(fault, "padding", case=TP2)
tables = partial(fault, "tables", case=SERIAL)
affine = partial(fault, "affine", case=SERIAL)
rare = partial(fault, "rare", case=SP2_TP2)


@reduction(
    "No reduce_scatter: every device keeps its lanes of its own partial sum.",
    "a row-parallel linear followed by a plain split, whose shape is the same",
)
@at("refsim.parallel.tensor:reduce_scatter")
def reduction_missing(_: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return x.chunk(group.size, dim)[group.index].contiguous()


@reduction(
    "Partial sums are handed on as if they were sums.",
    "the forgotten collective",
    says=r"needs a full value but was given tp=P\(sum\)",
)
@at("refsim.parallel.tensor:reduce_scatter_features")
def partial_used_as_full(_: Any, device: Any, x: Any) -> Any:
    return x


@reduction("Partial sums are added up twice.", "an all_reduce in the layer and another one in its caller")
@at("refsim.parallel.tensor:reduce_scatter")
def reduced_twice(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return original(device, x, group, dim=dim) * group.size


@reduction("The bias is added before the reduction, by every device.", "bias handed to the row-parallel matmul")
@at("refsim.layers.linear:row_linear")
def bias_before_the_reduction(original: Any, device: Any, x: Any, weight: Tensor, bias: Tensor, **more: Any) -> Any:
    return original(device, x, weight, bias * device.groups["tp"].size, **more)


@reduction("The bias of row-parallel linears is forgotten.", "bias dropped with the fused op")
@at("refsim.layers.linear:row_linear")
def bias_forgotten(original: Any, device: Any, x: Any, weight: Tensor, bias: Tensor, **more: Any) -> Any:
    return original(device, x, weight, None, **more)


@reduction("Partial sums are reduced along the sequence axis.", "cluster_axis of the other parallelism", case=SP2_TP2)
@at("refsim.parallel.tensor:reduce_scatter")
def reduced_on_the_wrong_axis(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return original(device, x, device.groups["sp"], dim=dim)


@reduction("Features are gathered along the sequence axis.", "cluster_axis of the other parallelism", case=SP2_TP2)
@at("refsim.parallel.tensor:all_gather")
def gathered_on_the_wrong_axis(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return original(device, x, device.groups["sp"], dim=dim)


@order("Slices of a reduce_scatter go to the wrong member.", "scatter in ring order, not in rank order")
@at("refsim.parallel.tensor:reduce_scatter")
def scatter_order(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return original(device, torch.cat(x.chunk(group.size, dim)[::-1], dim), group, dim=dim)


@precision("Partial sums are rounded to bf16 before they are added.", "reduce in the storage dtype")
@at("refsim.parallel.tensor:reduce_scatter")
def reduced_in_bf16(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return original(device, x.bfloat16().float(), group, dim=dim)


@precision("Statistics of the layer norm travel in bf16.", "stats tile in bf16")
@at("refsim.layers.norm:all_gather")
def statistics_in_bf16(original: Any, device: Any, x: Tensor, *args: Any, **more: Any) -> Tensor:
    return original(device, x.bfloat16().float(), *args, **more)


@precision("Weights have 7 bits where bf16 or more is meant.", "bfloat8_b weights", case=SERIAL)
@at("refsim.files.checkpoint:Weights.take")
def weights_in_8_bits(original: Any, self: Any, name: str, *args: Any) -> Tensor:
    x = original(self, name, *args)
    step = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 64
    return (x / step).round() * step if x.ndim == 2 else x


@precision("Matmuls multiply operands of 11 bits.", "a math fidelity too low", case=SERIAL)
@at("refsim.parallel.tensor:local_linear")
def low_fidelity(original: Any, device: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return original(device, x.half().float(), weight.half().float(), bias)


@order("The fused QKV holds K, Q, V.", "Q/K/V order of the reshuffle")
@at("refsim.layers.linear:ColParallelQKV.__init__")
def qkv_order(original: Any, self: Any, *args: Any, **more: Any) -> None:
    original(self, *args, **more)
    self.weights, self.biases = [[x[i] for i in (1, 0, 2)] for x in (self.weights, self.biases)]


@order("The fused QKV is cut without giving each device its own q, k and v.", "QKV reshuffle left out")
@at("refsim.layers.linear:ColParallelQKV.__init__")
def qkv_reshuffle_omitted(
    original: Any, self: Any, weights: Any, device: Any, names: Any, sizes: Any, **more: Any
) -> None:
    original(self, weights, device, names, sizes, **more)
    tp = device.groups["tp"]
    rows = (0, self.weights[0].shape[0] * tp.size)
    lanes = (0, self.weights[0].shape[1])
    shape = (sizes.inner, sizes.features)
    whole = torch.cat([weights.take(f"{n}.weight", shape, rows, lanes) for n in names])
    bias = torch.cat([weights.take(f"{n}.bias", shape[:1], rows) for n in names])
    self.weights = list(whole.chunk(tp.size)[tp.index].chunk(3))
    self.biases = list(bias.chunk(tp.size)[tp.index].chunk(3))


@weights("Every device holds its neighbour's part of the column-parallel weights.", "rank + 1", case=TP2)
@at("refsim.layers.linear:ColParallelLinear.__init__")
def weights_of_the_neighbour(original: Any, self: Any, weights: Any, device: Any, name: str, **sizes: Any) -> None:
    tp = device.groups["tp"]
    neighbour = replace(tp, index=(tp.index + 1) % tp.size) if sizes.get("gathered_input") else tp
    with instead(linear, "shard_range", lambda padded, group: tensor.shard_range(padded, neighbour)):
        original(self, weights, device, name, **sizes)


@weights("A square weight is transposed.", "a checkpoint converter that transposes once too often")
@at("refsim.files.checkpoint:Weights.take")
def weight_transposed(original: Any, self: Any, name: str, *args: Any) -> Tensor:
    x = original(self, name, *args)
    return x.T.contiguous() if name == "transformer_blocks.1.attn.to_q.weight" else x


@weights("A block has the weights of the block before it.", "a cache keyed without the layer")
@at("refsim.files.checkpoint:Weights.take")
def weights_stale(original: Any, self: Any, name: str, *args: Any) -> Tensor:
    original(self, name, *args)
    return original(self, name.replace("blocks.1.ff.", "blocks.0.ff."), *args)


@weights("The norm of the prompt's keys has the weight of its queries.", "two names of one pattern", case=TP2)
@at("refsim.files.checkpoint:Weights.take")
def norm_weight_of_the_wrong_name(original: Any, self: Any, name: str, *args: Any) -> Tensor:
    original(self, name, *args)
    return original(self, name.replace("norm_added_k", "norm_added_q"), *args)


@weights("Queries and keys are not normalised.", "qk_norm of the previous model version")
@at("refsim.layers.attention:RMSNorm.__call__")
def qk_norm_omitted(_: Any, self: Any, x: Any) -> Any:
    return x


@padding("Lanes and heads of padding hold 0.05.", "uninitialised padding of weights")
def garbage_in_padded_weights() -> Patch:
    class Garbage:
        pad = staticmethod(lambda x, widths: F.pad(x, widths, value=0.05))

    return instead(checkpoint, "F", Garbage)


@padding("The layer norm counts padded lanes.", "divided by the padded hidden size")
@at("refsim.layers.norm:DistributedLayerNorm.__init__")
def norm_counts_padding(original: Any, self: Any, *args: Any, **more: Any) -> None:
    original(self, *args, **more)
    tp = self._device.groups["tp"]
    self._features = -(-self._features // (32 * tp.size)) * 32 * tp.size


@reduction("Each device normalises its own lanes.", "statistics of a distributed layer norm not gathered")
@at("refsim.layers.norm:all_gather")
def norm_statistics_local(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    return torch.cat([x] * group.size, dim)


@padding("Padded lanes of the residual stream hold NaN.", "0 * NaN in an unused lane")
@at("refsim.layers.norm:DistributedLayerNorm.__call__")
def nan_in_padded_lanes(original: Any, self: Any, x: MeshTensor) -> MeshTensor:
    y = original(self, x)
    local = y.local.clone()
    local[..., self._real :] = float("nan")
    return y.with_local(local)


@tables("Every shard takes the positional rows of the first.", "table not cut to the shard", case=SP2)
@at("refsim.layers.embeddings:PatchEmbed.position")
def position_table_not_cut(original: Any, self: Any, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
    return original(self, rows, columns, (0, span[1] - span[0]))


@tables("The positional table is cropped from its corner.", "centre crop forgotten")
@at("refsim.layers.embeddings:PatchEmbed.position")
def position_crop(_: Any, self: Any, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
    s = self.table_size
    places = [t // columns * s + t % columns for t in range(*span)]
    return torch.cat(self.table_rows([(p, p + 1) for p in places]))


@tables("Rows and columns of the positional table are swapped.", "x and y of a grid")
@at("refsim.layers.embeddings:PatchEmbed.position")
def position_rows_and_columns(_: Any, self: Any, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
    s = self.table_size
    top = (s - rows) // 2
    left = (s - columns) // 2
    places = [(left + t % columns) * s + top + t // columns for t in range(*span)]
    return torch.cat(self.table_rows([(p, p + 1) for p in places]))


@tables("The time embedding is [sin, cos].", "flip_sin_to_cos")
@at("refsim.layers.embeddings:timestep_embedding")
def time_sin_and_cos(original: Any, t: Any, n: Any, **more: Any) -> Any:
    return original(t, n, **more).roll(n // 2, -1)


@order("Tokens are gathered in reverse order of shards.", "concatenation by arrival, not by rank", case=SP2)
@at("refsim.parallel.sequence:all_gather")
def tokens_gathered_in_reverse(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
    y = original(device, x, group, dim=dim)
    return torch.cat(y.chunk(group.size, dim)[::-1], dim)


@order("Each member takes the next one's tokens.", "shard index off by one", case=SP2)
@at("refsim.parallel.sequence:TokenShards.cut")
def tokens_of_the_neighbour(original: Any, self: Any, x: Any, shard: Any, *, dim: Any) -> Any:
    return original(self, x, (shard + 1) % self.factor, dim=dim)


@order("Shift and scale change places.", "chunk order of AdaLayerNormContinuous", case=SERIAL)
@at("refsim.layers.modulation:Modulation.__call__")
def shift_and_scale_swapped(original: Any, self: Any, time: Any) -> list[MeshTensor]:
    shift, scale, *rest = original(self, time)
    return [scale, shift, *rest]


@order(
    "The last block's prompt norm takes shift before scale.", "AdaLayerNormContinuous gives scale first", case=SERIAL
)
@at("refsim.layers.modulation:Modulation.__call__")
def last_block_scale_order(original: Any, self: Any, time: Any) -> list[MeshTensor]:
    chunks = original(self, time)
    return chunks[::-1] if len(chunks) == 2 else chunks


@affine("The gate of attention is 1 % too large.", "a scale folded into a weight twice")
@at("refsim.layers.modulation:Modulation.__call__")
def gate_scaled(original: Any, self: Any, time: Any) -> list[MeshTensor]:
    shift, scale, *rest = original(self, time)
    if rest:
        rest[0] = rest[0].with_local(rest[0].local * 1.01)
    return [shift, scale, *rest]


@affine("The velocity is 0.5 % too large.", "a scaling factor of the VAE applied to the wrong tensor")
@at("refsim.models.sd35.transformer:SD35Transformer.unpatchify")
def sample_scaled(original: Any, *args: Any) -> Any:
    return original(*args) * 1.005


@order("The cfg groups are swapped.", "positive prompt on group 0", case=CFG2)
@at("refsim.pipelines.transformer:batch_range")
def cfg_groups_swapped(original: Any, device: Any, batch: int) -> tuple[int, int]:
    start, stop = original(device, batch)
    return batch - stop, batch - start


@order("Both cfg groups compute the negative prompt.", "batch not cut over the groups", case=CFG2)
@at("refsim.pipelines.transformer:batch_range")
def cfg_same_half_twice(_: Any, device: Any, batch: Any) -> Any:
    return (0, batch // device.groups["cfg"].size)


@affine("Guidance is computed from the positive sample.", "cond + scale * (cond - uncond)", case=CFG2)
@at("refsim.pipelines.transformer:guide")
def guidance_from_the_wrong_sample(_: Any, sample: Any, scale: Any) -> Any:
    return cfg.guide(sample, scale + 1.0)


@affine("The guidance scale is 1 % too large.", "a scale rounded to bf16", case=CFG2)
@at("refsim.pipelines.transformer:guide")
def guidance_scale(_: Any, sample: Any, scale: Any) -> Any:
    return cfg.guide(sample, scale * 1.01)


@rare("One rank ends with one wrong element in its copy of the answer.", "a copy gone stale")
@at("refsim.pipelines.transformer:gather_batch")
def one_stale_copy(original: Any, device: Any, x: Tensor) -> Tensor:
    y = original(device, x).clone()
    if device.rank == 3:
        y[0, 0, 0, 0] += 1.0
    return y


@rare("In the last block one rank's feed-forward is off by one part in a thousand.", "last layer, one rank", case=TP2)
@at("refsim.layers.linear:RowParallelLinear.__call__")
def last_block_one_rank(original: Any, self: Any, x: MeshTensor) -> MeshTensor:
    y = original(self, x)
    scaled = self._device.rank == 1 and self._device.current_stage.block == 3
    return y.with_local(y.local * 1.001) if scaled else y
