"""Matrix products and convolution against torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect


def linear(t: Env) -> None:
    """Column-parallel on axis 1: every device has its own weight columns and bias."""
    x, w, b = t.rand(2, 64, 256), t.rand(256, 512, scale=0.1), t.rand(1, 512)
    out = t.ttnn.linear(t.put(x), t.put(w, (None, 1)), bias=t.put(b, (None, 1)), activation="gelu")
    t.check(out, t.shards(F.gelu(x @ w + b), (None, 2)))
    bare = t.ttnn.linear(t.put(x), t.put(w, (None, 1)))
    t.check(bare, t.shards(x @ w, (None, 2)))


def transposed(t: Env) -> None:
    x, w = t.rand(1, 1, 64, 128), t.rand(1, 1, 96, 128, scale=0.1)
    t.check(t.ttnn.linear(t.put(x), t.put(w), transpose_b=True), x @ w.mT)
    t.check(t.ttnn.matmul(t.put(x.mT.contiguous()), t.put(w), transpose_a=True, transpose_b=True), x @ w.mT)


def matmul(t: Env) -> None:
    """Batched, one batch entry per device of axis 0."""
    a, b = t.rand(4, 3, 64, 128), t.rand(4, 3, 128, 32, scale=0.1)
    out = t.ttnn.matmul(t.put(a, (0, None)), t.put(b, (0, None)))
    t.check(out, t.shards(a @ b, (0, None)))


def narrow_weights(t: Env) -> None:
    """A bfp8_b weight is used as rounded, and a bfp8_b output is rounded."""
    x, w = t.rand(1, 1, 64, 128), t.rand(128, 64, scale=0.1)
    held = t.put(w, dtype="bfloat8_b")
    rounded = t.shadow.values(held)[0]
    assert not rounded.equal(w)
    t.check(t.ttnn.linear(t.put(x), held, dtype=t.ttnn.bfloat16), x @ rounded)
    out = t.ttnn.linear(t.put(x), held, dtype=t.ttnn.bfloat8_b)
    t.check(out, t.shadow.values(t.put(x @ rounded, dtype="bfloat8_b")), ulps=0)


def minimal_matmul(t: Env) -> None:
    ttnn, x, w, b = t.ttnn, t.rand(1, 1, 64, 256), t.rand(256, 512, scale=0.1), t.rand(1, 512)
    gelu = (ttnn.UnaryOpType.GELU, False)
    out = ttnn.experimental.minimal_matmul(
        t.put(x), t.put(w, (None, 1)), bias_tensor=t.put(b, (None, 1)), fused_activation=gelu
    )
    t.check(out, t.shards(F.gelu(x @ w + b), (None, 3)))


def minimal_matmul_split(t: Env) -> None:
    x, w, b = t.rand(1, 1, 64, 256), t.rand(256, 384, scale=0.1), t.rand(1, 384)
    parts = t.ttnn.experimental.minimal_matmul_split(t.put(x), t.put(w), chunks=3, bias_tensor=t.put(b))
    for part, wanted in zip(parts, (x @ w + b).chunk(3, -1), strict=True):
        t.check(part, wanted)


def matmul_with_residual(t: Env) -> None:
    x, w, b = t.rand(1, 1, 64, 256), t.rand(256, 128, scale=0.1), t.rand(1, 128)
    residual, gate = t.rand(1, 1, 64, 128), t.rand(1, 128)
    out = t.ttnn.experimental.dit_minimal_matmul_addcmul_fused(
        t.put(x), t.put(w), 0.5, t.put(residual), t.put(gate), t.put(b)
    )
    t.check(out, residual + 0.5 * (x @ w + b) * gate)


def all_gather_matmul(t: Env) -> None:
    """The inner dim is cut over axis 1, gathered on the way, and left gathered in the persistent buffer."""
    ttnn, x, w, b = t.ttnn, t.rand(1, 1, 64, 1024), t.rand(1024, 384, scale=0.1), t.rand(1, 384)
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(6, 6),
    )  # fmt: skip
    buffer = t.empty(1, 1, 64, 1024)
    parts = ttnn.experimental.all_gather_minimal_matmul_async(
        t.put(x, (None, 3)), t.put(w), bias_tensor=t.put(b), config=config, num_workers_per_link=6, chunks=3,
        multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0],
        persistent_output_buffer=buffer, num_links=1, cluster_axis=1, topology=t.linear,
    )  # fmt: skip
    for part, wanted in zip(parts, (x @ w + b).chunk(3, -1), strict=True):
        t.check(part, wanted)
    t.check(buffer, x)


def conv2d(t: Env) -> None:
    """Weights from the host, and again those that ttnn prepared and handed back."""
    ttnn, x = t.ttnn, t.rand(1, 32, 16, 16)
    weight, bias = t.rand(64, 32, 3, 3, scale=0.1), t.rand(1, 1, 1, 64)
    wanted = F.conv2d(x, weight, bias.flatten(), stride=2, padding=1).permute(0, 2, 3, 1).reshape(1, 1, 64, 64)
    options = dict(
        device=t.device, in_channels=32, out_channels=64, batch_size=1, input_height=16, input_width=16,
        kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    image = t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 256, 32), layout="ROW_MAJOR")
    host = [ttnn.from_torch(value, dtype=ttnn.bfloat16) for value in (weight, bias)]
    out, (height, width), prepared = ttnn.conv2d(
        input_tensor=image, weight_tensor=host[0], bias_tensor=host[1], return_output_dim=True,
        return_weights_and_bias=True, **options,
    )  # fmt: skip
    assert (height, width) == (8, 8)
    t.check(out, wanted)
    again = ttnn.conv2d(input_tensor=image, weight_tensor=prepared[0], bias_tensor=prepared[1], **options)
    t.check(again, wanted)


def conv2d_cut_weights(t: Env) -> None:
    """Output channels cut over axis 1: every device convolves with its own host shard of the weight."""
    ttnn, x, weight = t.ttnn, t.rand(1, 32, 8, 8), t.rand(128, 32, 1, 1, scale=0.1)
    mapper = ttnn.ShardTensor2dMesh(t.device, mesh_shape=t.shape, dims=(None, 0))
    out = ttnn.conv2d(
        input_tensor=t.put(x.permute(0, 2, 3, 1).reshape(1, 1, 64, 32), layout="ROW_MAJOR"),
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16, mesh_mapper=mapper),
        device=t.device, in_channels=32, out_channels=32, batch_size=1, input_height=8, input_width=8,
        kernel_size=(1, 1), conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    wanted = F.conv2d(x, weight).permute(0, 2, 3, 1).reshape(1, 1, 64, 128)
    t.check(out, t.shards(torch.as_tensor(wanted), (None, 3)))


CASES = collect(globals())
