"""Random operations: numbers of the documented range and distribution, drawn by torch from the seed of the call.

The device draws others: what follows from a value here is emulated, and counted in ``Shadow.emulated``. The same seed
gives the same numbers in every call, and on all devices unless the operation is documented to give each its own.
Without a seed (0 or None) every call has new ones, which do not depend on anything but the calls before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import ttnn

from tt_impl.mock.calls.sampling import manual_seed, sampling
from tt_impl.mock.rules.registry import TILE
from tt_impl.mock.storage.dtypes import RANGES, typecast
from tt_impl.mock.storage.values import ProgramValues, mesh_shape_of, ranks_of
from tt_impl.trace.intercept import Invocation

Draw = Callable[[ProgramValues, Invocation], Any]


def _generator(shadow: ProgramValues, call: Invocation, seed: int | None, device: int = 0) -> torch.Generator:
    """Make the generator of a call and a device; a call with a seed gets the same one again."""
    number = seed if seed else sum(shadow.emulated.values()) + 2**32
    return torch.Generator().manual_seed(number * 1024 + device)


def _uniform_numbers(shape: tuple, low: float, high: float, dtype: Any, generator: torch.Generator) -> torch.Tensor:
    """Draw from [low, high), also once rounded to ``dtype``; integers are what a typecast makes of float32."""
    value = torch.rand(shape, generator=generator) * (high - low) + low
    if dtype in RANGES:
        return typecast(value, ttnn.float32, dtype)
    rounded = value.bfloat16().float() if dtype == ttnn.bfloat16 else value
    return torch.where(rounded >= high, low, rounded) if dtype in (ttnn.bfloat16, ttnn.float32) else value


def _rand(shadow: ProgramValues, call: Invocation) -> Any:
    result = call.proceed()
    low = call.kwargs.get("low", 0.0)
    high = call.kwargs.get("high", 1.0)
    first = _distinct(result)
    seed = call.kwargs.get("seed")
    cores = _cores(result)
    drawn = {}
    for device in sorted(set(first)):
        # a core draws from the seed and its number, counted over all devices
        generator = _generator(shadow, call, seed + device * cores) if seed else _generator(shadow, call, None, device)
        drawn[device] = _uniform_numbers(tuple(result.shape), low, high, result.dtype, generator)
    return shadow.emulate(result, [drawn[device] for device in first], call.name)


def _cores(tensor: ttnn.Tensor) -> int:
    """Return how many cores of a device draw the numbers of a tensor: one for each of its tiles, as far as they go."""
    grid = tensor.device().compute_with_storage_grid_size()
    return min(grid.x * grid.y, math.prod(tensor.padded_shape) // TILE**2)


def _distinct(tensor: ttnn.Tensor) -> list[int]:
    """Return for every device the first with its shard: devices along an axis that is replicated share numbers."""
    rows, columns = mesh_shape_of(tensor)
    placements = tensor.tensor_topology().placements()
    cut = [isinstance(placement, ttnn.PlacementShard) for placement in placements]
    by_row, by_column = cut * 2 if len(cut) == 1 else cut
    return [(r if by_row else 0) * columns + (c if by_column else 0) for r in range(rows) for c in range(columns)]


def _randn(shadow: ProgramValues, call: Invocation) -> Any:
    result = call.proceed()
    drawn = torch.randn(tuple(result.shape), generator=_generator(shadow, call, call.kwargs.get("seed")))
    return shadow.emulate(result, [drawn] * len(ranks_of(result)), call.name)


def _uniform(shadow: ProgramValues, call: Invocation) -> Any:
    """Draw in place."""
    arguments = call.named("input", "from", "to", "seed")
    result = call.proceed()
    generator = _generator(shadow, call, arguments.get("seed"))
    bounds = arguments.get("from", 0.0), arguments.get("to", 1.0)
    drawn = _uniform_numbers(tuple(result.shape), *bounds, result.dtype, generator)
    return shadow.emulate(result, [drawn] * len(ranks_of(result)), call.name)


def _bernoulli(shadow: ProgramValues, call: Invocation) -> Any:
    """Draw 1 with the probability that the input says, 0 otherwise."""
    arguments = call.named("input", "seed")
    chances = shadow.store.read(arguments["input"], call.name)
    result = call.proceed()
    drawn = [torch.bernoulli(chance, generator=_generator(shadow, call, arguments.get("seed"))) for chance in chances]
    return shadow.emulate(result, drawn, call.name)


def _dropout(shadow: ProgramValues, call: Invocation) -> Any:
    """Multiply by ``scale``, zeros by ``probability``: other ones on every device unless told otherwise."""
    arguments = call.named("input_tensor", "probability", "scale", "seed", "use_per_device_seed")
    x = shadow.store.read(arguments["input_tensor"], call.name)
    result = call.proceed()
    values = []
    for device, value in enumerate(x):
        seeded = device if arguments.get("use_per_device_seed", True) else 0
        chances = torch.rand(x.shape, generator=_generator(shadow, call, arguments.get("seed"), seeded))
        values.append(torch.where(chances < arguments["probability"], 0.0, value * arguments["scale"]))
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
