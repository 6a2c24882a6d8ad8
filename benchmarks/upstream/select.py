"""A pytest plugin that leaves out cases of tt_dit which another mesh or a day would be needed for; it counts them.

``-p benchmarks.upstream.select``: a case that asks for more than eight devices is another mesh's, and one of
``LARGE`` takes more than minutes of two CPU cores. ``UPSTREAM_LARGE=1`` runs the large ones and nothing else,
``UPSTREAM_GALAXY=1`` those for more than eight devices, without the large ones and those for Blackhole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DEVICES = 8
LARGE = (
    (r"wan_transformer.*\[.*(5b-720p|14b-480p|14b-720p)", "Wan2.2 at 24,800 to 75,600 tokens"),
    (r"wan_transformer_inner_step", "Wan2.2 at 32,760 tokens"),
    (r"wan_attention\[.*(5b-720p|14b-480p|14b-720p)", "Wan2.2's attention at 24,800 to 75,600 tokens"),
    (r"ring_joint_sdpa.*(wan_14b|mochi)", "ring attention at 32,760 to 75,600 tokens"),
    (r"mochi.*\[.*long_seq", "Mochi at 44,520 tokens"),
    (r"mochi.*large_latent", "the whole VAE of Mochi"),
    (r"test_wan_(de|en)coder\w*\[.*(\d\df|5f|720p)", "the whole VAE of Wan2.2 on 5 to 81 frames, or at 720p"),
    (r"test_wan_(de|en)coder_production", "the whole VAE of Wan2.2 on 7 latent frames"),
    (r"ltx_video_decoder.*(512x832|544x960|1088x)", "the whole VAE of LTX at 512 x 832 and more"),
    (r"test_linear\w*\[.*-(1x|4x|4k)(qkv|dense|ff|ssg|4k)", "a linear of 18,944 to 115,200 rows"),
    (r"linear.*\[.*mochi_spatial", "a linear of 44,520 rows"),
    (r"feedforward.*\[.*mochi_spatial", "a feed-forward of 44,520 rows"),
)
"""What a case's id looks like, and what is large about it."""


def devices_of(value: Any) -> int:
    """How many devices a value of the parameter ``mesh_device`` asks for; 1 where it says nothing."""
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return math.prod(value)
    return value if isinstance(value, int) else 1


def large(case: str) -> str:
    """Return what is large about a case, or an empty text."""
    return next((why for pattern, why in LARGE if re.search(pattern, case)), "")


def left_out(item: Any) -> str:
    """Why a pytest item is not for this run, or an empty text."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    many = devices_of(parameters.get("mesh_device")) > DEVICES
    if os.environ.get("UPSTREAM_GALAXY") == "1":
        if not many:
            return "eight devices or fewer"
        return "for Blackhole" if re.search(r"[-_\[]bh_?\d", item.nodeid) else large(item.nodeid)
    if many:
        return "more than eight devices"
    why = large(item.nodeid)
    if os.environ.get("UPSTREAM_LARGE") == "1":
        return "" if why else "not large"
    return why


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before the sample is drawn; ``UPSTREAM_LEFT_OUT`` names a file that gets the counts by reason."""
    reasons = [left_out(item) for item in items]
    config.hook.pytest_deselected(items=[item for item, why in zip(items, reasons, strict=True) if why])
    items[:] = [item for item, why in zip(items, reasons, strict=True) if not why]
    if path := os.environ.get("UPSTREAM_LEFT_OUT"):
        counted = Counter(why for why in reasons if why)
        Path(path).write_text(json.dumps(counted) + "\n", encoding="utf-8")
