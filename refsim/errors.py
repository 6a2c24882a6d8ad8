"""Public name of :mod:`refsim.base.errors`."""

from refsim.base.errors import (
    CommError,
    HazardError,
    InvariantError,
    NotFiniteError,
    PlacementError,
    RankFailure,
    RefsimError,
    UserError,
    first_line,
)

__all__ = [
    "CommError",
    "HazardError",
    "InvariantError",
    "NotFiniteError",
    "PlacementError",
    "RankFailure",
    "RefsimError",
    "UserError",
    "first_line",
]
