"""Faults of the reference in the model: reductions, weights, norms, tables, modulation, guidance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.faults.ref_tools import CFG2, SERIAL, SP2, SP2_TP2, TP2, around, fault, instead
from refsim.files import checkpoint
from refsim.layers import attention, embeddings, linear, norm
from refsim.models.sd35 import block, transformer
from refsim.parallel import cfg, sequence, tensor
from refsim.pipelines import transformer as pipeline
from refsim.runtime.tensor import MeshTensor

REDUCTION, WEIGHTS, PADDING, TABLES, PRECISION = "reduction", "weights", "padding", "tables", "precision"
ORDER, AFFINE, RARE = "order", "affine", "rare"


def _reduce(change: Any) -> Any:
    """A patch of reduce_scatter as tensor parallelism calls it: ``change(original, device, x, group, dim)``."""

    def reduce(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        return change(lambda y, members=group: original(device, y, members, dim=dim), device, x, group, dim)

    return around(tensor, "reduce_scatter", reduce)


@fault(
    REDUCTION,
    TP2,
    "No reduce_scatter: every device keeps its lanes of its own partial sum.",
    "a row-parallel linear followed by a plain split, whose shape is the same",
)
def reduction_missing() -> Iterator[None]:
    with _reduce(lambda reduce, device, x, group, dim: x.chunk(group.size, dim)[group.index].contiguous()):
        yield


@fault(
    REDUCTION,
    TP2,
    "Partial sums are handed on as if they were sums.",
    "the forgotten collective",
    says=r"needs a full value but was given tp=P\(sum\)",
)
def partial_used_as_full() -> Iterator[None]:
    with instead(tensor, "reduce_scatter_features", lambda device, x: x):
        yield


@fault(REDUCTION, TP2, "Partial sums are added up twice.", "an all_reduce in the layer and another one in its caller")
def reduced_twice() -> Iterator[None]:
    with _reduce(lambda reduce, device, x, group, dim: reduce(x) * group.size):
        yield


@fault(
    REDUCTION, TP2, "The bias is added before the reduction, by every device.", "bias handed to the row-parallel matmul"
)
def bias_before_the_reduction() -> Iterator[None]:
    def row(original: Any, device: Any, x: Any, weight: Tensor, bias: Tensor, **more: Any) -> Any:
        return original(device, x, weight, bias * device.groups["tp"].size, **more)

    with around(linear, "row_linear", row):
        yield


@fault(REDUCTION, TP2, "The bias of row-parallel linears is forgotten.", "bias dropped with the fused op")
def bias_forgotten() -> Iterator[None]:
    def row(original: Any, device: Any, x: Any, weight: Tensor, bias: Tensor, **more: Any) -> Any:
        return original(device, x, weight, None, **more)

    with around(linear, "row_linear", row):
        yield


@fault(REDUCTION, SP2_TP2, "Partial sums are reduced along the sequence axis.", "cluster_axis of the other parallelism")
def reduced_on_the_wrong_axis() -> Iterator[None]:
    with _reduce(lambda reduce, device, x, group, dim: reduce(x, device.groups["sp"])):
        yield


@fault(REDUCTION, SP2_TP2, "Features are gathered along the sequence axis.", "cluster_axis of the other parallelism")
def gathered_on_the_wrong_axis() -> Iterator[None]:
    def gather(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        return original(device, x, device.groups["sp"], dim=dim)

    with around(tensor, "all_gather", gather):
        yield


@fault(ORDER, TP2, "Slices of a reduce_scatter go to the wrong member.", "scatter in ring order, not in rank order")
def scatter_order() -> Iterator[None]:
    with _reduce(lambda reduce, device, x, group, dim: reduce(torch.cat(x.chunk(group.size, dim)[::-1], dim))):
        yield


@fault(PRECISION, TP2, "Partial sums are rounded to bf16 before they are added.", "reduce in the storage dtype")
def reduced_in_bf16() -> Iterator[None]:
    with _reduce(lambda reduce, device, x, group, dim: reduce(x.bfloat16().float())):
        yield


@fault(PRECISION, TP2, "Statistics of the layer norm travel in bf16.", "stats tile in bf16")
def statistics_in_bf16() -> Iterator[None]:
    def gather(original: Any, device: Any, x: Tensor, *args: Any, **more: Any) -> Tensor:
        return original(device, x.bfloat16().float(), *args, **more)

    with around(norm, "all_gather", gather):
        yield


@fault(PRECISION, SERIAL, "Weights have 7 bits where bf16 or more is meant.", "bfloat8_b weights")
def weights_in_8_bits() -> Iterator[None]:
    def take(original: Any, self: Any, name: str, *args: Any) -> Tensor:
        x = original(self, name, *args)
        step = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 64
        return (x / step).round() * step if x.ndim == 2 else x

    with around(checkpoint.Weights, "take", take):
        yield


@fault(PRECISION, SERIAL, "Matmuls multiply operands of 11 bits.", "a math fidelity too low")
def low_fidelity() -> Iterator[None]:
    def low(x: Tensor) -> Tensor:
        return x.half().float()

    with around(tensor, "local_linear", lambda original, device, x, w, b: original(device, low(x), low(w), b)):
        yield


def _qkv(change: Any) -> Any:
    def init(original: Any, self: Any, weights: Any, device: Any, names: Any, sizes: Any, **more: Any) -> None:
        original(self, weights, device, names, sizes, **more)
        change(self, weights, device, names, sizes)

    return around(linear.ColParallelQKV, "__init__", init)


@fault(ORDER, TP2, "The fused QKV holds K, Q, V.", "Q/K/V order of the reshuffle")
def qkv_order() -> Iterator[None]:
    def change(self: Any, *_: Any) -> None:
        self.weights, self.biases = [[x[i] for i in (1, 0, 2)] for x in (self.weights, self.biases)]

    with _qkv(change):
        yield


@fault(ORDER, TP2, "The fused QKV is cut without giving each device its own q, k and v.", "QKV reshuffle left out")
def qkv_reshuffle_omitted() -> Iterator[None]:
    def change(self: Any, weights: Any, device: Any, names: Any, sizes: Any) -> None:
        tp = device.groups["tp"]
        heads, rows = self.weights[0].shape[0] // sizes.head_dim, self.weights[0].shape[0] * tp.size
        width = self.weights[0].shape[1]
        shape, lanes = (sizes.inner, sizes.features), (0, width)
        whole = torch.cat([weights.take(f"{n}.weight", shape, (0, rows), lanes) for n in names])
        bias = torch.cat([weights.take(f"{n}.bias", shape[:1], (0, rows)) for n in names])
        assert whole.shape[0] == 3 * heads * tp.size * sizes.head_dim
        self.weights = list(whole.chunk(tp.size)[tp.index].chunk(3))
        self.biases = list(bias.chunk(tp.size)[tp.index].chunk(3))

    with _qkv(change):
        yield


@fault(WEIGHTS, TP2, "Every device holds its neighbour's part of the column-parallel weights.", "rank + 1")
def weights_of_the_neighbour() -> Iterator[None]:
    def init(original: Any, self: Any, weights: Any, device: Any, name: str, **sizes: Any) -> None:
        tp = device.groups["tp"]
        neighbour = replace(tp, index=(tp.index + 1) % tp.size) if sizes.get("gathered_input") else tp
        with instead(linear, "shard_range", lambda padded, group: tensor.shard_range(padded, neighbour)):
            original(self, weights, device, name, **sizes)

    with around(linear.ColParallelLinear, "__init__", init):
        yield


@fault(WEIGHTS, SERIAL, "A square weight is transposed.", "a checkpoint converter that transposes once too often")
def weight_transposed() -> Iterator[None]:
    def take(original: Any, self: Any, name: str, *args: Any) -> Tensor:
        x = original(self, name, *args)
        return x.T.contiguous() if name == "transformer_blocks.1.attn.to_q.weight" else x

    with around(checkpoint.Weights, "take", take):
        yield


@fault(WEIGHTS, SERIAL, "A block has the weights of the block before it.", "a cache keyed without the layer")
def weights_stale() -> Iterator[None]:
    def take(original: Any, self: Any, name: str, *args: Any) -> Tensor:
        original(self, name, *args)
        return original(self, name.replace("blocks.1.ff.", "blocks.0.ff."), *args)

    with around(checkpoint.Weights, "take", take):
        yield


@fault(WEIGHTS, TP2, "The norm of the prompt's keys has the weight of its queries.", "two names of one pattern")
def norm_weight_of_the_wrong_name() -> Iterator[None]:
    def take(original: Any, self: Any, name: str, *args: Any) -> Tensor:
        original(self, name, *args)
        return original(self, name.replace("norm_added_k", "norm_added_q"), *args)

    with around(checkpoint.Weights, "take", take):
        yield


@fault(WEIGHTS, SERIAL, "Queries and keys are not normalised.", "qk_norm of the previous model version")
def qk_norm_omitted() -> Iterator[None]:
    with instead(attention.RMSNorm, "__call__", lambda self, x: x):
        yield


@fault(PADDING, TP2, "Lanes and heads of padding hold 0.05.", "uninitialised padding of weights")
def garbage_in_padded_weights() -> Iterator[None]:
    class Garbage:
        pad = staticmethod(lambda x, widths: F.pad(x, widths, value=0.05))

    with instead(checkpoint, "F", Garbage):
        yield


@fault(PADDING, TP2, "The layer norm counts padded lanes.", "divided by the padded hidden size")
def norm_counts_padding() -> Iterator[None]:
    def init(original: Any, self: Any, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        tp = self._device.groups["tp"]
        self._features = -(-self._features // (32 * tp.size)) * 32 * tp.size

    with around(norm.DistributedLayerNorm, "__init__", init):
        yield


@fault(REDUCTION, TP2, "Each device normalises its own lanes.", "statistics of a distributed layer norm not gathered")
def norm_statistics_local() -> Iterator[None]:
    def gather(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        return torch.cat([x] * group.size, dim)

    with around(norm, "all_gather", gather):
        yield


@fault(PADDING, TP2, "Padded lanes of the residual stream hold NaN.", "0 * NaN in an unused lane")
def nan_in_padded_lanes() -> Iterator[None]:
    def normalise(original: Any, self: Any, x: MeshTensor) -> MeshTensor:
        y = original(self, x)
        local = y.local.clone()
        local[..., self._real :] = float("nan")
        return y.with_local(local)

    with around(norm.DistributedLayerNorm, "__call__", normalise):
        yield


def _position(change: Any) -> Any:
    return around(embeddings.PatchEmbed, "position", change)


@fault(TABLES, SP2, "Every shard takes the positional rows of the first.", "table not cut to the shard")
def position_table_not_cut() -> Iterator[None]:
    with _position(lambda original, self, rows, columns, span: original(self, rows, columns, (0, span[1] - span[0]))):
        yield


@fault(TABLES, SERIAL, "The positional table is cropped from its corner.", "centre crop forgotten")
def position_crop() -> Iterator[None]:
    def corner(original: Any, self: Any, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
        s = self.table_size
        places = [t // columns * s + t % columns for t in range(*span)]
        return torch.cat(self.table_rows([(p, p + 1) for p in places]))

    with _position(corner):
        yield


@fault(TABLES, SERIAL, "Rows and columns of the positional table are swapped.", "x and y of a grid")
def position_rows_and_columns() -> Iterator[None]:
    def swapped(original: Any, self: Any, rows: int, columns: int, span: tuple[int, int]) -> Tensor:
        s = self.table_size
        top, left = (s - rows) // 2, (s - columns) // 2
        places = [(left + t % columns) * s + top + t // columns for t in range(*span)]
        return torch.cat(self.table_rows([(p, p + 1) for p in places]))

    with _position(swapped):
        yield


@fault(TABLES, SERIAL, "The time embedding is [sin, cos].", "flip_sin_to_cos")
def time_sin_and_cos() -> Iterator[None]:
    with around(embeddings, "timestep_embedding", lambda original, t, n: original(t, n).roll(n // 2, -1)):
        yield


@fault(ORDER, SP2, "Tokens are gathered in reverse order of shards.", "concatenation by arrival, not by rank")
def tokens_gathered_in_reverse() -> Iterator[None]:
    def gather(original: Any, device: Any, x: Tensor, group: Any, *, dim: int) -> Tensor:
        y = original(device, x, group, dim=dim)
        return torch.cat(y.chunk(group.size, dim)[::-1], dim)

    with around(sequence, "all_gather", gather):
        yield


@fault(ORDER, SP2, "Each member takes the next one's tokens.", "shard index off by one")
def tokens_of_the_neighbour() -> Iterator[None]:
    with around(
        transformer.TokenShards,
        "cut",
        lambda original, self, x, shard, *, dim: original(self, x, (shard + 1) % self.factor, dim=dim),
    ):
        yield


def _chunks(change: Any) -> Any:
    return around(block.Modulation, "__call__", lambda original, self, time: change(original(self, time)))


@fault(ORDER, SERIAL, "Shift and scale change places.", "chunk order of AdaLayerNormContinuous")
def shift_and_scale_swapped() -> Iterator[None]:
    with _chunks(lambda chunks: [chunks[1], chunks[0], *chunks[2:]]):
        yield


@fault(
    ORDER, SERIAL, "The last block's prompt norm takes shift before scale.", "AdaLayerNormContinuous gives scale first"
)
def last_block_scale_order() -> Iterator[None]:
    with _chunks(lambda chunks: chunks[::-1] if len(chunks) == 2 else chunks):
        yield


@fault(AFFINE, SERIAL, "The gate of attention is 1 % too large.", "a scale folded into a weight twice")
def gate_scaled() -> Iterator[None]:
    with _chunks(
        lambda chunks: [*chunks[:2], chunks[2] * _like(chunks[2], 1.01), *chunks[3:]] if chunks[2:] else chunks
    ):
        yield


def _like(x: MeshTensor, value: float) -> MeshTensor:
    return x.with_local(torch.full_like(x.local, value))


@fault(AFFINE, SERIAL, "The velocity is 0.5 % too large.", "a scaling factor of the VAE applied to the wrong tensor")
def sample_scaled() -> Iterator[None]:
    with around(transformer.SD35Transformer, "unpatchify", lambda original, *args: original(*args) * 1.005):
        yield


@fault(ORDER, CFG2, "The cfg groups are swapped.", "positive prompt on group 0")
def cfg_groups_swapped() -> Iterator[None]:
    def swapped(original: Any, device: Any, batch: int) -> tuple[int, int]:
        start, stop = original(device, batch)
        return batch - stop, batch - start

    with around(pipeline, "batch_range", swapped):
        yield


@fault(ORDER, CFG2, "Both cfg groups compute the negative prompt.", "batch not cut over the groups")
def cfg_same_half_twice() -> Iterator[None]:
    with instead(pipeline, "batch_range", lambda device, batch: (0, batch // device.groups["cfg"].size)):
        yield


@fault(AFFINE, CFG2, "Guidance is computed from the positive sample.", "cond + scale * (cond - uncond)")
def guidance_from_the_wrong_sample() -> Iterator[None]:
    with instead(pipeline, "guide", lambda sample, scale: cfg.guide(sample, scale + 1.0)):
        yield


@fault(AFFINE, CFG2, "The guidance scale is 1 % too large.", "a scale rounded to bf16")
def guidance_scale() -> Iterator[None]:
    with instead(pipeline, "guide", lambda sample, scale: cfg.guide(sample, scale * 1.01)):
        yield


@fault(RARE, SP2_TP2, "One rank ends with one wrong element in its copy of the answer.", "a copy gone stale")
def one_stale_copy() -> Iterator[None]:
    def gather(original: Any, device: Any, x: Tensor) -> Tensor:
        y = original(device, x).clone()
        if device.rank == 3:
            y[0, 0, 0, 0] += 1.0
        return y

    with around(pipeline, "gather_batch", gather):
        yield


@fault(RARE, TP2, "In the last block one rank's feed-forward is off by one part in a thousand.", "last layer, one rank")
def last_block_one_rank() -> Iterator[None]:
    def call(original: Any, self: Any, x: MeshTensor) -> MeshTensor:
        y = original(self, x)
        scaled = self._device.rank == 1 and self._device.current_stage.block == 3
        return y.with_local(y.local * 1.001) if scaled else y

    with around(linear.RowParallelLinear, "__call__", call):
        yield
