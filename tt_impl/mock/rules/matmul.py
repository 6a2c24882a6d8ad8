"""Matrix products with bias and activation, of dense, sparse and grouped operands.

A product is taken in float32 and rounded once, to the dtype of the output. On processors that multiply bfloat16 and
add in float32, products of bfloat16 are left to them, at two to six times the speed.

Legend: M rows, K inner, N columns, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import ttnn
from torch import Tensor

from refsim.numerics.cheap import product as product_in_float32
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import SUMS_BFLOAT16, TILE, Call, per_device, table


def product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, transpose_a: bool = False, transpose_b: bool = False,
    activation: Any = None, program_activation: Any = None,
) -> Tensor:  # fmt: skip
    """Compute ``a @ b + bias``, then the activation of the program config, then that of the argument.

    The result is bfloat16 where the operands are finite and nothing follows the product, else it may be float32.
    """
    a = a.mT if transpose_a else a
    b = b.mT if transpose_b else b
    narrow = a.dtype == torch.bfloat16
    if narrow:
        whole = _rounded_once(a, b, bias) if activation is None and program_activation is None else None
        if whole is not None and math.isfinite(whole.sum()):
            return whole
        a, b, bias = (None if x is None else x.float() for x in (a, b, bias))
    whole = product_in_float32(a, b, exact=narrow)
    if not math.isfinite(whole.sum()):
        whole = of_infinities(whole, a, b)
    whole = whole if bias is None else whole + bias
    if a.numel() == 0 or b.numel() == 0:
        return whole  # nothing is computed then, so nothing is activated
    return activate(activate(whole, program_activation), activation)


def of_infinities(whole: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the product ``whole`` of operands with infinities as the matrix unit has it: zero times infinity is zero.

    Infinities of both signs stay NaN, and so does what an operand that holds NaN goes into.
    """
    if not (a.isinf().any() or b.isinf().any()) or a.isnan().any() or b.isnan().any():
        return whole
    infinite_a = torch.where(a.isinf(), a.sign(), 0.0)
    infinite_b = torch.where(b.isinf(), b.sign(), 0.0)
    finite_a = torch.where(a.isinf(), 0.0, a)
    terms = [(infinite_a, b.sign()), (finite_a.sign(), infinite_b)]
    signed = sum(torch.matmul(x, y) for x, y in terms)
    count = sum(torch.matmul(x.abs(), y.abs()) for x, y in terms)
    finite = torch.matmul(finite_a, torch.where(b.isinf(), 0.0, b))
    infinite = torch.where(signed.abs() == count, signed.sign() * math.inf, math.nan)
    return torch.where(count == 0, finite, infinite)


