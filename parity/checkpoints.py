"""Public name of :mod:`parity.cases.checkpoints`, for packages that add a model."""

from parity.cases.checkpoints import DRAFTER, MODELS, RandomModel, quiet, register

__all__ = ["DRAFTER", "MODELS", "RandomModel", "quiet", "register"]
