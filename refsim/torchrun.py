"""Whether torchrun started this process, which then is a rank already."""

from __future__ import annotations

import os


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def is_main() -> bool:
    """Whether this process reports to the user (always, but for torchrun's ranks above 0)."""
    return not under_torchrun() or int(os.environ["RANK"]) == 0
