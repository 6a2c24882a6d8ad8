"""Communication parity: both backends must ask for the same collectives, on the same axis, with the same bytes.

Differences that lie in how the two are built have a reason and are listed; any other one fails the case.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Entry = dict[str, Any]

STATS = "norm statistics: refsim gathers two fp32 per token (8 bytes), TTNN two 32-wide bf16 tiles per token row (128)"
GROUPS = (
    "group norm: refsim gathers count, mean and M2 of a group (12 bytes), TTNN two sums, as pixels need no counting (8)"
)
HOST = "the result is put together on the host in TTNN, by a collective in refsim"


_RATIOS = {16.0: STATS, 8 / 12: GROUPS}
"""What an all_gather of other bytes is, by TTNN's over refsim's."""


def differences(reference: list[Entry], device: list[Entry], host: Collection[str] = ("sp", "cfg")) -> list[Entry]:
    """Where the two sequences differ: position, both entries (None where one side has none), and the reason or None.

    Args:
        reference: refsim's collectives of rank 0, ``{"collective", "axis", "bytes", "group"}``.
        device: TTNN's, of one cfg group, without ``group``.
        host: the groups over which refsim gathers the result at the end.
    """
    found = []
    for index in range(max(len(reference), len(device))):
        mine = reference[index] if index < len(reference) else None
        theirs = device[index] if index < len(device) else None
        if mine is None or theirs is None:
            tail = mine is not None and mine["collective"] == "all_gather" and mine["group"] in host
            reason = HOST if tail else None
        elif (mine["collective"], mine["axis"]) != (theirs["collective"], theirs["axis"]):
            reason = None
        elif mine["bytes"] == theirs["bytes"]:
            continue
        else:
            ratio = theirs["bytes"] / mine["bytes"]
            reason = _RATIOS.get(ratio) if mine["collective"] == "all_gather" else None
        found.append({"index": index, "refsim": mine, "ttnn": theirs, "reason": reason})
    return found


def unexplained(found: list[Entry]) -> int:
    return sum(entry["reason"] is None for entry in found)
