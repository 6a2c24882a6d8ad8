"""Programs of ttnn's cache that are run for arguments they were not built for, because the cache's key lacks one."""

from __future__ import annotations

from collections.abc import Iterator

from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog


def cached(log: EventLog) -> Iterator[Finding]:
    """Find calls that run the program of an earlier call with other arguments, which are baked into it."""
    for event in log.events:
        for reuse in event.reused:
            differs = ", ".join(f"{name} ({new} here, {old} there)" for name, old, new in reuse.differs)
            yield Finding.of(
                "cached-program", event,
                f"{event.op} runs the program that ttnn built for {reuse.op} ({reuse.where}), as ttnn's key of "
                f"programs lacks {differs}: a device does what that call asked for. Call clear_program_cache() of the "
                "mesh in between, or make both calls alike.",
            )  # fmt: skip
