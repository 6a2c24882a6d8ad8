"""What Python users call: attention on full tensors, a checkpoint, prompt to pictures, prompt to text.

Names are loaded on first use, so that importing one of them does not wait for the others.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "simulate_attention": "attention",
    "attention_result": "attention",
    "run": "model",
    "generate_images": "images",
    "generate_text": "text",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'refsim.api' has no attribute '{name}'")
    return getattr(importlib.import_module(f"refsim.api.{_HOME[name]}"), name)
