"""Matrix products: which compute config, K blocks and activation each operation has.

    matmul, linear     K blocks of ``in0_block_w`` tiles; without a program config what ttnn chooses [from memory: tiles
                       divided among columns of cores for a two-dimensional grid, otherwise 2 if their number is even]
    minimal_matmul     K blocks of ``K_block_size`` tiles, 8 by default
    attn_matmul        all of K in the destination; LoFi and 16 bits by default [from memory]
    addmm              a matmul, then an operation each for alpha, beta and the sum [from memory]

An activation of ``linear`` without program config and core grid is an operation of its own behind the product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from refsim.numerics.composites import Compute, elementwise
from refsim.numerics.composites import linear as composites
from tt_impl.mock.numerics.eltwise import activated, compute_of
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, computing, dtype_of, rounded, widened
from tt_impl.mock.rules.registry import TILE
from tt_impl.mock.storage.values import Shards

MINIMAL = Compute("HiFi2", fp32_dest_acc_en=True, packer_l1_acc=True)
MINIMAL_K_BLOCK = 8
"""Tiles of K in a block of minimal_matmul without a config."""
_NARROW = 8
"""Ratio of sides from which ttnn takes a grid of one row or column."""


def product(
    kernel: Kernel, a: Tensor, b: Tensor, bias: Tensor | None = None, *, transpose_a: bool = False,
    transpose_b: bool = False, activation: Any = None, program_activation: Any = None,
) -> Tensor:  # fmt: skip
    """Compute as :func:`tt_impl.mock.rules.matmul.product`, each K block and the result packed."""
    a, b, bias = widened(a, b, bias)
    if not a.numel() or not b.numel():
        raise Unmodelled("no values")
    a = a.mT if transpose_a else a
    b = b.mT if transpose_b else b
    kwargs = kernel.call.kwargs
    configured = kwargs.get("program_config") is not None or kwargs.get("core_grid") is not None
    first = 1 if kernel.call.name == "ttnn.addmm" else 0
    in0, in1 = (dtype_of(tensor) for tensor in kernel.call.inputs[first : first + 2])
    chosen = {"program_config": configured, "arch": kernel.arch}
    compute = kernel.compute(composites.default_compute(in0, in1, kernel.out_dtype, **chosen))
    fused = program_activation if program_activation is not None else activation if configured else None
    row = bias is not None and bias.numel() == bias.shape[-1]
    how: dict[str, Any] = {
        "compute": compute,
        "k_block": _k_block(kernel, a, b),
        "activation": lambda value: activated(compute, value, fused),
        "out_dtype": kernel.out_dtype,
    }
    whole = _batched(a, b, bias if row else None, how)
    after = compute_of(kernel)
    if bias is not None and not row:
        whole = elementwise.add(whole, bias, dtype=kernel.out_dtype, compute=after)
    if activation is not None and not configured:
        whole = kernel.pack(after, activated(after, whole, _as_operation(activation)))
    return whole


def _as_operation(activation: Any) -> Any:
    """Return an activation as an operation of its own: gelu is accurate there."""
    return (activation, 0.0) if activation == "gelu" else activation


def _batched(a: Tensor, b: Tensor, bias: Tensor | None, how: dict[str, Any]) -> Tensor:
    """Multiply [.., M, K] by one matrix [.., K, N], or each by one of its own."""
    dims = max(x.dim() for x in (a, b, bias) if x is not None)
    if b.numel() == math.prod(b.shape[-2:]):
        whole = composites.linear(a, b.reshape(b.shape[-2:]), bias, **how)
        return whole.reshape((1,) * (dims - whole.dim()) + tuple(whole.shape))
    batches = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.expand(*batches, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    parts = [composites.linear(x, matrix, bias, **how) for x, matrix in zip(a, b, strict=True)]
    return torch.stack(parts).unflatten(0, batches)


def _k_block(kernel: Kernel, a: Tensor, b: Tensor) -> int | None:
    """Return how many values of K a block has; None for all."""
    width = getattr(kernel.program_config, "in0_block_w", None)
    if width is None:
        width = _chosen(kernel, a.shape[-1], math.prod(a.shape[:-1]), b.shape[-1])
    return width * TILE


def _chosen(kernel: Kernel, *sizes: int) -> int:
    """Return the tiles of a K block that ttnn chooses for (K, M, N)."""
    depth, rows, columns = (-(-size // TILE) for size in sizes)
    grid = kernel.call.kwargs.get("core_grid")
    if grid is not None:
        width = -(-depth // grid.x)
        while depth % width:
            width += 1
        return width
    if max(rows, columns) > _NARROW * min(rows, columns) or min(rows, columns) == 1:
        return 1 if depth % 2 else 2
    cores = kernel.call.outputs[0].device().compute_with_storage_grid_size().x
    return depth // cores if depth % cores == 0 else 1


def minimal_product(
    kernel: Kernel, a: Tensor, b: Tensor, bias: Tensor | None = None, *, activation: Any = None
) -> Tensor:
    """Compute ``minimal_matmul`` and those with collectives; what gets a residual at once is not packed before."""
    if kernel.call.kwargs.get("fuse_swiglu"):
        raise Unmodelled("fuse_swiglu")
    a, b, bias = widened(a, b, bias)
    compute = kernel.compute(MINIMAL)
    width = getattr(kernel.program_config, "K_block_size", None) or MINIMAL_K_BLOCK
    gets_residual = "addcmul_input_tensor1" in kernel.call.kwargs and "all_gather" in kernel.call.name
    follows = gets_residual or "dit_minimal_matmul_addcmul" in kernel.call.name
    return composites.minimal_matmul(
        a, b.reshape(b.shape[-2:]), bias, k_block=width * TILE, compute=compute,
        activation=lambda value: activated(compute, value, activation),
        out_dtype=compute.l1_dtype if follows else kernel.out_dtype,
    )  # fmt: skip


def with_residual(kernel: Kernel, x: Tensor, residual: Tensor | None, gate: Any, scalar: Any) -> Tensor:
    """Compute residual + scalar * x * gate on the vector unit."""
    if residual is None:
        return x
    how: dict[str, Any] = {"dtype": kernel.out_dtype, "compute": kernel.compute(MINIMAL)}
    return elementwise.addcmul(residual, x, gate, value=scalar, **how)


@rounded("addmm")
def addmm(
    kernel: Kernel, input_tensor: Shards, mat1_tensor: Shards, mat2_tensor: Shards, *, alpha: float = 1.0,
    beta: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    how: dict[str, Any] = {"dtype": kernel.out_dtype, "compute": compute_of(kernel, input_tensor)}

    def one(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        whole = product(kernel, a, b)
        whole = whole if alpha == 1 else elementwise.multiply(whole, torch.tensor(alpha).bfloat16().float(), **how)
        if beta == 0:
            return whole
        x = x if beta == 1 else elementwise.multiply(x, torch.tensor(beta).bfloat16().float(), **how)
        return elementwise.add(whole, x, **how)

    return kernel.call.each(one, input_tensor, mat1_tensor, mat2_tensor)


ATTENTION = Compute("LoFi", fp32_dest_acc_en=False)


@rounded("experimental.attn_matmul")
def attn_matmul(kernel: Kernel, input_tensor_a: Shards, input_tensor_b: Shards) -> list[Tensor]:
    compute = kernel.compute(ATTENTION)

    def one(a: Tensor, b: Tensor) -> Tensor:
        users = [compute.store(compute.matmul(a[0, :, user], b[user, 0])) for user in range(a.shape[2])]
        return kernel.pack(compute, torch.stack(users, 1)[None])

    return kernel.call.each(one, input_tensor_a, input_tensor_b)


computing("matmul", "linear", "experimental.all_gather_matmul_async", product=product)
computing("experimental.minimal_matmul", "experimental.minimal_matmul_split", product=minimal_product)
computing(
    "experimental.dit_minimal_matmul_addcmul_fused",
    "experimental.all_gather_minimal_matmul_async",
    product=minimal_product,
    with_residual=with_residual,
)
