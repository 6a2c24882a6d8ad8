"""Statistics of distributed norms: from the operation that makes them of some columns to the one that uses them.

    x cut along its columns --> pre_all_gather --> statistics of this device's columns
    statistics --> all_gather along the axis of the cut --> post_all_gather      right
    statistics ------------------------------------------> post_all_gather      wrong: not those of the whole row

Values of random tests hardly differ: the columns of every device have about the same mean and variance.
"""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import is_output, succeeded
from tt_impl.harness.checks.sums import cut_dims, is_dim
from tt_impl.mock.log.events import Event, EventLog

_MAKE = frozenset(
    f"ttnn.{name}"
    for name in """
    layer_norm_pre_all_gather rms_norm_pre_all_gather experimental.dit_layernorm_pre_allgather
    experimental.wan_fused_rmsnorm_pre_allgather
    """.split()
)
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
