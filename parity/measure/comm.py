"""Communication parity: both backends must ask for the same collectives, on the same axis, with the same bytes.

Differences that lie in how the two are built have a reason and are listed; any other one fails the case. A collective
that TTNN runs as part of a larger op must still be there, in its place, with refsim's axis and bytes, and is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entry = dict[str, Any]

STATS = "norm statistics: refsim gathers two fp32 per token (8 bytes), TTNN two 32-wide bf16 tiles per token row (128)"
GROUPS = (
    "group norm: refsim gathers count, mean and M2 of a group (12 bytes), TTNN two sums, as pixels need no counting (8)"
)
HEAD_STATS = (
    "statistics of a norm over all heads: refsim gathers one fp32 per token (4 bytes), TTNN one 32-wide fp32 tile per "
    "token row (128)"
)
ARGMAX = (
    "best token: refsim gathers value, token and the second best value of a row (12 bytes), for the margin it tells; "
    "TTNN value and token (8)"
)
HOST = "the result is put together on the host in TTNN, by a collective in refsim"
STREAMS = "split prompt: refsim exchanges image and prompt rows in one all_to_all, TTNN in one each, the image first"
SILENT = "split prompt of a last block: refsim exchanges the zeros it asks with, TTNN leaves its result where it is"
FUSED = "one op of TTNN is this collective and the matmul beside it; same axis, same bytes"

LOOKED_INTO = "the first prompt's pass once more and its logits gathered, for the tensors that are judged"

_RESULTS = (("all_gather", "sp"), ("all_gather", "cfg"))
RATIOS = {16.0: STATS, 32.0: HEAD_STATS, 8 / 12: GROUPS}
"""What an all_gather of other bytes is, by TTNN's over refsim's."""
DECODING = {8 / 12: ARGMAX}
"""The same where tokens are decoded; there are no other reasons."""


def differences(
    reference: list[Entry], device: list[Entry], results: int = 0, ratios: Mapping[float, str] = RATIOS
) -> list[Entry]:
    """Say where the two sequences differ: position, both entries (None where one side has none), reason or None.

    Args:
        reference: refsim's collectives of rank 0, ``{"collective", "axis", "bytes", "group"}``.
        device: TTNN's, of one cfg group, without ``group``; ``within`` names a larger op that it is a part of.
        results: how many all_gathers of refsim, wherever they stand, put pieces of a decoder's result together; all
            of them, or none is explained.
        ratios: reasons for an all_gather of other bytes.
    """
    if results:
        reference, entries = _without_results(reference, device, results, ratios)
        return entries + differences(reference, device, ratios=ratios)
    entries = []
    device = _streams_joined(reference, device)
    last_parts = None
    for index in range(max(len(reference), len(device))):
        mine = reference[index] if index < len(reference) else None
        theirs = device[index] if index < len(device) else None
        last_parts = theirs.get("parts", last_parts) if theirs else last_parts
        if mine is None or theirs is None:
            tail = mine is not None and (mine["collective"], mine["group"]) in _RESULTS
            reason = HOST if tail else None
        elif (mine["collective"], mine["axis"]) != (theirs["collective"], theirs["axis"]):
            reason = None
        elif mine["bytes"] == theirs["bytes"] and "parts" not in theirs:
            if "within" not in theirs:
                continue
            reason = FUSED
        else:
            reason = _reason(mine, theirs, last_parts, ratios)
        entries.append({"index": index, "refsim": mine, "ttnn": theirs, "reason": reason})
    return entries


def without_results(reference: list[Entry]) -> list[Entry]:
    """Return refsim's sequence without the all_gathers at its end, which put the result together."""
    last = len(reference)
    while last and (reference[last - 1]["collective"], reference[last - 1]["group"]) in _RESULTS:
        last -= 1
    return reference[:last]


def _without_results(
    reference: list[Entry], device: list[Entry], results: int, ratios: Mapping[float, str]
) -> tuple[list[Entry], list[Entry]]:
    """Return refsim's sequence without the all_gathers that have no partner in TTNN's, and these, if ``results``."""
    remaining = []
    gathers = []
    rest = list(device)
    for index, mine in enumerate(reference):
        partner = bool(rest) and (rest[0]["collective"], rest[0]["axis"]) == (mine["collective"], mine["axis"])
        partner = partner and (rest[0]["bytes"] == mine["bytes"] or rest[0]["bytes"] / mine["bytes"] in ratios)
        if mine["collective"] == "all_gather" and not partner:
            gathers.append({"index": index, "refsim": mine, "ttnn": None, "reason": HOST})
            continue
        remaining.append(mine)
        del rest[:1]
    return (remaining, gathers) if len(gathers) == results else (reference, [])


def _streams_joined(reference: list[Entry], device: list[Entry]) -> list[Entry]:
    """Return TTNN's sequence, two all_to_alls in a row made one with ``parts`` where refsim has one as large."""
    joined: list[Entry] = []
    rest = list(device)
    for mine in reference:
        pair = [x for x in rest[:2] if (x["collective"], x["axis"]) == ("all_to_all", mine["axis"])]
        parts = [x["bytes"] for x in pair]
        if mine["collective"] == "all_to_all" and len(parts) == 2 and sum(parts) == mine["bytes"]:
            rest[:2] = [pair[0] | {"bytes": sum(parts), "parts": parts}]
        joined += rest[:1]
        del rest[:1]
    return joined + rest


def _reason(mine: Entry, theirs: Entry, last_parts: list[int] | None, ratios: Mapping[float, str]) -> str | None:
    """Say why the same collective on the same axis differs in what it moves, or in how many calls."""
    if mine["collective"] == "all_gather":
        return ratios.get(theirs["bytes"] / mine["bytes"])
    if mine["collective"] == "all_to_all" and "parts" in theirs:
        return STREAMS
    if mine["collective"] == "all_to_all" and last_parts is not None:
        return SILENT if [mine["bytes"], theirs["bytes"]] == [sum(last_parts), last_parts[0]] else None
    return None


def decoding_differences(reference: list[Entry], device: list[Entry], logits: int) -> list[Entry]:
    """Compare a run that decodes after prompts; in TTNN the first prompt's pass is run once more behind it all.

    That pass is part of the sequence twice, so what it asks for is known; then it gathers ``logits`` bytes.
    """
    count = len(reference)
    entries = differences(reference, device[:count], ratios=DECODING)
    again = device[count:]
    for index, theirs in enumerate(again):
        last = index == len(again) - 1
        wanted = {"collective": "all_gather", "axis": theirs["axis"], "bytes": logits} if last else device[index]
        reason = LOOKED_INTO if theirs == wanted else None
        entries.append({"index": count + index, "refsim": None, "ttnn": theirs, "reason": reason})
    return entries


def unexplained(entries: list[Entry]) -> int:
    return sum(entry["reason"] is None for entry in entries)
