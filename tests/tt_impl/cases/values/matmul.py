"""Matrix products against torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect, packed


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


def bfloat16_and_float32(t: Env) -> None:
    """A product that the processor takes in bfloat16 is that of float32, rounded; what cannot be left to it is not."""
    from tt_impl.mock.rules.matmul import product

    x, w, b = (v.bfloat16() for v in (t.rand(2, 64, 256), t.rand(1, 256, 96, scale=0.1), t.rand(1, 1, 96)))
    exact = x.double() @ w.double() + b.double()
    narrow, wide = product(x, w, b), product(x.float(), w.float(), b.float())
    assert (narrow.dtype, wide.dtype, narrow.shape) == (torch.bfloat16, torch.float32, wide.shape)
    batched = w.expand(2, 256, 96)
    of_many = product(x, batched)
    assert of_many.dtype == torch.bfloat16
    for found, true in ((narrow, exact), (wide.bfloat16(), exact), (of_many, x.double() @ w.double())):
        assert ((found.double() - true).abs() <= true.abs() * 2**-8 * 1.01 + 1e-5).all()
    before = torch.backends.mkldnn.matmul.fp32_precision
    for weight, how in ((w, {"activation": "relu"}), (w, {"program_activation": "gelu"}), (batched, {})):
        found = product(x, weight, b, **how)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, product(x.float(), weight.float(), b.float(), **how), rtol=1e-5, atol=1e-5)
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    rows, weight = t.rand(64, 256), t.rand(256, 96, scale=0.1)
    out = t.ttnn.linear(t.put(rows), t.put(weight), dtype=t.ttnn.float32)
    whole = rows.double() @ weight.double()
    assert ((t.shadow.values(out)[0].double() - whole).abs() <= whole.abs() * 1e-5 + 1e-6).all(), "rounded to bfloat16"


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
    t.check(out, packed(x @ rounded, 7), ulps=0)


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


def activation_of_a_program(t: Env) -> None:
    """What the program config says to apply is applied, once, and before the activation that an argument names."""
    ttnn, x, w, b = t.ttnn, t.rand(1, 1, 64, 128), t.rand(128, 64, scale=0.1), t.rand(1, 64)
    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(1, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=2,
        per_core_N=2, transpose_mcast=False, fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU),
    )  # fmt: skip
    held = [t.put(value) for value in (x, w)]
    t.check(ttnn.matmul(*held, program_config=config), F.silu(x @ w))
    for shape in ((1, 64), (1, 1, 1, 64)):
        t.check(ttnn.linear(*held, bias=t.put(b.reshape(shape)), program_config=config), F.silu(x @ w + b))
    t.check(ttnn.linear(*held, program_config=config, activation="gelu"), F.gelu(F.silu(x @ w)))


def swiglu(t: Env) -> None:
    """Tiles of gate and up take turns in the weight's columns."""
    x, gate, up = t.rand(1, 1, 64, 128), t.rand(128, 128, scale=0.1), t.rand(128, 128, scale=0.1)
    turns = torch.stack([gate.unflatten(1, (-1, 32)), up.unflatten(1, (-1, 32))], 2).flatten(1)
    wanted = F.silu(x @ gate) * (x @ up)
    out = t.ttnn.experimental.minimal_matmul(t.put(x), t.put(turns), fuse_swiglu=True)
    t.check(out, wanted)
    parts = t.ttnn.experimental.minimal_matmul_split(t.put(x), t.put(turns), chunks=2, fuse_swiglu=True)
    for part, half in zip(parts, wanted.chunk(2, -1), strict=True):
        t.check(part, half)


def columns_in_two_pieces(t: Env) -> None:
    """The prefix ends inside a tile, so the weight has rows of zeros there."""
    prefix, suffix = t.rand(1, 1, 64, 48), t.rand(1, 1, 64, 64)
    w = t.rand(112, 96, scale=0.1)
    padded = torch.cat([w[:48], torch.zeros(16, 96), w[48:]])
    out = t.ttnn.experimental.minimal_matmul([t.put(prefix), t.put(suffix)], t.put(padded))
    t.check(out, torch.cat([prefix, suffix], -1) @ w)


