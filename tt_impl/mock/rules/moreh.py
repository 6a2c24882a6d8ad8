"""Operations of training that ttnn has from Moreh: sums and norms, products, losses, optimizers, and their gradients.

Results have the shapes that ttnn gives them: it keeps or leaves out dims of size 1. Gradients are torch's, but for
those that are given what the forward operation has computed.

Legend: N samples, C channels or classes, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.backward import gradients
from tt_impl.mock.rules.reduction import Dims, dims_of
from tt_impl.mock.rules.registry import REQUIRED, Call, across, columns, per_device
from tt_impl.mock.storage.values import Shards


def _shaped(call: Call, values: Sequence[Tensor | None]) -> list[Tensor]:
    """Return those of ``values`` that are there, in the shapes of the outputs."""
    there = [value for value in values if value is not None]
    return [value.reshape(tuple(out.shape)) for value, out in zip(there, call.outputs, strict=True)]


def _chosen(call: Call, names: Sequence[str], values: Sequence[Tensor], required: Sequence[bool]) -> list[Tensor]:
    """Return the values that are required, or for which the call names a tensor to write into."""
    wanted = [need or call.kwargs.get(name) is not None for name, need in zip(names, required, strict=True)]
    return _shaped(call, [value if want else None for value, want in zip(values, wanted, strict=True)])


def _with_every_dim(reduced: Tensor, shape: Sequence[int], dim: Dims) -> Tensor:
    """Return the result of a reduction of ``shape`` with every dim, of size 1 where it was reduced."""
    whole = torch.empty(shape, device="meta")
    return reduced.reshape(whole.sum(dims_of(whole, dim), keepdim=True).shape)


_REDUCES: dict[str, Callable[..., Tensor]] = {"sum": torch.sum, "mean": torch.mean}


def _reduction(name: str, function: Callable[..., Tensor]) -> None:
    @per_device(f"moreh_{name}", with_call=True)
    def forward(call: Call, input: Tensor, dim: Dims = None, *, keepdim: bool = False) -> list[Tensor]:
        return _shaped(call, [function(input, dims_of(input, dim))])

    @per_device(f"moreh_{name}_backward", with_call=True)
    def backward(
        call: Call, output_grad: Tensor, *, input: Tensor | None = None, dim: Dims = None, keepdim: bool = False,
        input_grad_shape: Any = None,
    ) -> list[Tensor]:  # fmt: skip
        shape = tuple(call.outputs[0].shape)
        operand = torch.zeros(shape)
        grad = _with_every_dim(output_grad, shape, dim)
        return gradients(lambda x: function(x, dims_of(x, dim), keepdim=True), grad, [operand])

    forward.__qualname__ = f"moreh_{name}"
    backward.__qualname__ = f"moreh_{name}_backward"


for _name, _function in _REDUCES.items():
    _reduction(_name, _function)


@per_device("moreh_norm", with_call=True)
def moreh_norm(call: Call, input: Tensor, p: float, *, dim: Dims = None, keepdim: bool = False) -> list[Tensor]:
    return _shaped(call, [torch.linalg.vector_norm(input, p, dims_of(input, dim))])


@per_device("moreh_norm_backward")
def moreh_norm_backward(
    input: Tensor, output: Tensor, output_grad: Tensor, p: float, *, dim: Dims = None, keepdim: bool = False
) -> list[Tensor]:
    grad = _with_every_dim(output_grad, input.shape, dim)
    return gradients(lambda x: torch.linalg.vector_norm(x, p, dims_of(x, dim), keepdim=True), grad, [input])


@per_device("moreh_abs_pow")
def moreh_abs_pow(input: Tensor, p: float) -> Tensor:
    return input.abs() ** p


@per_device("moreh_cumsum")
def moreh_cumsum(input: Tensor, dim: int) -> Tensor:
    return input.cumsum(dim)


@per_device("moreh_cumsum_backward")
def moreh_cumsum_backward(output_grad: Tensor, dim: int) -> Tensor:
    return output_grad.flip(dim).cumsum(dim).flip(dim)


@per_device("moreh_dot", with_call=True)
def moreh_dot(call: Call, input_tensor_a: Tensor, input_tensor_b: Tensor) -> list[Tensor]:
    return _shaped(call, [input_tensor_a.reshape(-1) @ input_tensor_b.reshape(-1)])


@per_device("moreh_dot_backward", with_call=True)
def moreh_dot_backward(call: Call, output_grad: Tensor, input: Tensor, other: Tensor) -> list[Tensor]:
    values = output_grad.reshape(()) * other, output_grad.reshape(()) * input
    return _chosen(call, ("input_grad", "other_grad"), values, (False, False))


@per_device("moreh_bmm")
def moreh_bmm(input: Tensor, mat2: Tensor) -> Tensor:
    return input @ mat2


@per_device("moreh_matmul", with_call=True)
def moreh_matmul(
    call: Call,
    input: Tensor,
    other: Tensor,
    *,
    transpose_input: bool = False,
    transpose_other: bool = False,
    bias: Tensor | None = None,
) -> list[Tensor]:
    a = input.mT if transpose_input else input
    b = other.mT if transpose_other else other
    return _shaped(call, [a @ b if bias is None else a @ b + bias])


@per_device("moreh_linear", with_call=True)
def moreh_linear(call: Call, input: Tensor, weight: Tensor, *, bias: Tensor | None = None) -> list[Tensor]:
    product = input @ weight.mT
    return _shaped(call, [product if bias is None else product + bias])


@per_device("moreh_bmm_backward", with_call=True)
def moreh_bmm_backward(
    call: Call, output_grad: Tensor, input: Tensor, mat2: Tensor, *, are_required_outputs: Sequence[bool] = (True, True)
) -> list[Tensor]:
    values = gradients(torch.matmul, output_grad, [input, mat2])
    return _chosen(call, ("input_grad", "mat2_grad"), values, are_required_outputs)


@per_device("moreh_matmul_backward", with_call=True)
def moreh_matmul_backward(
    call: Call, output_grad: Tensor, input_a: Tensor, input_b: Tensor, *,
    are_required_outputs: Sequence[bool] = (True, True),
) -> list[Tensor]:  # fmt: skip
    values = gradients(torch.matmul, output_grad, [input_a, input_b])
    return _chosen(call, ("input_a_grad", "input_b_grad"), values, are_required_outputs)


@per_device("moreh_linear_backward", with_call=True)
def moreh_linear_backward(
    call: Call,
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    *,
    are_required_outputs: Sequence[bool] = (True, True, True),
    bias: Tensor | None = None,
) -> list[Tensor]:
    operands = [input, weight, torch.zeros(weight.shape[-2]) if bias is None else bias]
    values = gradients(lambda x, w, b: x @ w.mT + b, output_grad, operands)
    return _chosen(call, ("input_grad", "weight_grad", "bias_grad"), values, are_required_outputs)


@per_device("moreh_fold", with_call=True)
def moreh_fold(
    call: Call,
    input: Tensor,
    output: Tensor | None = None,
    output_size: Sequence[int] = REQUIRED,
    kernel_size: Sequence[int] = REQUIRED,
    dilation: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    stride: Sequence[int] = (1, 1),
    memory_config: Any = None,
) -> list[Tensor]:
    sizes = (tuple(value) for value in (output_size, kernel_size, dilation, padding, stride))
    return _shaped(call, [F.fold(input, *sizes)])


@per_device("moreh_layer_norm", with_call=True)
def moreh_layer_norm(
    call: Call, input: Tensor, normalized_dims: int, eps: float = 1e-5, gamma: Tensor | None = None,
    beta: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    shape = input.shape[-normalized_dims:]
    weights = (None if w is None else w.reshape(shape) for w in (gamma, beta))
    variance, mean = torch.var_mean(input.flatten(-normalized_dims), -1, correction=0)
    values = [F.layer_norm(input, shape, *weights, eps), mean, torch.rsqrt(variance + eps)]
    return _chosen(call, ("output", "mean", "rstd"), values, (True, False, False))


@per_device("moreh_group_norm", with_call=True)
def moreh_group_norm(
    call: Call, input: Tensor, num_groups: int, eps: float = 1e-5, gamma: Tensor | None = None,
    beta: Tensor | None = None, *, are_required_outputs: Sequence[bool] = (True, False, False),
) -> list[Tensor]:  # fmt: skip
    weights = (None if w is None else w.reshape(-1) for w in (gamma, beta))
    variance, mean = torch.var_mean(input.reshape(len(input), num_groups, -1), -1, correction=0)
    values = [F.group_norm(input, num_groups, *weights, eps), mean, torch.rsqrt(variance + eps)]
    return _chosen(call, ("output", "mean", "rstd"), values, (True, *are_required_outputs[1:]))


_OF_NORM = ("input_grad", "gamma_grad", "beta_grad")


@per_device("moreh_layer_norm_backward", with_call=True)
def moreh_layer_norm_backward(
    call: Call, output_grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, normalized_dims: int, *,
    gamma: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    shape = input.shape[-normalized_dims:]
    statistics = (value.reshape(*input.shape[:-normalized_dims], *(1,) * normalized_dims) for value in (mean, rstd))
    weight = torch.ones(shape) if gamma is None else gamma.reshape(shape)
    values = torch.ops.aten.native_layer_norm_backward(
        output_grad, input, list(shape), *statistics, weight, torch.zeros(shape), [True] * 3
    )
    return _chosen(call, _OF_NORM, values, (False, False, False))


@per_device("moreh_group_norm_backward", with_call=True)
def moreh_group_norm_backward(
    call: Call, output_grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, num_groups: int, *,
    are_required_outputs: Sequence[bool] = (True, False, False), gamma: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    samples, channels = input.shape[:2]
    statistics = (value.reshape(samples, num_groups) for value in (mean, rstd))
    weight = torch.ones(channels) if gamma is None else gamma.reshape(-1)
    values = torch.ops.aten.native_group_norm_backward(
        output_grad.contiguous(), input.contiguous(), *statistics, weight, samples, channels,
        math.prod(input.shape[2:]), num_groups, [True] * 3,
    )  # fmt: skip
    return _chosen(call, _OF_NORM, values, are_required_outputs)


_SOFTMAX: dict[str, Callable[..., Tensor]] = {
    "SOFTMAX": torch.softmax,
    "SOFTMIN": F.softmin,
    "LOGSOFTMAX": torch.log_softmax,
}


def _of_softmax(y: Tensor, grad: Tensor, dim: int, kind: str) -> Tensor:
    """Return the gradient of the input of a softmax whose output is ``y``."""
    if kind == "LOGSOFTMAX":
        return torch.ops.aten._log_softmax_backward_data(grad, y, dim, y.dtype)
    of_input = torch.ops.aten._softmax_backward_data(grad, y, dim, y.dtype)
    return -of_input if kind == "SOFTMIN" else of_input


def _softmax(kind: str) -> None:
    name = f"moreh_{kind.lower()}"

    @per_device(name)
    def forward(input_tensor: Tensor, dim: int, *, op: Any = None) -> Tensor:
        return _SOFTMAX[kind if op is None else op.name](input_tensor, dim)

    @per_device(f"{name}_backward")
    def backward(output_tensor: Tensor, output_grad_tensor: Tensor, dim: int, *, op: Any = None) -> Tensor:
        return _of_softmax(output_tensor, output_grad_tensor, dim, kind if op is None else op.name)

    forward.__qualname__ = name
    backward.__qualname__ = f"{name}_backward"


for _kind in _SOFTMAX:
    _softmax(_kind)


def _weights(target: Tensor, weight: Tensor | None, classes: int, ignored: int) -> tuple[Tensor, Tensor]:
    """Return the class of each target, 0 where it is ignored or none, and its weight, 0 there."""
    there = (target != ignored) & (target >= 0) & (target < classes)
    index = torch.where(there, target, 0).long()
    each = torch.ones(classes) if weight is None else weight.reshape(-1)
    return index, torch.where(there, each[index], 0.0)


@across("moreh_nll_loss")
def moreh_nll_loss(
    call: Call,
    input_tensor: Shards,
    target_tensor: Shards,
    reduction: str,
    *,
    weight_tensor: Shards | None = None,
    ignore_index: int = -100,
) -> list[Tensor]:
    """Compute the loss of logarithms of probabilities [N, C, ..] and targets [N, ..].

    Of a mean, the sum of weights is written into ``divisor_tensor``.
    """

    def of_device(x: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        index, each = _weights(target, weight, x.shape[1], ignore_index)
        loss = -x.gather(1, index.unsqueeze(1)).squeeze(1) * each
        total = each.sum()
        if reduction != "none":
            loss = loss.sum() / total if reduction == "mean" else loss.sum()
        return _shaped(call, [loss])[0], total

    losses, totals = columns(call.each(of_device, input_tensor, target_tensor, weight_tensor))
    divisor = call.kwargs.get("divisor_tensor")
    if reduction == "mean" and divisor is not None:
        call.written("divisor_tensor", [total.reshape(tuple(divisor.shape)) for total in totals])
    return losses


@per_device("moreh_nll_loss_backward", with_call=True)
def moreh_nll_loss_backward(
    call: Call,
    target_tensor: Tensor,
    output_grad_tensor: Tensor,
    reduction_mean: bool,
    *,
    weight_tensor: Tensor | None = None,
    divisor_tensor: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    grad = output_grad_tensor.reshape(())
    if reduction_mean:
        if divisor_tensor is None:
            raise call.unsupported("the gradient of a mean without divisor_tensor")
        grad = grad / divisor_tensor.reshape(())
    return _of_targets(call, target_tensor, grad, weight_tensor, ignore_index)


@per_device("moreh_nll_loss_unreduced_backward", with_call=True)
def moreh_nll_loss_unreduced_backward(
    call: Call, target_tensor: Tensor, output_grad_tensor: Tensor, *, weight_tensor: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:  # fmt: skip
    return _of_targets(call, target_tensor, output_grad_tensor, weight_tensor, ignore_index)


def _of_targets(call: Call, target: Tensor, grad: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    shape = tuple(call.outputs[0].shape)
    index, each = _weights(target.reshape(shape[0], *shape[2:]), weight, shape[1], ignored)
    of_target = -each * (grad if grad.dim() == 0 else grad.reshape(each.shape))
    return torch.zeros(shape).scatter(1, index.unsqueeze(1), of_target.unsqueeze(1))


@per_device("moreh_sgd")
def moreh_sgd(
    param_in: Tensor, grad: Tensor, momentum_buffer_in: Tensor | None = None, param_out: Any = None,
    momentum_buffer_out: Any = None, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False, *, momentum_initialized: bool,
) -> list[Tensor]:  # fmt: skip
    step = grad + weight_decay * param_in
    if momentum == 0:
        return [param_in - lr * step]
    buffer = momentum * momentum_buffer_in + (1 - dampening) * step if momentum_initialized else step
    step = step + momentum * buffer if nesterov else buffer
    return [param_in - lr * step, buffer]


def _adam(decoupled: bool, decay: float) -> Callable[..., list[Tensor]]:
    def rule(
        param_in: Tensor, grad: Tensor, exp_avg_in: Tensor, exp_avg_sq_in: Tensor, lr: float = 1e-3,
        beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = decay, step: int = 0,
        amsgrad: bool = False, *, max_exp_avg_sq_in: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        if decoupled:
            param_in = param_in * (1 - lr * weight_decay)
        else:
            grad = grad + weight_decay * param_in
        average = beta1 * exp_avg_in + (1 - beta1) * grad
        square = beta2 * exp_avg_sq_in + (1 - beta2) * grad.square()
        largest = torch.maximum(max_exp_avg_sq_in, square) if amsgrad else square
        scale = (largest / (1 - beta2**step)).sqrt() + eps
        param = param_in - lr / (1 - beta1**step) * average / scale
        return [param, average, square, *([largest] if amsgrad else [])]

    return rule


for _name, _decoupled, _decay in (("moreh_adam", False, 0.0), ("moreh_adamw", True, 0.01)):
    _rule = _adam(_decoupled, _decay)
    _rule.__qualname__ = _name
    per_device(_name)(_rule)


@across("moreh_clip_grad_norm")
def moreh_clip_grad_norm(
    call: Call,
    inputs: Sequence[Shards],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> list[Tensor]:
    """Return the norm of all inputs, which are scaled in place so that it is at most ``max_norm``."""

    def of_device(*parts: Tensor) -> tuple[Tensor, ...]:
        total = torch.nn.utils.get_total_norm(parts, norm_type)
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        return total.reshape(tuple(call.outputs[0].shape)), *(part * scale for part in parts)

    totals, *scaled = columns(call.each(of_device, *inputs))
    for tensor, parts in zip(call.argument("inputs", 0), scaled, strict=True):
        call.store.write(tensor, parts, call.name)
    return totals
