"""Statistics of norms: of whole rows, or of the columns that one device holds.

    x cut along its columns --> pre_all_gather --> statistics of this device's columns
    statistics --> all_gather along the axis of the cut --> post_all_gather      right
    statistics ------------------------------------------> post_all_gather      wrong: not those of the whole row
    columns cut over the mesh --> add, scale, ... --> all_gather --> layer_norm  right
    columns cut over the mesh --> add, scale, ... ----------------> layer_norm  wrong: a norm of some columns

A weight that is not cut, as wide as what a device holds, says that the columns of each device are a head of their own.

Values of random tests hardly differ: the columns of every device have about the same mean and variance.
"""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks.cuts import Cuts, cut_dims, is_dim
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.linear import bare, operands
from tt_impl.harness.checks.reads import is_output, succeeded
from tt_impl.mock.log.events import Event, EventLog

_MAKE = frozenset(
    f"ttnn.{name}"
    for name in """
    layer_norm_pre_all_gather rms_norm_pre_all_gather experimental.dit_layernorm_pre_allgather
    experimental.wan_fused_rmsnorm_pre_allgather
    """.split()
)
_NORMS = frozenset({"layer_norm", "rms_norm"})
_SOFTMAX = frozenset({"softmax", "softmax_in_place"})
_USE = frozenset(name.replace("_pre_all", "_post_all") for name in _MAKE)


def local_statistics(log: EventLog) -> Iterator[Finding]:
    """Find statistics of a part of the columns that are used before those of the other parts were gathered."""
    made: dict[int, tuple[Event, frozenset[int]]] = {}
    for event in succeeded(log):
        seen = [use for use in event.inputs if event.op in _USE or not is_output(use)]
        used = [made[use.buffer] for use in seen if use.buffer in made and use.argument != "0"]
        used = used or [made[use.buffer] for use in event.inputs[:1] if use.buffer in made and event.op not in _USE]
        for use in (*event.outputs, *(use for use in event.inputs if is_output(use) and use.buffer in event.written)):
            made.pop(use.buffer, None)
        if event.op in _USE:
            yield from (_finding(event, maker, axes) for maker, axes in used[:1] if axes)
        elif event.op in _MAKE:
            made |= {use.buffer: (event, _cut(event)) for use in event.outputs}
        elif used:
            maker, axes = used[0]
            crossed = {c["axis"] for c in event.collectives}
            left = frozenset() if None in crossed else axes - crossed
            results = {use.buffer for use in event.outputs} | set(event.written)
            made |= dict.fromkeys(results, (maker, left))


def norms_of_columns(log: EventLog) -> Iterator[Finding]:
    """Find norms of rows, and softmax, of which each device holds a part for certain."""
    cuts = Cuts()
    for event in succeeded(log):
        x = operands(event).get(0)
        if x is not None and (dim := _along(event, len(x.shape))) is not None:
            weights = [use for use in event.inputs if use is not x and not is_output(use)]
            for axis, (maker, cut) in cuts.of(x).items():
                if cut == dim and all(cut_dims(use)[axis] is not None for use in weights):
                    yield _of_columns(event, maker, axis)
        cuts.follow(event)


def _along(event: Event, rank: int) -> int | None:
    """Return the dim, counted from the last, whose statistics a norm or a softmax takes."""
    if bare(event) in _NORMS:
        return -1
    if bare(event) not in _SOFTMAX:
        return None
    dim = event.options.get("dim", event.options.get("1", -1))
    return dim % rank - rank if isinstance(dim, int) else None


def _of_columns(event: Event, maker: Event, axis: int) -> Finding:
    return Finding.of(
        "local-statistics", event,
        f"{event.op} takes statistics of one device's part for those of the whole: {at(maker)} cuts its input "
        f"along axis {axis} of the mesh; all_gather it before, or gather the statistics of its parts.",
    )  # fmt: skip


def _cut(event: Event) -> frozenset[int]:
    """Return the axes of the mesh along which the columns of the operation's input are cut, as ttnn says."""
    x = event.inputs[0]
    return frozenset(axis for axis, dim in enumerate(cut_dims(x)) if is_dim(x, dim, -1))


def _finding(event: Event, maker: Event, axes: frozenset[int]) -> Finding:
    along = " and ".join(str(axis) for axis in sorted(axes))
    return Finding.of(
        "local-statistics", event,
        f"{event.op} takes statistics of one device's columns for those of whole rows: the input of {at(maker)} is cut "
        f"along axis {along} of the mesh; all_gather the statistics along it before.",
    )  # fmt: skip
