"""Sampling of tokens, and the seeds of it: a generator for each user's core, which ``manual_seed`` and ``seed=`` start.

    values (1, 1, users, W) -> the 32 largest -> the k largest -> times temp -> softmax -> until their sum exceeds p
                            -> the first whose running share exceeds a number drawn from [0, 1)

What may be chosen is exact, and so is the choice where only one remains (``p = 0`` or ``k = 1``). The device draws
other numbers than torch does, so a choice among several is emulated, and counted in ``Shadow.emulated``.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.values import ProgramValues
from tt_impl.trace.intercept import TENSOR, Invocation

USERS = 32
CANDIDATES = 32
"""The device sorts no further, whatever ``k`` says."""
KEEP = 2**32 - 1
"""The seed that leaves a generator as it is."""

_generators: WeakKeyDictionary[ProgramValues, list[torch.Generator]] = WeakKeyDictionary()


def _of(shadow: ProgramValues) -> list[torch.Generator]:
    """Return the generators, one per user; those of a program that seeds nothing start with numbers of their own."""
    unseeded = [torch.Generator().manual_seed(2**32 + user) for user in range(USERS)]
    return _generators.setdefault(shadow, unseeded)


def _integers(shadow: ProgramValues, value: Any, name: str) -> list[int]:
    """List the numbers of a tensor that is the same on all devices, or one number."""
    if not isinstance(value, TENSOR):
        return [int(value)]
    values = shadow.store.read(value, name)
    if any(not part.equal(values[0]) for part in values):
        raise ShadowError(f"{name} with other seeds or users on every device has no shadow rule.")
    return [int(number) for number in values[0].flatten()]


def manual_seed(shadow: ProgramValues, call: Invocation) -> Any:
    """Call ``ttnn.manual_seed``: for all users, or each of ``user_ids`` with its own of ``seeds``."""
    seeds = _integers(shadow, call.argument("seeds", 0), call.name)
    chosen = call.kwargs.get("user_ids")
    users = list(range(USERS)) if chosen is None else _integers(shadow, chosen, call.name)
    result = call.proceed()
    seeds = seeds * len(users) if len(seeds) == 1 else seeds
    generators = _of(shadow)
    for user, seed in zip(users, seeds, strict=False):
        if seed != KEEP and user < USERS:
            generators[user].manual_seed(seed)
    shadow.emulated[call.name] += 1
    return result


def sampling(shadow: ProgramValues, call: Invocation) -> Any:
    """Call ``ttnn.sampling``: the same numbers on all devices."""
    arguments = call.named("input_values_tensor", "input_indices_tensor")
    names = ("input_values_tensor", "input_indices_tensor", "k", "p", "temp")
    inputs = [shadow.store.read(arguments[name], call.name) for name in names]
    result = call.proceed()
    generators = _of(shadow)
    if seed := arguments.get("seed"):
        for generator in generators:
            generator.manual_seed(seed)
    users = inputs[0].shape[-2]
    drawn = torch.stack([torch.rand((), generator=generators[user]).bfloat16().float() for user in range(users)])
    values = [_chosen(drawn, *parts).reshape(tuple(result.shape)) for parts in zip(*inputs, strict=True)]
    return shadow.emulate(result, values, call.name)


def _chosen(
    drawn: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, k: torch.Tensor, p: torch.Tensor,
    temp: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Choose on one device: ``values`` and ``indices`` (1, 1, users, W); the others a number for each user."""
    users = values.shape[-2]
    ordered, places = values.reshape(users, -1).sort(dim=-1, descending=True, stable=True)
    ordered = ordered[:, :CANDIDATES]
    outside = torch.arange(ordered.shape[1]) >= k.flatten()[:users, None]
    scaled = ordered.masked_fill(outside, -torch.inf) * temp.flatten()[:users, None]
    shares = scaled.softmax(dim=-1).bfloat16().float()
    sums = shares.cumsum(dim=-1)
    allowed = ~outside & (sums - shares <= p.flatten()[:users, None])  # the one that exceeds p is, too
    shares = shares * allowed
    running = shares.cumsum(dim=-1) / shares.sum(dim=-1, keepdim=True)
    first = (allowed & (running > drawn[:, None])).float().argmax(dim=-1, keepdim=True)  # none exceeds: the largest
    return indices.reshape(users, -1).gather(1, places.gather(1, first)).flatten()
