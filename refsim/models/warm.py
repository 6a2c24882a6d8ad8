"""Imports the classes of the project's own models: for the process that ranks are forked from, so that none waits."""

from __future__ import annotations

from refsim.models import registry

for _spec in registry.own():
    _ = _spec.model_class, _spec.config_class
