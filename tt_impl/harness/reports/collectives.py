"""The collectives of a program in order, one row each, for reports and comparisons."""

from __future__ import annotations

from typing import Any

from tt_impl.harness.checks.fabric import groups
from tt_impl.harness.checks.reads import written_remotely
from tt_impl.mock.log.events import EventLog

Row = dict[str, Any]
_COLUMNS = ("number", "op", "collective", "axis", "devices", "topology", "links", "bytes", "buffers", "where")


def sequence(log: EventLog) -> list[Row]:
    """One row per collective, as JSON values.

    ``number`` and ``op`` of the event; ``collective``, ``axis``, ``topology``, ``links`` and ``bytes`` (that each
    device holds before it), None where the program leaves them to ttnn; ``devices`` that take part together, and
    ``groups`` of them; ``buffers``: ids of what the program gave it to write to; ``semaphores``: their addresses;
    ``where`` in the user's code.
    """
    rows = []
    for event in log.events:
        for crossing in event.collectives if event.error is None else ():
            members = groups(event.mesh, event.devices, crossing["axis"])
            rows.append(
                {"number": event.number, "op": event.op, "where": event.where}
                | {name: crossing[name] for name in ("collective", "axis", "topology", "links", "bytes")}
                | {
                    "devices": len(members[0]),
                    "groups": len(members),
                    "mesh": list(event.mesh),
                    "shape": list(event.inputs[0].shape),
                    "buffers": [use.buffer for use in written_remotely(event)],
                    "semaphores": event.options.get("semaphores", []),
                }
            )
    return rows


def as_markdown(rows: list[Row]) -> str:
    """The rows as a table."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(row[name]) for name in _COLUMNS)} |" for row in rows)]) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
