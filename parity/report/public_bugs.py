"""Bugs that users of parallel diffusion models met in public, each with what replays it here, if anything does.

A replay is a buffer policy (``refsim schedules policy``, proved unsafe), a fault of the corpus (``refsim faults run``,
caught or the session fails), or a hazard program of the tests. ``python -m parity.report.public_bugs`` prints the
table of ``docs/public_bugs.md``. What has no replay says why: it is not found here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from refsim.files.tables import as_markdown

Kind = Literal["policy", "fault", "program", ""]


@dataclass(frozen=True)
class PublicBug:
    """One public thread.

    Attributes:
        thread: where it is told.
        what: what happened, in one clause.
        kind: what sort of replay there is; empty if there is none.
        replay: its name: of a policy, of a fault, of a program in ``tests/refsim/hazard_programs.py``.
        note: what finds it, or why nothing here does.
    """

    thread: str
    what: str
    kind: Kind
    replay: str
    note: str


_POLICY = "happens-before, search and schedules"
_METRIC = "the parity metrics"
BUGS = (
    PublicBug(
        "tt-metal #57458",
        "all-gather + matmul writes into memory that the operation before still reads on a lagging device",
        "policy",
        "fused",
        _POLICY,
    ),
    PublicBug(
        "tt-metal #57458 (its test)",
        "the memory is freed on the host while a device still reads it, and the next buffer gets it",
        "program",
        "old_handle_read",
        "release-in-use, which names the next owner",
    ),
    PublicBug(
        "tt-metal PR #54812",
        "the wait for the second half of a split ring's last shard never blocks",
        "policy",
        "no_wait",
        _POLICY,
    ),
    PublicBug(
        "tt-metal PR #53053",
        "the same wait counts the local shard among the arrivals",
        "fault",
        "arrival-not-awaited",
        _METRIC,
    ),
    PublicBug(
        "tt-metal PR #38374", "ping-pong buffers are used before they are filled", "fault", "wrong-buffer-read", _METRIC
    ),
    PublicBug(
        "tt-metal PR #38256",
        "on two devices a worker expects a slice that nobody sends",
        "fault",
        "semaphore-never-reached",
        "refused: a semaphore is never reached",
    ),
    PublicBug(
        "tt-metal PR #51774",
        "a persistent buffer of a reduce-scatter has the wrong shape",
        "fault",
        "ttnn-stale-buffer",
        "the rows of another gather show in the metrics",
    ),
    PublicBug(
        "tt-metal #46083",
        "after a refactor the guidance branches run in turn, bit-identical and twice as slow",
        "fault",
        "cfg-branches-in-turn",
        "the trace",
    ),
    PublicBug(
        "tt-metal #46971, #46772", "gather and attention no longer overlap", "fault", "overlap-lost", "the trace"
    ),
    PublicBug(
        "tt-metal #36045", "the PCC of a block falls from 99.9997 to 99.9610", "fault", "reduced-in-bf16", _METRIC
    ),
    PublicBug(
        "tt-metal known-issues.md",
        "columns of padding have no mask in neighbor_pad and go into the convolutions",
        "fault",
        "padding-not-masked",
        _METRIC,
    ),
    PublicBug(
        "tt-forge-models PR #772, #806",
        "a fused QKV is cut without giving each device its own q, k and v",
        "fault",
        "qkv-reshuffle-omitted",
        _METRIC,
    ),
    PublicBug("tt-xla #5995", "T5 attends to padding, PCC 0.81", "fault", "ttnn-padding-mask-omitted", _METRIC),
    PublicBug(
        "diffusers #12568",
        "the length of the text is that of the padded one under context parallelism",
        "fault",
        "prompt-padding-attended",
        _METRIC,
    ),
    PublicBug("diffusers #13277", "masks of a batch are ignored", "fault", "padding-attended", _METRIC),
    PublicBug(
        "diffusers #12567",
        "the last frames are noise under Ulysses",
        "fault",
        "padding-attended-by-ulysses",
        _METRIC,
    ),
    PublicBug("sglang PR #33353", "the ring never rotates", "fault", "own-shard-every-step", _METRIC),
    PublicBug("sglang PR #33327", "the text is counted twice", "fault", "joint-counted-twice", _METRIC),
    PublicBug(
        "sglang PR #16532",
        "groups of sequence parallelism are wrong under tensor parallelism",
        "fault",
        "factors-on-the-wrong-axis",
        "the trace",
    ),
    PublicBug("tt-metal PR #40176", "a cached program keeps old runtime arguments", "", "", "kernels are not run"),
    PublicBug("tt-metal #46697", "a trace does not fit its region", "", "", "no size of a trace is known here"),
    PublicBug("tt-metal #45882, PR #50160", "a threshold is raised over a regression", "", "", "a matter of history"),
    PublicBug(
        "tt_dit MiniMaxH3_rows_per_device_mismatch.md",
        "tuned tables are keyed on lengths that never run",
        "",
        "",
        "nothing compares a table's keys with what runs",
    ),
)


def found() -> list[PublicBug]:
    """Return those that a replay shows."""
    return [bug for bug in BUGS if bug.kind]


def markdown() -> str:
    """Return the generated part of ``docs/public_bugs.md``."""
    names = {"policy": "policy", "fault": "fault", "program": "hazard program", "": "not found"}
    rows = (
        (bug.thread, bug.what, f"{names[bug.kind]} `{bug.replay}`" if bug.kind else names[""], bug.note) for bug in BUGS
    )
    table = as_markdown(rows, ("thread", "what happened", "replayed as", "by what, or why not"))
    return f"**{len(found())} of {len(BUGS)} are found.**\n\n{table}\n"


if __name__ == "__main__":
    print(markdown(), end="")
