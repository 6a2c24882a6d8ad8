"""A small ring attention, run now: its trace as bars in lanes, the buffer and the step of each, and the hazards.

    rank 1   attend     |A step 0|   |B step 1|          a bar per event of the trace, coloured by the slot (A or B) of
             send K     |A --> rank 2 ---|               the ping-pong pair that it reads or writes
             receive K    |B <-- rank 0 -----|

The times are those of CPU processes that share this machine's cores: the order and the overlap are the program's, the
lengths are not a device's.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from parity.explain.causes import stored
from refsim.api.attention import attention_options, attention_result

MESH = "bh-qb-1x4"
SHAPE = (1, 8, 1024, 64)
"""Four devices in a Ring; (batch, heads, tokens, features of a head), so that a rank has one block of 256 keys."""
KNOWN_FAULT = "single-buffer"
FAULTY = "parity.faults.ref_runtime:single_buffer"
"""What a hazard looks like is shown by a run with this fault put in, one buffer instead of a pair; its function."""
_SLOT = re.compile(r"\[(\d)\]$")
_BUFFER = re.compile(r"^buffer (\S+) of rank \d+$")

Data = dict[str, Any]


def runs() -> list[Data]:
    """Run the ring as it is, and with the known fault in it."""
    return [run(faulty=False), run(faulty=True)]


def run(*, faulty: bool) -> Data:
    """Return one run as JSON values: where, the fault's sentence, and what :func:`bars` gives."""
    g = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(SHAPE, generator=g) for name in "qkv"}
    options = attention_options("ring", mesh=MESH, dtype="fp32", trace=True, fault=FAULTY if faulty else "")
    attention_result(tensors, options=options)  # the first run of new ranks has to load things
    result = attention_result(tensors, options=options)
    return {
        "mesh": MESH,
        "shape": list(SHAPE),
        "fault": {"id": KNOWN_FAULT, "sentence": stored()["sentences"][KNOWN_FAULT]} if faulty else None,
        **bars(result.trace, [vars(hazard) for hazard in result.hazards]),
    }


def bars(trace: list[Data], hazards: list[Data]) -> Data:
    """Return a bar per event of the ring: ``ranks``, ``bars`` (times in ms from the first one's start) and ``hazards``.

    Args:
        trace: events as :class:`refsim.runtime.watch.trace.Event` has them.
        hazards: as :class:`refsim.runtime.watch.hazards.Hazard`; each bar has the numbers of those that it is part of.
    """
    events = [event for event in trace if event["collective"] == "ring_attention"]
    first = min((event["start"] for event in events), default=0.0)
    drawn = []
    for event in sorted(events, key=lambda event: (event["rank"], event["start"])):
        slot = _SLOT.search(event["buffer"])
        bar = {key: event[key] for key in ("rank", "step", "buffer", "bytes", "peer")}
        bar |= {key: (event[key] - first) * 1e3 for key in ("start", "end")}
        bar |= {"lane": _lane(event), "slot": "AB"[int(slot[1])] if slot else ""}
        drawn.append(bar | {"hazards": [i for i, hazard in enumerate(hazards) if _is_of(event, hazard)]})
    ranks = sorted({event["rank"] for event in events})
    return {"ranks": ranks, "bars": drawn, "hazards": [{k: h[k] for k in ("kind", "sentence")} for h in hazards]}


def _lane(event: Data) -> str:
    """Return ``attend``, or the direction and the tensor of a transfer."""
    if event["op"] not in ("send", "recv"):
        return "attend"
    return f"{'send' if event['op'] == 'send' else 'receive'} {'V' if '.v' in event['buffer'] else 'K'}"


def _is_of(event: Data, hazard: Data) -> bool:
    """Whether an event is one of the uses that a hazard's sentence names, which calls a receive its peer's send.

    A compute step is recorded with K's buffer alone and reads V's of the same slot as well.
    """
    named = _BUFFER.match(hazard["buffer"])
    moves = event["op"] in ("send", "recv")
    who, what = (event["peer"], "send") if event["op"] == "recv" else (event["rank"], event["op"])
    use = f"rank {who}'s {what} of step {event['step']} of {event['collective']}"
    if named is None or event["rank"] != hazard["rank"] or use not in hazard["sentence"]:
        return False
    return event["buffer"] in ((named[1],) if moves else (named[1], named[1].replace(".v", ".k")))
