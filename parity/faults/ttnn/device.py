"""``ttnn``, which is imported when a fault first uses it: without it faults can still be listed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Ttnn:
    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("ttnn"), name)


ttnn = _Ttnn()
