"""Complex tensors against torch's complex numbers: what is made of them, and the gradients of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect


def _put(t: Env, z: Tensor) -> Any:
    z = z.detach()
    return t.ttnn.complex_tensor(t.put(z.real.contiguous()), t.put(z.imag.contiguous()))


def _drawn(t: Env) -> Tensor:
    return torch.complex(t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)).requires_grad_()


def _check(t: Env, found: Any, true: Tensor) -> None:
    true = true.detach().resolve_conj()
    if not true.is_complex():
        t.check(found, true.float(), ulps=2)
        return
    t.check(found.real, true.real.contiguous(), ulps=2)
    t.check(found.imag, true.imag.contiguous(), ulps=2)


def of_one(t: Env) -> None:
    """Every function, and its gradient by torch's convention; real and imaginary numbers are told."""
    z = _drawn(t)
    for name, function in (
        ("real", torch.real),
        ("imag", torch.imag),
        ("angle", torch.angle),
        ("abs", torch.abs),
        ("conj", torch.conj),
        ("polar", lambda z: torch.polar(z.real, z.imag)),
        ("reciprocal", torch.reciprocal),
    ):
        operation, backward = getattr(t.ttnn, name), getattr(t.ttnn, f"{name}_bw")
        memory = t.ttnn.DRAM_MEMORY_CONFIG
        result = function(z)
        _check(t, operation(_put(t, z), memory_config=memory), result)
        grad = _drawn(t).detach() if result.is_complex() else t.rand(1, 1, 32, 64)
        put = _put(t, grad) if result.is_complex() else t.put(grad)
        (found,) = backward(put, _put(t, z), memory_config=memory)
        _check(t, found, torch.autograd.grad(result, z, grad)[0])
    edges = torch.complex(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[3.0, 0.0, 1.0]]))
    _check(t, t.ttnn.is_real(_put(t, edges), memory_config=memory), torch.tensor([[0.0, 1.0, 0.0]]))
    _check(t, t.ttnn.is_imag(_put(t, edges), memory_config=memory), torch.tensor([[1.0, 0.0, 0.0]]))


def gradients_of_two(t: Env) -> None:
    a, b, grad = _drawn(t), _drawn(t), _drawn(t).detach()
    for name, function, more in (
        ("add", lambda: a + 0.5 * b, (0.5,)),
        ("sub", lambda: a - 0.5 * b, (0.5,)),
        ("mul", lambda: a * b, ()),
        ("div", lambda: a / b, ()),
    ):
        backward, memory = getattr(t.ttnn, f"{name}_bw"), t.ttnn.DRAM_MEMORY_CONFIG
        found = backward(_put(t, grad), _put(t, a), _put(t, b), *more, memory_config=memory)
        for one, true in zip(found, torch.autograd.grad(function(), (a, b), grad), strict=True):
            _check(t, one, true)


CASES = collect(globals())
