"""Products and their reduce-scatter in one operation, on a ring."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from refsim.numerics.composites import Compute, collectives, elementwise, linear
from tests.tt_impl.cases.shadow.numerics import _config, _numerics, _same
from tests.tt_impl.env import Env, collect


def minimal_matmul_reduce_scatter(t: Env) -> None:
    """The inner dim is cut over axis 1; residual and gate belong to the part that a device keeps."""
    ttnn, n = t.ttnn, t.shape[1]
    x, w, b = t.rand(1, 1, 256, 128 * n), t.rand(128 * n, 256 * n, scale=0.1), t.rand(n, 256 * n)
    residual, gate = t.rand(1, 1, 256, 256 * n), t.rand(1, 1, 1, 256 * n)
    grid, kernel = t.mesh.grid, ttnn.init_device_compute_kernel_config(t.device.arch(), fp32_dest_acc_en=True)
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(4, 4),
    )  # fmt: skip
    terms = dict(
        fused_ternary_scalar=0.5, addcmul_input_tensor1=t.put(residual, (None, 3)),
        addcmul_input_tensor2=t.put(gate, (None, 3)),
    )  # fmt: skip
    products = [a @ c + d for a, c, d in zip(x.chunk(n, -1), w.chunk(n, 0), b.chunk(n, 0), strict=True)]
    total = sum(product.bfloat16().float() for product in products)
    for extra, wanted in (({}, total), (terms, residual + 0.5 * total * gate)):
        product, out = ttnn.experimental.minimal_matmul_strided_reduce_scatter_async(
            t.put(x, (None, 3)), t.put(w, (None, 0)), 3, t.semaphores(3), ttnn.CoreCoord(0, 4),
            compute_kernel_config=kernel, num_links=1, topology=ttnn.Topology.Ring, cluster_axis=1,
            bias=t.put(b, (None, 0)), config=config, barrier_semaphore=t.semaphores(1)[0],
            memory_config_mm=ttnn.DRAM_MEMORY_CONFIG, rs_output_mem_config=ttnn.DRAM_MEMORY_CONFIG, **extra,
        )  # fmt: skip
        t.check(product, products)
        t.check(out, t.shards(wanted, (None, 3)))
    assert grid[1] > 4


def matmul_reduce_scatter(t: Env) -> None:
    ttnn, n = t.ttnn, t.shape[1]
    x, w = t.rand(1, 1, 128, 128 * n), t.rand(1, 1, 128 * n, 256 * n, scale=0.1)
    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(4, 2), in0_block_w=2, out_subblock_h=1, out_subblock_w=2, per_core_M=2,
        per_core_N=8, transpose_mcast=False, fused_activation=None,
    )  # fmt: skip
    intermediate, out_buffer = t.empty(1, 1, 128, 256 * n, fill=0.0), t.empty(1, 1, 128, 256)
    product, out = ttnn.experimental.matmul_reduce_scatter_async(
        t.put(x, (None, 3)), t.put(w, (None, 2)), persistent_intermediate_buffer=intermediate,
        persistent_output_buffer=out_buffer, dim=3, multi_device_global_semaphore=t.semaphores(3),
        reduce_scatter_core_grid_offset=ttnn.CoreCoord(0, 4), barrier_semaphore=t.semaphores(1)[0], num_links=1,
        topology=ttnn.Topology.Ring, program_config=config, memory_config_mm=ttnn.DRAM_MEMORY_CONFIG,
        memory_config_rs=ttnn.DRAM_MEMORY_CONFIG,
    )  # fmt: skip
    products = [a @ c for a, c in zip(x.chunk(n, -1), w.chunk(n, 2), strict=True)]
    t.check(product, products)
    t.check(out, t.shards(sum(product.bfloat16().float() for product in products), (None, 3)))
    t.check(out_buffer, t.shadow.values(out))
    assert all(value.isnan().all() for value in t.shadow.values(intermediate))


def gelu_of_a_product(t: Env) -> None:
    """Both operations take the activation before the sum, as the products' own."""
    ttnn, n = t.ttnn, t.shape[1]
    x, w = t.rand(1, 1, 256, 128 * n), t.rand(128 * n, 256 * n, scale=0.1)
    product, _ = ttnn.experimental.minimal_matmul_strided_reduce_scatter_async(
        t.put(x, (None, 3)), t.put(w, (None, 0)), 3, t.semaphores(3), ttnn.CoreCoord(0, 4),
        compute_kernel_config=ttnn.init_device_compute_kernel_config(t.device.arch(), fp32_dest_acc_en=True),
        num_links=1, topology=ttnn.Topology.Ring, cluster_axis=1, barrier_semaphore=t.semaphores(1)[0],
        fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.GELU),
        config=ttnn.MinimalMatmulConfig(
            M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
            compute_with_storage_grid_size=ttnn.CoreCoord(4, 4),
        ),
    )  # fmt: skip
    t.check(product, [F.gelu(torch.matmul(a, c)) for a, c in zip(x.chunk(n, -1), w.chunk(n, 0), strict=True)])


def rounded_products(t: Env) -> None:
    """Products of the chip's fidelity are packed, their sums hop by hop; what gets a residual is packed after it."""
    ttnn, n = t.ttnn, t.shape[1]
    t.shadow.numerics = _numerics("fast")
    x, w, residual, gate = t.rand(1, 1, 256, 512), t.rand(512, 1024), t.rand(1, 1, 256, 1024), t.rand(1, 1, 1, 1024)
    compute = Compute("HiFi2", fp32_dest_acc_en=True, packer_l1_acc=True, arch="blackhole")
    terms = {
        "fused_ternary_scalar": 0.5, "addcmul_input_tensor1": t.put(residual, (None, 3)),
        "addcmul_input_tensor2": t.put(gate, (None, 3)),
    }  # fmt: skip
    config = ttnn.MinimalMatmulConfig(
        M_block_size=2, K_block_size=2, N_block_size=2, subblock_h=1, subblock_w=2,
        compute_with_storage_grid_size=ttnn.CoreCoord(4, 4),
    )  # fmt: skip
    factors = list(zip(x.chunk(n, -1), w.chunk(n, 0), strict=True))
    whole = [linear.minimal_matmul(a, b, k_block=64, compute=compute) for a, b in factors]
    sums = collectives.reduce_scatter(whole, compute=Compute(arch="blackhole"))
    with_terms = [
        elementwise.addcmul(*parts, value=0.5, compute=compute)
        for parts in zip(residual.chunk(n, -1), sums, gate.chunk(n, -1), strict=True)
    ]
    for more, wanted in (({}, sums), (terms, with_terms)):
        products, out = ttnn.experimental.minimal_matmul_strided_reduce_scatter_async(
            t.put(x, (None, 3)), t.put(w, (None, 0)), 3, t.semaphores(3), ttnn.CoreCoord(0, 4), num_links=1,
            topology=ttnn.Topology.Ring, cluster_axis=1, config=config, barrier_semaphore=t.semaphores(1)[0],
            compute_kernel_config=_config(t, compute), **more,
        )  # fmt: skip
        _same(t, products, *whole)
        _same(t, out, *wanted)
    a, b = (torch.randn(*shape, generator=t.random) for shape in ((32, 64), (64, 32)))
    fine = linear.default_compute("float32", "float32", "float32", arch="blackhole")
    wanted = linear.linear(a, b, compute=fine, k_block=64, out_dtype="float32")
    _same(t, ttnn.matmul(*(t.put(factor, dtype="float32") for factor in (a, b))), wanted)
    assert t.shadow.numerics.once == {}


CASES = collect(globals())
