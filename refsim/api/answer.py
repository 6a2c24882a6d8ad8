"""What a run gave, before the user gets it: an answer that holds NaN or infinity is an error that says where."""

from __future__ import annotations

from torch import Tensor

from refsim.errors import NotFiniteError
from refsim.finite import first_not_finite
from refsim.options import RunOptions
from refsim.runtime.launch import Result

_WOULD_WORK = "look at the weights there, lower the guidance, or run in fp32"


def check_answer(result: Result | None, options: RunOptions) -> None:
    """Raise ``NotFiniteError`` if a tensor of the answer holds a value that is not finite.

    The sentence names the output, and rank, op and place in the model where such a value was read first. A run with a
    mistake planted into it (``options.fault``) is left to whoever judges it.
    """
    if result is not None and not options.fault:
        check_tensors(result.tensors, origin(result))


def check_tensors(tensors: dict[str, Tensor], first: str) -> None:
    """Raise ``NotFiniteError`` for the first of ``tensors`` that is not finite; ``first`` says where that began."""
    for name, tensor in tensors.items():
        index = first_not_finite(tensor)
        if index is not None:
            count = int((~tensor.isfinite()).sum())
            raise NotFiniteError(
                f"output {name} holds {count} non-finite value(s), the first at {index}; {first}; {_WOULD_WORK}."
            )


def origin(result: Result) -> str:
    """Return in words which rank read a value that is not finite before any other, and in what."""
    found = [(first.order, rank) for rank, first in enumerate(result.not_finite) if first is not None]
    if not found:
        return "every op read finite values only, so the last one made it (on every rank)"
    _, rank = min(found)
    return f"the first op to read one was rank {rank}'s {result.not_finite[rank]}"
