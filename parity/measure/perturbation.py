"""One op's output on one rank scaled by 1 + e: the smallest wrong program, by which a case's sight is measured.

Every rank enters :func:`scaled` around its program (``RunOptions.fault``, see :func:`fault`). ``OPS`` names the
functions whose result is what an op of a transformer gives. Of the calls of an op the one in the middle of a run is
scaled; :func:`counted` finds out which that is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from refsim.runtime.tensor import MeshTensor
from refsim.runtime.transports import world

OPS: dict[str, tuple[str, ...]] = {
    "column-parallel linear": ("refsim.layers.linear:column_linear",),
    "q, k and v": ("refsim.layers.linear:fused_column_linear",),
    "term of a row-parallel linear": ("refsim.parallel.tensor:local_linear",),
    "row-parallel linear": ("refsim.layers.linear:row_linear", "refsim.blocks.single:row_linear"),
    "feed-forward": ("refsim.layers.feedforward:ParallelFeedForward._forward",),
    "attention": ("refsim.parallel.sdpa:OnlineSoftmax.result",),
    "norm": ("refsim.layers.norm:DistributedLayerNorm._normalize",),
    "norm of a head": (
        "refsim.layers.norm:RMSNorm.__call__",
        "refsim.layers.norm:DistributedRMSNorm._normalize",
        "refsim.layers.norm:HeadLayerNorm._normalize",
    ),
    "chunk of a modulation": ("refsim.layers.modulation:Modulation._chunk",),
    "gather of features": ("refsim.parallel.tensor:all_gather",),
    "reduce-scatter of features": ("refsim.parallel.tensor:reduce_scatter",),
}
"""Op -> ``module:function`` or ``module:class.method``, of which an op may have several, a kind of layer each."""


def fault(op: str, rank: int, *, by: float, call: int) -> str:
    """Return the fault that scales what the ``call``-th call of ``op`` on ``rank`` gives by 1 + ``by``."""
    return f"{__name__}:scaled {json.dumps({'op': op, 'rank': rank, 'by': by, 'call': call})}"


def counting(rank: int, file: Path) -> str:
    """Return the fault that changes nothing and leaves in a file how often ``rank`` calls each op."""
    return f"{__name__}:counted {json.dumps({'rank': rank, 'file': str(file)})}"


@contextmanager
def scaled(op: str, rank: int, by: float, call: int) -> Iterator[None]:
    """Scale the result of one call of an op on one rank."""
    seen: Counter[str] = Counter()

    def change(result: Any) -> Any:
        seen[op] += 1
        return _times(result, 1 + by) if seen[op] == call + 1 else result

    with _around([op] if world.rank() == rank else [], lambda _: change):
        yield


@contextmanager
def counted(rank: int, file: str) -> Iterator[None]:
    """Count the calls of every op on one rank."""
    seen: Counter[str] = Counter()

    def count(op: str) -> Callable[[Any], Any]:
        return lambda result: seen.update([op]) or result

    mine = world.rank() == rank
    with _around(list(OPS) if mine else [], count):
        yield
    if mine:
        Path(file).write_text(json.dumps(seen))


@contextmanager
def _around(ops: list[str], change: Callable[[str], Callable[[Any], Any]]) -> Iterator[None]:
    """Hand the result of every function of the ops to ``change(op)``, and put the functions back."""
    with ExitStack() as stack:
        for op in ops:
            for where in OPS[op]:
                original = resolve_name(where)
                owner = resolve_name(re.sub(r"[.:]\w+$", "", where))
                name = original.__name__
                setattr(owner, name, _then(original, change(op)))
                stack.callback(setattr, owner, name, original)
        yield


def _then(original: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return change(original(*args, **kwargs))

    return call


def _times(result: Any, factor: float) -> Any:
    """Multiply a tensor by a factor, rounded once; of several results the first (not attention's log-sum-exp)."""
    if isinstance(result, MeshTensor):
        return result.with_local(_times(result.local, factor))
    if isinstance(result, Tensor):
        return (result.double() * factor).to(result.dtype) if result.is_floating_point() else result
    first, *rest = result
    changed = [_times(first, factor), *rest]
    return tuple(changed) if isinstance(result, tuple) else changed
