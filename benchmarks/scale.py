"""How the cost of playing a mesh grows: with its ranks, with the tokens, and with the size of a message.

    ranks       ring attention of 4096 tokens on 1, 2, 4 ... 128 ranks, beside one process that has the same cores
    rows        ring attention on 8 ranks of more and more tokens, beside one process
    messages    a ring shift on 8 ranks by both transports, beside a plain copy

Each point is one of ``refsim bench sim`` or ``refsim bench shift``: in turn, medians over repetitions, whether the
result is right beside its time. More than 16384 tokens are measured by one pair, since a pair takes minutes. The ranks
of one size are ended before the next. A size that cannot run is listed with the sentence that says why.

``refsim bench scale --out reports/sim``
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from benchmarks import shift, sim
from refsim.base.errors import RankFailure, UserError
from refsim.files import output
from refsim.files.keys import Beside, Document, as_json
from refsim.files.tables import as_markdown
from refsim.runtime import launch
from refsim.timing.report import plots

SWEEPS = ("ranks", "rows", "messages")
RANKS = 8
ROWS = 4096
MOST_ROWS_REPEATED = 16384
"""Attention of more tokens is measured once: its cost grows with their square, to minutes a pair at 65536."""
_MIB = 2**20
_AT_ONCE = 16 * _MIB
_MOST_SHIFTS = 64


@dataclass(frozen=True)
class Point(sim.Setup):
    """As a benchmark's setup; one rank is a mesh, too."""

    fewest_ranks: ClassVar[int] = 1


@dataclass
class Message:
    """A ring shift of ``mib`` MiB a rank."""

    mib: float
    shifted: Beside[shift.Shifted]


@dataclass
class Skipped:
    """A size that could not run.

    Attributes:
        sentence: Why.
    """

    sweep: str
    size: float
    sentence: str


@dataclass
class Scale(Document):
    """Ring attention by ranks and by rows, and a ring shift by the size of its message.

    Attributes:
        wrong: Results that are not right, or with hazards.
    """

    machine: sim.Machine
    ranks: list[sim.Simulated] = field(default_factory=list)
    rows: list[sim.Simulated] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    could_not_run: list[Skipped] = field(default_factory=list)
    wrong: int = 0


