"""Public name of :mod:`parity.cases.oracles.base`."""

from parity.cases.oracles.base import Oracle, patches

__all__ = ["Oracle", "patches"]
