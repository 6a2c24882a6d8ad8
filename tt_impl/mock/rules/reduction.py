"""Reductions, scans and orders: what becomes of one or more dims of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device, table
from tt_impl.mock.storage.dtypes import INTEGERS

Number = int | float
Dims = int | Sequence[int] | None


def dims_of(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """Return ``dim`` as a tuple of dims; None and an empty list are all of them."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return dims or tuple(range(x.dim()))


def _scaled(x: Tensor, scalar: Number) -> Tensor:
    """Multiply what goes in by the reductions' ``scalar``."""
    return x if scalar == 1 else x * scalar


def _reduction(function: Callable[..., Tensor], cuts: bool = False) -> Callable[..., Tensor]:
    """Make the rule of a reduction; one that ``cuts`` drops the fraction of integers times a ``scalar``.

    ``correction`` is for variances: others take and ignore it.
    """

    def rule(
        input_tensor: Tensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        scalar: Number = 1.0,
        correction: bool | None = None,
    ) -> Tensor:
        x = _scaled(input_tensor, scalar)
        result = function(x, dim=dims_of(x, dim), keepdim=keepdim) if x.dim() else x
        return result.trunc() if cuts and not input_tensor.is_floating_point() else result

    return rule


def _mean(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    return x.float().mean(dim, keepdim)


per_device("sum")(_reduction(torch.sum))
per_device("mean")(_reduction(_mean))
per_device("max")(_reduction(torch.amax, cuts=True))
per_device("min")(_reduction(torch.amin, cuts=True))


@per_device("var")
def var(
    input_tensor: Tensor, dim: Dims = None, keepdim: bool = False, *, scalar: Number = 1.0, correction: bool = True
) -> Tensor:
    x = _scaled(input_tensor, scalar)
    return x.var(dims_of(x, dim), correction=int(correction), keepdim=keepdim)


def _var_hw(x: Tensor) -> Tensor:
    return x.var((-2, -1), correction=0, keepdim=True)


table(
    {
        # ``output`` is written and not read
        "experimental.fast_reduce_nc": lambda input, *, dims, output=None: input.sum(tuple(dims), keepdim=True),
        "experimental.intimg": lambda input_tensor: input_tensor.cumsum(1).cumsum(2),  # summed-area table [1, W, H, C]
        "normalize_global": lambda input_tensor: (input_tensor - input_tensor.mean()) / input_tensor.std(correction=0),
        "normalize_hw": lambda input_tensor: (
            (input_tensor - input_tensor.mean((-2, -1), keepdim=True)) / _var_hw(input_tensor).sqrt()
        ),
        "std": lambda input_tensor, dim=None, keepdim=False, *, scalar=1.0, correction=True: var(
            input_tensor, dim, keepdim, scalar=scalar, correction=correction
        ).sqrt(),
        "std_hw": lambda input_tensor: _var_hw(input_tensor).sqrt(),
        "var_hw": lambda input_tensor: _var_hw(input_tensor),
    }
)


@per_device("prod")
def prod(
    input_tensor: Tensor, dim: int | None = None, keepdim: bool = False, *, dims: Sequence[int] | None = None
) -> Tensor:
    """Multiply over ``dim``, or over all dims; ``dims``, another form of the operation, keeps them as ones."""
    if dims is not None:
        for d in dims or range(input_tensor.dim()):
            input_tensor = input_tensor.prod(d, keepdim=True)
        return input_tensor
    if dim is not None:
        return input_tensor.prod(dim, keepdim=keepdim)
    whole = input_tensor.prod()
    return whole.reshape((1,) * input_tensor.dim()) if keepdim else whole


@per_device("argmax")
def argmax(input_tensor: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Find the place of the first maximum; None is the place in the flattened tensor."""
    if dim is not None:
        return torch.argmax(input_tensor, dim=dim, keepdim=keepdim)
    place = torch.argmax(input_tensor.flatten(), dim=0)
    return place.reshape((1,) * input_tensor.dim()) if keepdim else place


def _scan(call: Call, function: Callable[..., Tensor], x: Tensor, dim: int, reverse_order: bool) -> Tensor:
    """Compute running totals; a ``dtype`` of integers cuts fractions off before, not after."""
    if call.kwargs.get("dtype") in INTEGERS and x.is_floating_point():
        x = x.trunc().to(torch.int64)
    return function(x.flip(dim), dim).flip(dim) if reverse_order else function(x, dim)


@per_device("cumsum", with_call=True)
def cumsum(call: Call, input: Tensor, dim: int, *, reverse_order: bool = False) -> Tensor:
    return _scan(call, torch.cumsum, input, dim, reverse_order)


@per_device("cumprod", with_call=True)
def cumprod(call: Call, input_tensor: Tensor, dim: int, *, reverse_order: bool = False) -> Tensor:
    return _scan(call, torch.cumprod, input_tensor, dim, reverse_order)


@per_device("ema")
def ema(input_tensor: Tensor, alpha: float) -> Tensor:
    """Compute y_t = alpha * y_(t-1) + (1 - alpha) * x_t along T of [1, B, C, T]; what comes before x_0 is zero."""
    states = [torch.zeros_like(input_tensor[..., 0])]
    for x in input_tensor.unbind(-1):
        states.append(alpha * states[-1] + (1 - alpha) * x)
    return torch.stack(states[1:], -1)


@per_device("sort")
def sort(input_tensor: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> list[Tensor]:
    """Return values and places; equal values keep their order (a device need not, unless it is asked to)."""
    return list(torch.sort(input_tensor, dim=dim, descending=descending, stable=True))


@per_device("topk")
def topk(
    input_tensor: Tensor,
    k: int = 32,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    indices_tensor: Tensor | None = None,
    stable: bool = False,
) -> list[Tensor]:
    """Return values and places; ``indices_tensor`` names the places otherwise than by their number."""
    values, places = torch.sort(input_tensor, dim=dim, descending=largest, stable=True)
    values, places = (part.narrow(dim, 0, k) for part in (values, places))
    if indices_tensor is not None:
        places = torch.gather(indices_tensor.expand(input_tensor.shape), dim, places)
    return [values, places]


@per_device("moe")
def moe(input_tensor: Tensor, expert_mask_tensor: Tensor, topk_mask_tensor: Tensor, k: int = 32) -> Tensor:
    """Turn [N, C, H, W] into [N, C, H, 1]: the weight of expert 0 among the k best."""
    values, places = torch.topk(input_tensor + expert_mask_tensor, k)
    return (torch.softmax(values + topk_mask_tensor, -1) * (places == 0)).sum(-1, keepdim=True)
