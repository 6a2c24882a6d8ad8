"""The values that every call left behind, in few bytes: enough to say where two runs of a program part.

call -> event log -> ... -> Results -> shadow -> ttnn
                            (a digest, statistics and a sample of what the shadow now holds for the results)
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from tt_impl.mock.calls.shadow import Shadow
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.storage.constants import single
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.views import bits_of
from tt_impl.trace.intercept import Invocation, on_device, tensors_in

SAMPLE = 64
"""Elements that are kept of a result, of all devices together."""


class Results:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; install it after the event log and before the shadow.

    ``of`` has, by number of the event, one entry per result: see :func:`described`; None where nobody knows the value.
    """

    def __init__(self, shadow: Shadow, log: EventLog) -> None:
        self.of: dict[int, list[dict[str, Any] | None]] = {}
        self._shadow = shadow
        self._log = log

    def __call__(self, call: Invocation) -> Any:
        event = self._log.events[-1].number
        result = call.proceed()
        tensors = [t for t in tensors_in(result) if on_device(t) and t.is_allocated()]
        if tensors:
            self.of[event] = [self._described(tensor) for tensor in tensors]
        return result

    def _described(self, tensor: Any) -> dict[str, Any] | None:
        try:
            return described(self._shadow.values(tensor))
        except ShadowError:
            return None


def described(values: list[torch.Tensor]) -> dict[str, Any]:
    """Of one value per device: ``digest`` (of all, bit by bit), ``differ`` (how many devices hold something of their
    own), ``nan`` (elements that are no finite number), ``absmax``, ``mean``, ``rms`` (of the others), and ``sample``:
    elements at places that only the shape decides, device after device, 0 for one that is no finite number.
    """
    distinct = list({id(v): v for v in values}.values())
    digests = {id(v): _digest(v) for v in distinct}
    whole = hashlib.blake2b("".join(digests[id(v)] for v in values).encode(), digest_size=8).hexdigest()
    different = {digests[id(v)]: v for v in distinct}
    parts = [_moments(v) for v in different.values()]
    count, absmax, total, squares = (list(column) for column in zip(*parts, strict=True)) if parts else ([], [], [], [])
    finite = max(sum(count), 1)
    return {
        "digest": whole,
        "differ": len(different),
        "nan": sum(v.numel() for v in different.values()) - sum(count),
        "absmax": _number(max(absmax, default=0.0)),
        "mean": _number(sum(total) / finite),
        "rms": _number((sum(squares) / finite) ** 0.5),
        "sample": sample(values),
    }


def _moments(value: torch.Tensor) -> tuple[int, float, float, float]:
    """Return how many elements are finite numbers, the largest of their magnitudes, their sum and that of squares."""
    one = single(value)
    flat = (value if one is None else one).reshape(-1).float()
    times = 1 if one is None else value.numel()
    finite = flat[flat.isfinite()]
    if not finite.numel():
        return 0, 0.0, 0.0, 0.0
    total = finite.sum(dtype=torch.float64).item()
    squares = torch.linalg.vector_norm(finite, dtype=torch.float64).item() ** 2
    return times * finite.numel(), finite.abs().max().item(), times * total, times * squares


def sample(values: list[torch.Tensor]) -> list[float]:
    """About :data:`SAMPLE` elements, as many of each device; the places depend on the shape alone."""
    size = values[0].numel() if values else 0
    if not size:
        return []
    generator = torch.Generator().manual_seed(size)
    places = torch.randint(size, (max(SAMPLE // len(values), 4),), generator=generator)
    drawn = [v.reshape(-1)[places].float() for v in values]
    return [_number(x) for v in drawn for x in torch.where(v.isfinite(), v, 0.0)]


def _digest(value: torch.Tensor) -> str:
    """Return a digest of all bits; one number in every place is told by that and their count, however it is kept."""
    one = single(value)
    if one is None and _is_one_number(value):
        one = value.reshape(-1)[0]
    if one is None:
        return hashlib.blake2b(_bytes(value), digest_size=8).hexdigest()
    text = f"{value.numel()} times {_bytes(one.reshape(1)).hex()} in {value.dtype}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _is_one_number(value: torch.Tensor) -> bool:
    """Tell whether all elements have the same bits; most tensors part at a look at three."""
    if not value.numel():
        return False
    bits = bits_of(value.reshape(-1))
    first = bits[0]
    return bool(bits[-1] == first) and bool(bits[len(bits) // 2] == first) and bool((bits == first).all())


def _bytes(value: torch.Tensor) -> Any:
    return memoryview(value.contiguous().view(torch.uint8).reshape(-1).numpy()) if value.numel() else b""


def _number(value: float | torch.Tensor) -> float:
    return float(f"{float(value):.7g}")
