"""What can go wrong, by whose hand: the user's (exit code 2) or a rank's (exit code 1)."""

from __future__ import annotations


class RefsimError(Exception):
    """Base of every error this package raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1


class UserError(RefsimError):
    """A mistake the user can correct: one sentence that says what, where, and what would work."""

    exit_code = 2


class PlacementError(RefsimError):
    """A sharded tensor met an operation that needs another placement."""


class HazardError(RefsimError):
    """A device buffer was touched while another party still owned it."""


class CommError(RefsimError):
    """A transfer failed or timed out; names the peer, so that the culprit can be told from its victims."""

    def __init__(self, message: str, *, peer: int) -> None:
        super().__init__(message)
        self.peer = peer


class RankFailure(RefsimError):
    """A rank died, raised or hung; the run was ended. Names rank, operation and reason."""

    def __init__(self, message: str, *, rank: int, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback
