"""What runs on the ranks: a real program with one disturbance at a seeded event of one rank."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import torch
from torch import Tensor

from refsim.base.jobs import named
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Activity

BLOCK_BYTES = 16 << 20
MOST_BLOCKS = 200
"""A rank that grows stops here, at 3.3 GB, should nobody stop it: the machine is not ours alone."""


def disturbed(
    device: Device,
    *,
    program: str,
    arguments: dict[str, Any],
    kind: str,
    rank: int,
    event: int,
    note: str,
    number: int,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run ``program``; ``rank`` meets ``kind`` at the ``event``-th thing it says (0: never).

    Just before, it writes to the file ``note`` when that is and what it was doing: what the report has to say.
    """
    report, count = device.report, 0

    def disturbing(activity: Activity) -> None:
        nonlocal count
        report(activity)
        count += 1
        if device.rank == rank and count == event:
            with open(note, "w", encoding="utf-8") as f:
                json.dump({"at": time.monotonic(), "text": str(activity)}, f)
            _disturb(kind, number)

    device.report = disturbing
    result, tensors = named(program)(device, **arguments)
    return {"result": result, "events": count}, tensors


def _disturb(kind: str, number: int) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exception":
        raise ValueError(f"planted {number}")
    elif kind == "exit":
        os._exit(number)
    elif kind == "hang":
        threading.Event().wait()
    elif kind == "busy":
        while True:
            pass
    elif kind == "delay":
        time.sleep(number / 100)
    elif kind == "memory_at_once":
        torch.ones(1 << 46)
    elif kind == "memory_growing":
        blocks = []
        while len(blocks) < MOST_BLOCKS:
            blocks.append(torch.ones(BLOCK_BYTES // 4))
            time.sleep(0.004)
        raise AssertionError("nobody stopped a rank that grew without bound")
