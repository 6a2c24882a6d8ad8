"""What ``refsim run`` is asked for of a pipeline; apart, because reading it loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """A folder of pictures, prompts one by one, which checks, a summary in JSON."""

    out: Path
    interactive: bool
    check: bool
    against: Any  # parity.cases.Layout, or None
    as_json: bool
