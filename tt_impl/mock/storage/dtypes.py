"""Numbers as the dtypes of ttnn hold them: rounding, integers of fixed width, typecasts.

Floating point of all device formats is kept as bfloat16 or float32: every value of bfp8_b and bfp4_b is a bfloat16
(7 or 3 bits of mantissa, the same exponents). Integers are kept as int64, within the range of their dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import ttnn

from tt_impl.mock.storage.constants import single
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.trace.intercept import uncaught

RANGES = {
    ttnn.int8: (-(2**7), 2**7 - 1),
    ttnn.uint8: (0, 2**8 - 1),
    ttnn.uint16: (0, 2**16 - 1),
    ttnn.uint32: (0, 2**32 - 1),
    ttnn.int32: (-(2**31), 2**31 - 1),
}
INTEGERS = tuple(RANGES)
BLOCK_FLOATS = (ttnn.bfloat8_b, ttnn.bfloat4_b)
BLOCK = 16
"""So many numbers of a row share an exponent in a block float."""


def round_to(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return ``value`` as a tensor of ``dtype`` stores the result of an operation.

    Block floats of infinities or NaN, whose packing is not documented, are what ttnn's host conversion makes of them.
    """
    if (one := single(value)) is not None:
        return round_to(one.repeat(1, BLOCK), dtype)[0, 0].expand(value.shape)
    if dtype == ttnn.bfloat16:
        return value.to(torch.bfloat16)
    if dtype == ttnn.float32:
        return value.float()
    if dtype in RANGES:
        return _whole(value, dtype)
    if dtype in BLOCK_FLOATS and value.dim() and value.numel() and bool(torch.isfinite(value).all()):
        return _packed(value.float(), dtype)
    if dtype in BLOCK_FLOATS:
        with uncaught():
            host = ttnn.from_torch(value.float(), dtype=dtype, layout=ttnn.TILE_LAYOUT)
            return ttnn.to_torch(host).to(torch.bfloat16)
    raise ShadowError(f"dtype {dtype.name} has no shadow.")


def _packed(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Pack ``value`` [..., W] as a device does for block floats: 16 numbers of a row share an exponent.

    The packer keeps 7 bits of each number, rounded to the nearest, ties away from zero, and never more than all of
    them set; for bfloat4_b it then drops the lower 4. ttnn's host conversion rounds ties to even, and to 3 bits at once
    (tt-metal issues 15889, 17237 and 57410), so what ``from_torch`` gives differs from what an operation writes.
    """
    width = value.shape[-1]
    blocks = F.pad(value, (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    shared = blocks.abs().amax(-1, keepdim=True).view(torch.int32) >> 23  # the exponent, 127 more than it is
    shared.clamp_(min=6)  # below 2**-120 a step is 0, and nothing stays
    step = (shared - 6 << 23).view(torch.float32)
    exact = blocks * (260 - shared << 23).view(torch.float32)  # in steps, by a power of two
    steps = exact.abs_().floor()
    steps.add_(exact.sub_(steps) >= 0.5).clamp_(max=2**7 - 1)
    if dtype == ttnn.bfloat4_b:
        steps.div_(2**4).floor_().mul_(2**4)
    packed = steps.mul_(step).copysign_(blocks)
    return packed.flatten(-2)[..., :width].to(torch.bfloat16)


def _whole(value: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return integers as int64. Sums and products of 32 bits wrap around; of what else does not fit nobody knows."""
    low, high = RANGES[dtype]
    whole = value.to(torch.int64)
    if value.is_floating_point() and not torch.equal(whole.to(value.dtype), value):
        raise ShadowError(f"values with a fraction do not fit {dtype.name}; say with ttnn.typecast how to round them.")
    if whole.numel() == 0 or (int(whole.min()) >= low and int(whole.max()) <= high):
        return whole
    if value.is_floating_point() or dtype not in (ttnn.int32, ttnn.uint32):
        raise ShadowError(f"values from {whole.min()} to {whole.max()} do not fit {dtype.name}; clamp them before.")
    return _wrapped(whole, dtype)


def _wrapped(whole: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    low, high = RANGES[dtype]
    return torch.remainder(whole - low, high - low + 1) + low


def typecast(value: torch.Tensor, source: ttnn.DataType, target: ttnn.DataType) -> torch.Tensor:
    """Cast ``value`` of a device tensor of dtype ``source`` as ``ttnn.typecast`` to ``target`` does.

    Floats lose their fraction, but are rounded to the nearest for uint16 (unless they are block floats); what does
    not fit saturates in 16 and 32 bits and wraps around in 8. Integers keep their 32 bits between int32 and uint32,
    saturate in uint16 and wrap around in 8 bits; int8 grows with its sign, but saturates in uint16.
    """
    if target not in RANGES:
        return value
    low, high = RANGES[target]
    if source in RANGES:
        return _wrapped(value, target) if target != ttnn.uint16 else value.clamp(low, high)
    exact = value.double()
    to_nearest = target == ttnn.uint16 and source not in BLOCK_FLOATS
    exact = torch.floor(exact + 0.5) if to_nearest else torch.trunc(exact)
    if target in (ttnn.int8, ttnn.uint8):
        if not bool((exact.abs() < 2**31).all()):
            raise ShadowError(f"what ttnn.typecast makes of values past 2**31 in {target.name} is not documented.")
        return _wrapped(exact.to(torch.int64), target)
    if bool(exact.isnan().any()):
        raise ShadowError(f"what ttnn.typecast makes of NaN in {target.name} is not documented.")
    if target == ttnn.int32:  # what does not fit gives the lowest value, whatever its sign
        exact = torch.where(exact < 2**31, exact, float(low))
    return exact.clamp(low, high).to(torch.int64)
