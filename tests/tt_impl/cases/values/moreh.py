"""Operations of training against torch's own, with the shapes and the tensors to write into that ttnn has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect


def _grads(result: Tensor, grad: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(result, inputs, grad.reshape(result.shape)))


def _leaves(t: Env, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [t.rand(*shape).requires_grad_() for shape in shapes]


def _put(t: Env, x: Tensor) -> Any:
    return t.put(x.detach())


def _close(t: Env, tensor: Any, true: Tensor) -> None:
    """Compare what was computed of results in bfloat16."""
    torch.testing.assert_close(t.shadow.values(tensor)[0], true, rtol=0.02, atol=0.02)


def reductions(t: Env) -> None:
    """Over one dim, several and all; of a device each its own columns."""
    moreh = t.ttnn.operations.moreh
    (x,) = _leaves(t, (2, 3, 64, 128))
    for dim, keepdim in ((2, True), ([1, 3], False), (None, False)):
        dims = tuple(range(4)) if dim is None else dim
        for name, function in (("sum", torch.sum), ("mean", torch.mean)):
            out = getattr(moreh, name)(_put(t, x), dim=dim, keepdim=keepdim)
            wanted = function(x, dims, keepdim=keepdim)
            t.check(out, wanted.detach().reshape(tuple(out.shape)), ulps=4)
            grad = t.rand(*wanted.shape) if wanted.dim() else t.rand(1)
            shaped = t.put(grad.reshape(tuple(out.shape)))
            into = t.empty(*x.shape)
            found = getattr(moreh, f"{name}_backward")(shaped, dim=dim, keepdim=keepdim, input_grad=into)
            t.check(found, _grads(wanted, grad, x)[0])
    norm = moreh.norm(_put(t, x), 3.0, dim=1, keepdim=True)
    wanted = torch.linalg.vector_norm(x, 3.0, 1, keepdim=True)
    t.check(norm, wanted.detach())
    grad = t.rand(*wanted.shape)
    back = moreh.norm_backward(_put(t, x), norm, t.put(grad), 3.0, dim=1, keepdim=True)
    t.check(back, _grads(wanted, grad, x)[0])
    t.check(moreh.cumsum(_put(t, x), 1), x.detach().cumsum(1))
    t.check(moreh.cumsum_backward(t.put(x.detach()), 1), x.detach().flip(1).cumsum(1).flip(1))
    t.check(t.ttnn.moreh_abs_pow(_put(t, x), 2.0), x.detach() ** 2)


def products(t: Env) -> None:
    """With their gradients, of which those are given that the call asks for."""
    moreh = t.ttnn.operations.moreh
    a, b, bias = _leaves(t, (2, 64, 96), (2, 96, 32), (1, 32))
    grad = t.rand(2, 64, 32)
    of_a, of_b = _grads(a @ b, grad, a, b)
    t.check(moreh.bmm(_put(t, a), _put(t, b)), (a @ b).detach(), ulps=2)
    t.check(moreh.matmul(_put(t, a), t.put(b.detach().mT.contiguous()), transpose_other=True), (a @ b).detach(), ulps=2)
    first, second = moreh.bmm_backward(
        t.put(grad), _put(t, a), _put(t, b), input_grad=t.empty(*a.shape), mat2_grad=t.empty(*b.shape)
    )
    t.check(first, of_a, ulps=2)
    t.check(second, of_b, ulps=2)
    into = t.empty(*b.shape)
    found = moreh.matmul_backward(
        t.put(grad), _put(t, a), _put(t, b), are_required_outputs=(False, True), input_b_grad=into
    )
    assert found[0] is None
    t.check(into, of_b, ulps=2)
    weight = t.rand(32, 96).requires_grad_()
    result = F.linear(a, weight, bias)
    t.check(moreh.linear(_put(t, a), _put(t, weight), bias=_put(t, bias)), result.detach(), ulps=2)
    wanted = _grads(result, grad, a, weight, bias)
    into = [t.empty(*x.shape) for x in (a, weight, bias)]
    names = ("input_grad", "weight_grad", "bias_grad")
    moreh.linear_backward(
        t.put(grad), _put(t, a), _put(t, weight), bias=_put(t, bias), **dict(zip(names, into, strict=True))
    )
    for found, true in zip(into, wanted, strict=True):
        t.check(found, true, ulps=2)
    x, y = t.rand(1, 1, 1, 64), t.rand(1, 1, 1, 64)
    t.check(moreh.dot(t.put(x), t.put(y)), (x * y).sum().reshape(1, 1, 1, 1), ulps=4)
    into = t.empty(1, 1, 1, 64)
    moreh.dot_backward(t.put(torch.full((1, 1, 1, 1), 2.0)), t.put(x), t.put(y), other_grad=into)
    t.check(into, 2 * x)


def norms(t: Env) -> None:
    """Layer and group norms with their statistics, whose gradients read these."""
    moreh = t.ttnn.operations.moreh
    x, gamma, beta = _leaves(t, (2, 4, 32, 64), (32, 64), (32, 64))
    mean, rstd = t.empty(2, 4), t.empty(2, 4)
    result = F.layer_norm(x, (32, 64), gamma, beta, 1e-5)
    out = moreh.layer_norm(_put(t, x), 2, 1e-5, _put(t, gamma), _put(t, beta), mean=mean, rstd=rstd)[0]
    t.check(out, result.detach(), ulps=2)
    variance, center = torch.var_mean(x.detach(), (2, 3), correction=0)
    t.check(mean, center, ulps=2)
    t.check(rstd, torch.rsqrt(variance + 1e-5))
    grad = t.rand(*x.shape)
    into = [t.empty(*v.shape) for v in (x, gamma, beta)]
    names = ("input_grad", "gamma_grad", "beta_grad")
    moreh.layer_norm_backward(
        t.put(grad), _put(t, x), mean, rstd, 2, gamma=_put(t, gamma), **dict(zip(names, into, strict=True))
    )
    for found, true in zip(into, _grads(result, grad, x, gamma, beta), strict=True):
        _close(t, found, true)
    weight, shift = _leaves(t, (4,), (4,))
    result = F.group_norm(x, 2, weight, shift, 1e-5)
    row = (1, 1, 1, 4)
    flags = (True, True, True)
    out, mean, rstd = moreh.group_norm(
        _put(t, x), 2, 1e-5, t.put(weight.detach().reshape(row)), t.put(shift.detach().reshape(row)),
        are_required_outputs=flags,
    )  # fmt: skip
    t.check(out, result.detach(), ulps=2)
    assert tuple(mean.shape) == (1, 1, 2, 2)
    found = moreh.group_norm_backward(
        t.put(grad), _put(t, x), mean, rstd, 2, are_required_outputs=flags, gamma=t.put(weight.detach().reshape(row))
    )
    for one, true in zip(found, _grads(result, grad, x, weight, shift), strict=True):
        _close(t, one, true.reshape(tuple(one.shape)))


def softmaxes_and_losses(t: Env) -> None:
    """The loss of a mean writes its divisor, which the gradient reads; a target that is ignored counts nothing."""
    ttnn, moreh = t.ttnn, t.ttnn.operations.moreh
    (x,) = _leaves(t, (4, 8, 64))
    grad = t.rand(4, 8, 64)
    for name, function in (("softmax", torch.softmax), ("softmin", F.softmin), ("logsoftmax", torch.log_softmax)):
        result = function(x, 2)
        out = getattr(moreh, name)(_put(t, x), 2)
        t.check(out, result.detach(), ulps=2)
        y = t.shadow.values(out)[0]
        back = getattr(moreh, f"{name}_backward")(out, t.put(grad), 2)
        true = grad - y.exp() * grad.sum(2, True) if name == "logsoftmax" else y * (grad - (grad * y).sum(2, True))
        t.check(back, -true if name == "softmin" else true, ulps=2)
    logs = torch.log_softmax(t.rand(2, 10, 64), 1).bfloat16().float().requires_grad_()
    target = torch.randint(0, 10, (2, 64), generator=t.random)
    target[0, 3] = 7
    weight = t.rand(10).abs()
    places = t.put(target.to(torch.int32), dtype="int32")
    into, divisor = t.empty(2, 10, 64), t.empty(1)
    result = F.nll_loss(logs, target, weight, reduction="mean", ignore_index=7)
    out = moreh.nll_loss(
        _put(t, logs), places, "mean", weight_tensor=t.put(weight), divisor_tensor=divisor, ignore_index=7
    )
    t.check(out, result.detach().reshape(tuple(out.shape)), ulps=2)
    one = t.put(torch.ones(1))
    moreh.nll_loss_backward(
        places, one, True, weight_tensor=t.put(weight), input_grad_tensor=into, divisor_tensor=divisor, ignore_index=7
    )
    t.check(into, _grads(result, torch.ones(()), logs)[0], ulps=2)
    each = t.rand(2, 64)
    moreh.nll_loss_unreduced_backward(places, t.put(each), input_grad_tensor=into)
    t.check(into, _grads(F.nll_loss(logs, target, reduction="none"), each, logs)[0])
    assert ttnn.to_torch(ttnn.get_device_tensors(into)[0])[0, 7, 3] == -each[0, 3]


def optimizers(t: Env) -> None:
    """One step of each is that of torch's own; gradients are clipped in place."""
    moreh = t.ttnn.operations.moreh
    start, grad = t.rand(32, 64), t.rand(32, 64)
    for name, kind, options in (
        ("adam", torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.1}),
    ):
        param = torch.nn.Parameter(start.clone())
        param.grad = grad.clone()
        optimizer = kind([param], lr=0.1, **options)
        optimizer.step()
        zeros = [t.put(torch.zeros(32, 64)) for _ in range(2)]
        largest = {"max_exp_avg_sq_in": t.put(torch.zeros(32, 64))} if "amsgrad" in options else {}
        out = getattr(moreh, name)(t.put(start), t.put(grad), *zeros, lr=0.1, step=1, **options, **largest)
        t.check(out[0], param.detach())
        t.check(out[1], optimizer.state[param]["exp_avg"])
        t.check(out[2], optimizer.state[param]["exp_avg_sq"])
    param = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)
    momentum = None
    now = t.put(start)
    for _ in range(2):
        param.grad = grad.clone()
        optimizer.step()
        now, momentum = moreh.sgd(
            now, t.put(grad), momentum, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True,
            momentum_initialized=momentum is not None,
        )  # fmt: skip
    _close(t, now, param.detach())
    grads = [t.rand(1, 1, 32, 64), t.rand(1, 2, 64, 32)]
    tensors = [t.put(g) for g in grads]
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    total = torch.nn.utils.clip_grad_norm_(params, 1.0)
    found = moreh.clip_grad_norm(tensors, 1.0)
    t.check(found, total.reshape(tuple(found.shape)))
    for tensor, p in zip(tensors, params, strict=True):
        t.check(tensor, p.grad)


def places_in_tiles(t: Env) -> None:
    """In tiles the dims of places stay, of one place but for the last; patches are folded to an image."""
    moreh = t.ttnn.operations.moreh
    x = t.rand(4, 6, 32, 64)
    rows, columns = torch.tensor([3, 0, 2]), torch.tensor([5, 1, 1])
    out = moreh.getitem(t.put(x), [t.integers(rows), t.integers(columns)], [0, 1])
    t.check(out, x[rows, columns].reshape(tuple(out.shape)))
    patches = t.rand(2, 3 * 4, 16)
    folded = moreh.fold(t.put(patches, layout="ROW_MAJOR"), None, [8, 8], [2, 2], [1, 1], [0, 0], [2, 2])
    t.check(folded, F.fold(patches, (8, 8), (2, 2), 1, 0, 2))


CASES = collect(globals())
