"""A pytest plugin: published configurations, uncut, for ``--ttnn-mock-weights random`` on tests of tt_dit.

``pytest -p benchmarks.upstream.full --ttnn-mock galaxy --ttnn-mock-values off --ttnn-mock-weights random THEIR_TESTS``
runs models at full depth and published widths, without a download: shapes and memory, no values.
"""

from __future__ import annotations

from typing import Any

import diffusers.models.modeling_utils  # noqa: F401 - before the stand-in: libraries look for torchvision themselves
import transformers.modeling_utils  # noqa: F401 - likewise

from benchmarks.upstream.published import published
from benchmarks.upstream.stand_ins import forget, stand_in_for_torchvision
from tt_impl.harness import weights


def _of_this_project(cls: type, name: str, subfolder: str) -> dict[str, Any] | None:
    return published(cls.__name__, f"{name} {subfolder}".strip())


weights.SOURCES.append(_of_this_project)
_stand_ins = stand_in_for_torchvision()


def pytest_collection() -> None:
    """All conftests above the tests are imported by now."""
    forget(_stand_ins)
