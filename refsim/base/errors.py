"""What can go wrong, by whose hand: the user's (exit code 2) or a rank's (exit code 1)."""

from __future__ import annotations

import re

_OPTION = re.compile(
    r"(?P<literal>`[^`]*`|(?<!\w)'[^']*')"  # a command, or what a user gave
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?: (?P<value>\d[\d.]*\b|[A-Z][A-Z_]+\b))?"
)


class RefsimError(Exception):
    """Base of every error this package raises on purpose; ``exit_code`` is what the command line returns.

    A message is written with the command line's flags (``--guidance-2``). ``str`` names them as Python's keywords
    (``guidance_2``), because whoever calls from Python has no flags.
    """

    exit_code = 1

    @property
    def with_flags(self) -> str:
        """The message as the command line says it."""
        return super().__str__()

    def __str__(self) -> str:
        return _OPTION.sub(_keyword, self.with_flags)


def _keyword(match: re.Match[str]) -> str:
    if match["literal"]:
        return match["literal"]
    return match["name"].replace("-", "_") + (f"={match['value']}" if match["value"] else "")


class UserError(RefsimError):
    """A mistake the user can correct: one sentence that says what, where, and what would work."""

    exit_code = 2


class PlacementError(RefsimError):
    """A sharded tensor met an operation that needs another placement."""


class HazardError(RefsimError):
    """A device buffer was touched while another party still owned it."""


class InvariantError(RefsimError):
    """Something that holds in every correct run did not hold."""


class NotFiniteError(RefsimError):
    """An answer holds NaN or infinity."""


class CommError(RefsimError):
    """A transfer failed; ``peer`` and whether it ``timed_out`` tell the culprit from its victims."""

    def __init__(self, message: str, *, peer: int, timed_out: bool = False) -> None:
        super().__init__(message)
        self.peer = peer
        self.timed_out = timed_out


class DivergedError(RefsimError):
    """Two ranks of a group call differently, or with another dtype, shape or root; ``peer`` is the other rank."""

    def __init__(self, message: str, *, peer: int) -> None:
        super().__init__(message)
        self.peer = peer


class RankFailure(RefsimError):
    """A rank died, raised or hung, and the run was ended; the message names rank, step, collective, peer and reason.

    Attributes:
        rank: who failed first; -1 if it was none of the ranks.
        last_events: per rank, its last events before the end, oldest first: (seconds before the end, text).
        reported: whether another process reports the failure already (torchrun's ranks).
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        traceback: str = "",
        last_events: dict[int, list[tuple[float, str]]] | None = None,
        reported: bool = False,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.reported = reported
        self.traceback = traceback
        self.last_events = last_events or {}

    def events_table(self, count: int = 3) -> str:
        """Return the last ``count`` events of every rank, one a line; empty where none are known."""
        lines = [
            f"  rank {rank:<3} {-age:9.3f} s  {text}\n"
            for rank, events in sorted(self.last_events.items())
            for age, text in events[-count:]
        ]
        return "last events of every rank, in seconds before the end:\n" + "".join(lines) if lines else ""


def first_line(error: BaseException) -> str:
    """Return the beginning of an error of a library, which may go on for pages."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return lines[0][:200].rstrip(".:")
