"""Public name of :mod:`parity.cases.oracles`, for packages that add a model."""
