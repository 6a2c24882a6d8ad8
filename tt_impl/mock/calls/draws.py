"""Random operations: numbers of the documented range and distribution, drawn by torch from the seed of the call.

The device draws others: what follows from a value here is emulated, and counted in ``Shadow.emulated``. The same seed
gives the same numbers in every call, and on all devices unless the operation is documented to give each its own.
Without a seed (0 or None) every call has new ones, which do not depend on anything but the calls before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import ttnn

from tt_impl.mock.calls.sampling import manual_seed, sampling
from tt_impl.mock.storage.dtypes import RANGES, typecast
from tt_impl.mock.storage.values import Golden, mesh_shape_of, ranks_of
from tt_impl.trace.intercept import Invocation, on_device

Draw = Callable[[Golden, Invocation], Any]


def _generator(shadow: Golden, call: Invocation, seed: int | None, device: int = 0) -> torch.Generator:
    """One per call and device; a call with a seed gets the same one again."""
    number = seed if seed else sum(shadow.emulated.values()) + 2**32
    return torch.Generator().manual_seed(number * 1024 + device)


def _uniform_numbers(shape: tuple, low: float, high: float, dtype: Any, generator: torch.Generator) -> torch.Tensor:
    """In [low, high), also once they are rounded to ``dtype``; integers are what a typecast makes of float32."""
    value = torch.rand(shape, generator=generator) * (high - low) + low
    if dtype in RANGES:
        return typecast(value, ttnn.float32, dtype)
    rounded = value.bfloat16().float() if dtype == ttnn.bfloat16 else value
    return torch.where(rounded >= high, low, rounded) if dtype in (ttnn.bfloat16, ttnn.float32) else value


def _rand(shadow: Golden, call: Invocation) -> Any:
    result = call.proceed()
    low, high = call.kwargs.get("low", 0.0), call.kwargs.get("high", 1.0)
    seed, shape = call.kwargs.get("seed"), tuple(result.shape)
    values = []
    for device in _distinct(result):
        if device < len(values):
            values.append(values[device])
        else:
            generator = _generator(shadow, call, seed, device)
            values.append(_uniform_numbers(shape, low, high, result.dtype, generator))
    return shadow.emulate(result, values, call.name)


def _distinct(tensor: ttnn.Tensor) -> list[int]:
    """For every device, the first device with its shard: devices along an axis that is replicated share numbers."""
    rows, columns = mesh_shape_of(tensor)
    placements = tensor.tensor_topology().placements()
    cut = [isinstance(placement, ttnn.PlacementShard) for placement in placements]
    if len(cut) == 1:
        cut = [cut[0], cut[0]]
    by_row, by_column = cut
    return [(r if by_row else 0) * columns + (c if by_column else 0) for r in range(rows) for c in range(columns)]


def _randn(shadow: Golden, call: Invocation) -> Any:
    result = call.proceed()
    if not on_device(result):
        return result
    drawn = torch.randn(tuple(result.shape), generator=_generator(shadow, call, call.kwargs.get("seed")))
    return shadow.emulate(result, [drawn] * len(ranks_of(result)), call.name)


def _uniform(shadow: Golden, call: Invocation) -> Any:
    """In place."""
    given = call.named("input", "from", "to", "seed")
    result = call.proceed()
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    generator = _generator(shadow, call, given.get("seed"))
    drawn = _uniform_numbers(tuple(result.shape), low, high, result.dtype, generator)
    return shadow.emulate(result, [drawn] * len(ranks_of(result)), call.name)


def _bernoulli(shadow: Golden, call: Invocation) -> Any:
    """1 with the probability that the input says, 0 otherwise."""
    given = call.named("input", "seed")
    chances = shadow.store.read(given["input"], call.name)
    result = call.proceed()
    drawn = torch.rand(chances.shape, generator=_generator(shadow, call, given.get("seed")))
    return shadow.emulate(result, [(drawn < chance).float() for chance in chances], call.name)


def _dropout(shadow: Golden, call: Invocation) -> Any:
    """``scale`` times the input, zero with the given probability; other ones on every device unless told otherwise."""
    given = call.named("input_tensor", "probability", "scale", "seed", "use_per_device_seed")
    x = shadow.store.read(given["input_tensor"], call.name)
    result = call.proceed()
    own = given.get("use_per_device_seed", True)
    masks = [
        torch.rand(x.shape, generator=_generator(shadow, call, given.get("seed"), device)) < given["probability"]
        for device in range(len(x) if own else 1)
    ]
    values = [torch.where(masks[i if own else 0], 0.0, x[i] * given["scale"]) for i in range(len(x))]
    return shadow.emulate(result, values, call.name)


RANDOM: dict[str, Draw] = {
    "ttnn.rand": _rand,
    "ttnn.randn": _randn,
    "ttnn.uniform": _uniform,
    "ttnn.bernoulli": _bernoulli,
    "ttnn.experimental.dropout": _dropout,
    "ttnn.manual_seed": manual_seed,
    "ttnn.sampling": sampling,
}