@dataclass(frozen=True)
class Sizes:
    """What is measured: setups by ranks and by rows, bytes of messages, and how often each message."""

    ranks: tuple[Point, ...]
    rows: tuple[Point, ...]
    messages: tuple[int, ...]
    repetitions: int

    @classmethod
    def parse(cls, ranks: str, rows: str, mib: str, repetitions: int) -> Sizes:
        """Read numbers with commas between them; ``UserError`` for what is no number, too small or too large."""
        messages = tuple(round(x * _MIB) // 4 * 4 for x in _numbers(mib, float, "--mib"))
        if any(size < 4 for size in messages):
            raise UserError(f"--mib '{mib}' has a message of less than 4 bytes; choose larger ones.")
        return cls(
            tuple(Point(ranks=n, rows=ROWS, repetitions=repetitions) for n in _numbers(ranks, int, "--ranks")),
            tuple(
                Point(ranks=RANKS, rows=n, repetitions=repetitions if n <= MOST_ROWS_REPEATED else 1)
                for n in _numbers(rows, int, "--rows")
            ),
            messages,
            repetitions,
        )


def _numbers(words: str, kind: Callable[[str], Any], option: str) -> list[Any]:
    try:
        numbers = [kind(word) for word in words.split(",") if word.strip()]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{option} '{words}' is not a list of numbers such as 1,2,4.")
    return sorted(set(numbers))


def measure(sizes: Sizes, *, say: Callable[[str], None] = print) -> Scale:
    """Run the three sweeps: a record a size, and what could not run."""
    scale = Scale(sim.machine())

    def add(sweep: str, size: float, run: Callable[[], Any]) -> None:
        say(f"{sweep}: {size:g}")
        try:
            getattr(scale, sweep).append(run())
        except (UserError, RankFailure) as error:
            scale.could_not_run.append(Skipped(sweep, float(size), error.with_flags))
            say(f"could not run: {error.with_flags}")
        finally:
            launch.end_ranks()

    for sweep, points in (("ranks", sizes.ranks), ("rows", sizes.rows)):
        for point in points:
            add(sweep, getattr(point, sweep), partial(sim.measure, point, "ring", say=say))
    for size in sizes.messages:
        add("messages", size / _MIB, partial(_message, size, sizes.repetitions, say))
    scale.wrong = sum(not record.right or record.hazards > 0 for record in [*scale.ranks, *scale.rows])
    scale.wrong += sum(not message.shifted.right for message in scale.messages)
    return scale


def _message(size: int, rounds: int, say: Callable[[str], None]) -> Message:
    times = max(shift.TIMES, min(_MOST_SHIFTS, _AT_ONCE // size))  # a small one takes too little time to be timed
    return Message(size / _MIB, shift.compare(RANKS, size, rounds, times=times, say=say))


def records(scale: Scale) -> list[Any]:
    """Return all sizes in one list, with their sweep, for a CSV file."""
    return [{"sweep": name} | as_json(one) for name in SWEEPS for one in getattr(scale, name)] + scale.could_not_run


def write(scale: Scale, out: Path) -> None:
    """Write ``scale.md`` and the plots it shows into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    names = [f"scale_{name}.svg" for name in SWEEPS if getattr(scale, name)]
    for name, label, fixed in (("ranks", "ranks", f"{ROWS} tokens"), ("rows", "tokens", f"{RANKS} ranks")):
        if points := getattr(scale, name):
            title = f"ring attention, {fixed}"
            plots.lines(_seconds(points, name), out / f"scale_{name}.svg", xlabel=label, ylabel="s", title=title)
    if scale.messages:
        speeds = {way: [(m.mib, m.shifted.gb_per_s[way]) for m in scale.messages] for way in shift.WAYS}
        labels = {"xlabel": "MiB a rank", "ylabel": "GB/s, all ranks", "title": f"ring shift, {RANKS} ranks"}
        plots.lines(speeds, out / "scale_messages.svg", **labels)
    output.write(out / "scale.md", (markdown(scale, names) + "\n").encode())


def _seconds(points: list[sim.Simulated], size: str) -> dict[str, list[tuple[float, float]]]:
    kinds = {"": "seconds", ", CPU": "cpu_seconds"}
    return {
        f"{who.replace('_', ' ')}{what}": [(getattr(one.setup, size), getattr(one, key)[who]) for one in points]
        for what, key in kinds.items()
        for who in ("one_process", "mesh")
    }


def markdown(scale: Scale, plotted: Sequence[str] = ()) -> str:
    """Return the document: the machine, a table a sweep, and what could not run; ``plotted`` are files to show."""
    machine = scale.machine
    skipped = [(skipped.sweep, f"{skipped.size:g}", skipped.sentence) for skipped in scale.could_not_run]
    text = [
        "# What it costs to play a mesh, by size\n",
        f"Written by `refsim bench scale --out DIR` on {machine.measured}: {machine.arch}, {machine.cores} cores, "
        f"{machine.memory_gib} GiB, torch {machine.torch} with {machine.threads} threads in one process. Ranks share "
        "these cores. Medians of repetitions in turn; a ratio is the median over *pairs*, its range in brackets. "
        "*error*: RMSE against float64 over the standard deviation of what is true; an answer is right up to "
        f"{sim.WORST:g} times the error of one process. *load*: processes that ran or waited in the minute before.\n",
    ]
    if scale.ranks:
        text += [f"## Ring attention of {ROWS} tokens, by ranks\n", _attention(scale.ranks, "ranks") + "\n"]
    if scale.rows:
        text += [f"## Ring attention on {RANKS} ranks, by tokens\n", _attention(scale.rows, "rows") + "\n"]
    if scale.messages:
        text += [f"## A ring shift on {RANKS} ranks, by MiB that each hands on\n", _shifts(scale.messages) + "\n"]
    if skipped:
        text += ["## Could not run\n", as_markdown(skipped, ("sweep", "size", "why")) + "\n"]
    text += [f"![{name.removesuffix('.svg')}]({name})\n" for name in plotted]
    return "\n".join(text).rstrip("\n")


def _attention(points: list[sim.Simulated], size: str) -> str:
    first = points[0].setup
    frame = pd.DataFrame(
        {
            size: getattr(record.setup, size),
            "pairs": record.setup.repetitions,
            "one process s": f"{record.seconds['one_process']:.3f}",
            "mesh s": f"{record.seconds['mesh']:.3f}",
            "times": _ratio(record.ratio, *record.ratio_range),
            "CPU s": f"{record.cpu_seconds['mesh']:.3f}",
            "times CPU s": f"{record.cpu_ratio:.2f}",
            "error": f"{record.rel_rmse['mesh']:.1e}",
            "of one process": f"{record.rel_rmse['one_process']:.1e}",
            "right": _verdict(record.right, record.hazards),
            "load": f"{record.load_before:.1f}",
        }
        for record in points
    )
    setup = f"{first.heads} heads of {first.head_dim}, {first.dtype}, {first.math} math.\n\n"
    return setup + as_markdown(frame.itertuples(index=False), frame.columns, "r" * 9 + "lr")


def _shifts(messages: list[Message]) -> str:
    frame = pd.DataFrame(
        {
            "MiB": f"{mib:g}",
            **{f"{way} ms": f"{1e3 * record.seconds[way]:.3f}" for way in shift.WAYS},
            "shared over gloo": _ratio(record.times_gloo.ratio, *record.times_gloo.range),
            "shared of a copy": _ratio(record.of_copy.ratio, *record.of_copy.range, number="{:.0%}"),
            "right": _verdict(record.right),
        }
        for mib, record in ((message.mib, message.shifted) for message in messages)
    )
    return as_markdown(frame.itertuples(index=False), frame.columns, "r" * 6 + "l")


def _ratio(ratio: float, low: float, high: float, *, number: str = "{:.2f}") -> str:
    """Return a ratio and its range; of one measurement there is no range."""
    return f"{number} ({number} to {number})".format(ratio, low, high) if low < high else number.format(ratio)


def _verdict(right: bool, hazards: int = 0) -> str:
    if not right:
        return "WRONG"
    return f"{hazards} HAZARDS" if hazards else "yes"
