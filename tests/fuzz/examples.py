"""The number of examples of a test: its own in the ordinary suite, thousands under ``nox -s fuzz``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

MANY = 1500


def examples(count: int) -> settings:
    """``count`` examples, always the same ones; with the profile ``fuzz`` ``MANY``, new ones every time."""
    if settings.default.max_examples == MANY:
        return settings.default
    everything = list(HealthCheck)
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=everything
    )