def all_gather_matmul_with_residual(t: Env) -> None:
    ttnn, x, w, b = t.ttnn, t.rand(1, 1, 64, 1024), t.rand(1024, 384, scale=0.1), t.rand(1, 384)
    residual, gate = t.rand(1, 1, 64, 384), t.rand(1, 1, 1, 384)
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(6, 6),
    )  # fmt: skip

    def run(**more: Any) -> Any:
        return ttnn.experimental.all_gather_minimal_matmul_async(
            t.put(x, (None, 3)), t.put(w), bias_tensor=t.put(b), config=config, num_workers_per_link=6,
            multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0],
            persistent_output_buffer=t.empty(1, 1, 64, 1024), num_links=1, cluster_axis=1, topology=t.linear, **more,
        )  # fmt: skip

    terms = dict(scalar=0.5, addcmul_input_tensor1=t.put(residual), addcmul_input_tensor2=t.put(gate))
    (out,) = run(**terms)
    t.check(out, residual + 0.5 * (x @ w + b) * gate)
    (out,) = run(fused_activation=(ttnn.UnaryOpType.GELU, False))
    t.check(out, F.gelu(x @ w + b))


def sparse_matmul(t: Env) -> None:
    """Experts: those that no token chose give zeros."""
    ttnn, experts = t.ttnn, 4
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(2, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        out_block_h=1, out_block_w=1, per_core_M=1, per_core_N=1, fuse_batch=False, fused_activation=None,
        mcast_in0=True,
    )  # fmt: skip
    w = t.rand(1, experts, 64, 64, scale=0.1)

    def chosen(*values: int) -> Any:
        return t.put(torch.tensor(values).float().reshape(1, 1, 1, experts), layout="ROW_MAJOR")

    x = t.rand(1, 1, 32, 64)
    out = ttnn.sparse_matmul(t.put(x), t.put(w), sparsity=chosen(1, 0, 0, 1), nnz=2, program_config=config)
    wanted = torch.stack([x[0, 0] @ w[0, e] * float(e in (0, 3)) for e in range(experts)])
    t.check(out, wanted.reshape(1, 1, 1, experts, 32, 64))
    hidden = t.rand(1, experts, 32, 64)
    out = ttnn.sparse_matmul(
        t.put(hidden), t.put(w), sparsity=chosen(0, 1, 1, 0), is_input_a_sparse=True, program_config=config
    )
    wanted = torch.stack([hidden[0, e] @ w[0, e] * float(e in (1, 2)) for e in range(experts)])
    t.check(out, wanted.unsqueeze(0))


def activation_with_a_parameter_that_it_has_not(t: Env) -> None:
    """The message is of the activation, not of torch's function."""
    from tt_impl.mock.rules.eltwise import activate

    try:
        activate(torch.zeros(1), (t.ttnn.UnaryOpType.RELU, False))
    except TypeError as error:
        assert str(error) == "activation 'relu' with parameters [False] is not known"
    else:
        raise AssertionError("nothing was raised")


def zero_times_infinity(t: Env) -> None:
    """The matrix unit has zero, and so has a product of bfloat16; a float32 makes NaN of it, two infinities too."""
    ttnn, inf = t.ttnn, float("inf")
    triangle = torch.ones(32, 32).triu(1)
    mask = ttnn.multiply(t.put(torch.full((32, 32), -inf)), t.put(triangle))
    t.check(mask, torch.where(triangle == 1, -inf, 0.0))
    wide = ttnn.multiply(t.put(torch.full((32, 32), -inf), dtype="float32"), t.put(triangle, dtype="float32"))
    assert torch.equal(t.shadow.values(wide)[0].isnan(), triangle == 0)
    a, b = torch.zeros(32, 32), torch.ones(32, 32)
    a[0, 0], a[1, 1], a[2, :2], b[0] = 2.0, 3.0, torch.tensor([1.0, -1.0]), inf
    b[1] = 5.0
    wanted = torch.zeros(32, 32)
    wanted[0], wanted[1], wanted[2] = inf, 15.0, inf
    t.check(ttnn.matmul(t.put(a), t.put(b)), wanted)
    one = torch.zeros(32, 32)
    one[3, 4] = -inf  # of one operand alone, beside zeros and ones of the other
    other = torch.eye(32)
    wanted = torch.zeros(32, 32)
    wanted[3, 4] = -inf
    t.check(ttnn.matmul(t.put(one), t.put(other)), wanted)
    t.check(ttnn.matmul(t.put(other), t.put(one)), wanted)
    b[1] = inf
    assert t.shadow.values(ttnn.matmul(t.put(a), t.put(b)))[0][2].isnan().all()


CASES = collect(globals())
