"""refsim: run every parallel scheme of a diffusion transformer on CPU, one process per mesh device.

Public names are loaded on first use, so that ``refsim --help`` does not wait for torch.
"""

from __future__ import annotations

import logging
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "RunOptions",
    "generate_images",
    "generate_text",
    "get_mesh",
    "load_results",
    "parallelize",
    "parse_parallel",
    "run",
    "simulate_attention",
]

_HOME = {
    "RunOptions": "refsim.base.options",
    "generate_images": "refsim.api",
    "generate_text": "refsim.api",
    "run": "refsim.api",
    "simulate_attention": "refsim.api",
    "parallelize": "refsim.integrations.diffusers",
    "get_mesh": "refsim.base.mesh",
    "load_results": "refsim.results",
    "parse_parallel": "refsim.base.config",
}


def _keeps(record: logging.LogRecord) -> bool:
    """Whether a message of transformers concerns anyone here: that torchvision is not there does not, on any rank."""
    return "requires torchvision (not installed)" not in record.getMessage()


logging.getLogger("transformers.utils.import_utils").addFilter(_keeps)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'refsim' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
