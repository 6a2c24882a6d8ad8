"""Readies the project's own models: for the process that ranks are forked from, so that none of them waits.

Their classes are imported, and the checks of their configs made, each of which takes pydantic milliseconds.
"""

from __future__ import annotations

from refsim.base import schema
from refsim.models import registry

for _spec in registry.builtin():
    _ = _spec.model_class
    schema.prepare(_spec.config_class)
