"""What a run gave, before the user gets it: an answer that holds NaN or infinity is an error that says where."""

from __future__ import annotations

from refsim.base.finite import check_tensors
from refsim.base.options import RunOptions
from refsim.runtime.launch import Result


def check_answer(result: Result | None, options: RunOptions) -> None:
    """Raise ``NotFiniteError`` if a tensor of the answer holds a value that is not finite.

    The sentence names the output, and rank, op and place in the model where such a value was read first. Only with
    ``options.fault``, for which ``refsim run`` has no flag, is nothing raised: a mistake was planted to see whether the
    judge finds it, and a NaN that ended the run here would never come before the judge.
    """
    if result is not None and not options.fault:
        check_tensors(result.tensors, origin(result))


def origin(result: Result) -> str:
    """Return in words which rank read a value that is not finite before any other, and in what."""
    firsts = [(first.order, rank) for rank, first in enumerate(result.not_finite) if first is not None]
    if not firsts:
        return "every op read finite values only, so the last one made it (on every rank)"
    _, rank = min(firsts)
    return f"the first op to read one was rank {rank}'s {result.not_finite[rank]}"
