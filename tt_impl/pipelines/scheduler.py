"""The scheduler's step on the devices: latents and predictions in, the next latents out, all in fp32.

    x[n+1] = sum_k  a[k] x[n-k]  +  sum_k  b[k] v[n-k]  +  c noise[n]

The numbers come from diffusers' own scheduler (:mod:`refsim.pipelines.hosts.schedule`); the tensors lie as the
transformer's answer does, (1, 1, local N, C) of tokens cut over sp, so that a step is arithmetic and no communication.
Counterpart of nothing in ``refsim``, whose host runs the scheduler as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import ttnn

from refsim.base.errors import InvariantError
from refsim.pipelines.hosts.schedule import Recurrence
from tt_impl.parallel.context import Context


class TokenOrder:
    """Where in a transformer's answer each element of the latents stands, asked of the model's own ``read``.

    Args:
        read: an answer (1, 1, local N, C) on the devices -> latents (1, ...) on the host.
        rows, features: N over all devices of sp, padding included, and C.
    """

    def __init__(self, ctx: Context, read: Callable[[ttnn.Tensor], torch.Tensor], rows: int, features: int) -> None:
        self._ctx = ctx
        self._shape = (1, 1, rows, features)
        numbers = torch.arange(rows * features, dtype=torch.float32).view(self._shape)  # exact in fp32 up to 2^24
        self._places = read(self.put_tokens(numbers)).flatten().long()
        if len(self._places.unique()) != len(self._places):
            raise InvariantError("two elements of the latents stand in one place of the transformer's answer")

    def put(self, latents: torch.Tensor) -> ttnn.Tensor:
        """Latents (1, ...) on the host -> (1, 1, local N, C) in fp32 on the devices, padding 0."""
        tokens = torch.zeros(self._shape).flatten()
        tokens[self._places] = latents.float().flatten()
        return self.put_tokens(tokens.view(self._shape))

    def put_tokens(self, tokens: torch.Tensor) -> ttnn.Tensor:
        """Tokens (1, 1, N, C) as they are, cut over sp."""
        return self._ctx.put(tokens, sp_dim=2, dtype=ttnn.float32)


class DeviceScheduler:
    """The recurrences of a schedule; keeps as many former latents and predictions as they look back.

    Args:
        latents: the first ones, on the devices.
    """

    def __init__(self, numbers: list[Recurrence], latents: ttnn.Tensor) -> None:
        self._numbers = numbers
        self._longest = max(len(step.latents) for step in numbers)
        self._latents = [latents]
        self._predictions = []

    def step(self, prediction: ttnn.Tensor, index: int, noise: ttnn.Tensor | None = None) -> ttnn.Tensor:
        """Return the latents after step ``index``."""
        numbers = self._numbers[index]
        self._predictions = [ttnn.typecast(prediction, ttnn.float32), *self._predictions][: self._longest]
        terms = list(zip(numbers.latents, self._latents, strict=False))
        terms += zip(numbers.predictions, self._predictions, strict=False)
        if noise is not None:
            terms.append((numbers.noise, noise))
        after = combine(terms)
        self._latents = [after, *self._latents][: self._longest]
        return after


def combine(terms: list[tuple[float, ttnn.Tensor]]) -> ttnn.Tensor:
    """Sum tensors times numbers, leaving out those times 0."""
    scaled = [x if number == 1.0 else ttnn.multiply(x, number) for number, x in terms if number != 0.0]
    total = scaled[0]
    for x in scaled[1:]:
        total = ttnn.add(total, x)
    return total