def _rounded_once(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor | None:
    """Compute ``a @ b + bias`` of bfloat16 in float32, rounded once; None for vectors, and for a bias of many rows."""
    rows = bias is None or bias.numel() == bias.shape[-1]
    if not rows or min(a.dim(), b.dim()) < 2:
        return None
    if b.numel() != math.prod(b.shape[-2:]):
        return torch.matmul(a, b) if bias is None else None
    whole = F.linear(a, b.reshape(b.shape[-2:]).mT, None if bias is None else bias.reshape(-1))
    dims = max(operand.dim() for operand in (a, b, bias) if operand is not None)
    return whole.reshape((1,) * (dims - whole.dim()) + tuple(whole.shape))


@per_device("matmul", "linear", with_call=True, rounds_once=SUMS_BFLOAT16)
def matmul(
    call: Call,
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Any = None,
    program_activation: Any = None,
    in0_column_offset: int | None = None,
    product: Callable[..., Tensor] = product,
    **transposed: bool,
) -> Tensor:
    """Multiply [.., M, K] and [.., K, N]; bias [N], [M, N] or of as many batches as the product.

    ``in0_column_offset`` is the first of the K columns that are read of a wider ``input_tensor_a``.
    """
    if unknown := set(transposed) - {"transpose_a", "transpose_b"}:
        raise call.unsupported(", ".join(sorted(unknown)))
    if activation is not None and call.kwargs.get("core_grid") is not None and "program_config" in call.kwargs:
        raise call.unsupported("an activation beside a program_config and a core_grid")
    if bias is not None:
        _check_bias(call, bias, input_tensor_b, program_activation)
    if in0_column_offset is not None:
        inner = input_tensor_b.shape[-1 if transposed.get("transpose_b") else -2]
        input_tensor_a = input_tensor_a[..., in0_column_offset : in0_column_offset + inner]
    how = {"activation": activation, "program_activation": program_activation, **transposed}
    return _with_ones(product(input_tensor_a, input_tensor_b, bias, **how), tuple(call.outputs[0].shape))


def _check_bias(call: Call, bias: Tensor, weight: Tensor, program_activation: Any) -> None:
    """Refuse an activation of the program before a bias that it does not add: of more than one tile of rows."""
    rows = bias.shape[-2] if len(bias.shape) > 1 else 1
    batched = any(size > 1 for shape in (bias.shape, weight.shape) for size in shape[:-2])
    in_program = isinstance(call.kwargs.get("program_config"), ttnn.MatmulMultiCoreReuseProgramConfig)
    if program_activation is not None and (batched or (rows > TILE and not in_program)):
        raise call.unsupported("an activation in the program_config before a bias that is not a row")


def _with_ones(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``value`` with as many leading dims of size 1 as ``shape`` has; ttnn keeps those of operands and bias."""
    whole = (1,) * (len(shape) - value.dim()) + tuple(value.shape)
    extra = len(whole) - len(shape)
    return value.reshape(shape) if whole[extra:] == shape and set(whole[:extra]) <= {1} else value


@per_device("addmm")
def addmm(
    input_tensor: Tensor, mat1_tensor: Tensor, mat2_tensor: Tensor, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """Compute beta * input + alpha * (mat1 @ mat2); with a beta of 0 the input is not read."""
    whole = alpha * torch.matmul(mat1_tensor, mat2_tensor)
    return whole if beta == 0 else beta * input_tensor + whole


# each of [.., N] with each of [.., M]: [.., N, M]
table({"outer": lambda input_tensor_a, input_tensor_b: input_tensor_a.unsqueeze(-1) * input_tensor_b.unsqueeze(-2)})


@per_device("sparse_matmul", with_call=True)
def sparse_matmul(
    call: Call,
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    sparsity: Tensor,
    nnz: int | None = None,
    is_input_a_sparse: bool = False,
    is_input_b_sparse: bool = True,
    program_activation: Any = None,
) -> Tensor:
    """Multiply for experts; the product is zero where ``sparsity`` is.

    b sparse: [A, B, M, K] @ [1, E, K, N] -> [A, B, 1, E, M, N], sparsity [A, B, 1, E]; both: [1, E, M, K] -> [1, E, M,
    N], sparsity [1, 1, 1, E]; a sparse: [A, E, M, K] -> [A, E, M, N], sparsity [1, 1, A, E]. An optional output of
    shape [1, nnz, M, N] gets the used ones alone. ``nnz`` must be the number of values that are not zero: a device
    would hang.
    """
    wanted = tuple(call.outputs[0].shape)
    used = sparsity != 0
    count = int(used.sum())
    if nnz is not None and nnz != count:
        raise call.unsupported(f"nnz {nnz} where {count} values of sparsity are not zero, which hangs a device")
    if is_input_a_sparse:
        whole = torch.matmul(input_tensor_a, input_tensor_b)
        used = used.reshape(*input_tensor_a.shape[:2], 1, 1)
    else:
        whole = torch.matmul(input_tensor_a[:, :, None, None], input_tensor_b)
        used = used.reshape(*input_tensor_a.shape[:2], 1, -1, 1, 1)
    whole = activate(whole, program_activation)
    if nnz is not None and wanted == (1, nnz, *whole.shape[-2:]):
        return whole[used.expand(*used.shape[:-2], *whole.shape[-2:])].reshape(wanted)
    return torch.where(used, whole, 0.0)


@per_device("experimental.attn_matmul")
def attn_matmul(input_tensor_a: Tensor, input_tensor_b: Tensor) -> Tensor:
    """Multiply [1, H, B, K] and [B, 1, K, N] to [1, H, B, N]: every user's row with a matrix of its own."""
    return torch.matmul(input_tensor_a.transpose(0, 2), input_tensor_b).transpose(0, 2)


@per_device("experimental.group_attn_matmul")
def group_attn_matmul(input_tensor_a: Tensor, input_tensor_b: Tensor) -> Tensor:
    """Multiply as ``attn_matmul`` with [B, Hkv, K, N], each matrix for H / Hkv heads after each other."""
    shared = input_tensor_b.repeat_interleave(input_tensor_a.shape[1] // input_tensor_b.shape[1], 1)
    return torch.einsum("qhbk,bhkn->qhbn", input_tensor_a, shared)


@per_device("experimental.attn_matmul_from_cache")
def attn_matmul_from_cache(
    input_tensor_a: Tensor, input_tensor_b: Tensor, *, num_tokens: int, transpose_hw: bool
) -> Tensor:
    """Do ``attn_matmul`` with the first tokens, whole tiles of them, of a cache [B, 1, S, E]."""
    read = input_tensor_b[:, :, : -(-num_tokens // TILE) * TILE]
    return attn_matmul(input_tensor_a, read.mT if transpose_hw else read)
