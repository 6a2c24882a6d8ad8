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
from collections.abc import Callable
from dataclasses import dataclass, field
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
        found = [kind(word) for word in words.split(",") if word.strip()]
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise UserError(f"{option} '{words}' is not a list of numbers such as 1,2,4.")
    return sorted(set(found))


def measure(sizes: Sizes, *, say: Callable[[str], None] = print) -> Scale:
    """The three sweeps, a record a size, and what could not run."""
    found = Scale(sim.machine())

    def add(sweep: str, size: float, run: Callable[[], Any]) -> None:
        say(f"{sweep}: {size:g}")
        try:
            getattr(found, sweep).append(run())
        except (UserError, RankFailure) as error:
            found.could_not_run.append(Skipped(sweep, float(size), error.with_flags))
            say(f"could not run: {error.with_flags}")
        finally:
            launch.end_ranks()

    for point in sizes.ranks:
        add("ranks", point.ranks, lambda point=point: sim.measure(point, "ring", say=say))
    for point in sizes.rows:
        add("rows", point.rows, lambda point=point: sim.measure(point, "ring", say=say))
    for size in sizes.messages:
        add("messages", size / _MIB, lambda size=size: _message(size, sizes.repetitions, say))
    found.wrong = sum(not record.right or record.hazards > 0 for record in [*found.ranks, *found.rows])
    found.wrong += sum(not message.shifted.right for message in found.messages)
    return found


def _message(size: int, rounds: int, say: Callable[[str], None]) -> Message:
    times = max(shift.TIMES, min(_MOST_SHIFTS, _AT_ONCE // size))  # a small one takes too little time to be timed
    return Message(size / _MIB, shift.compare(RANKS, size, rounds, times=times, say=say))


def records(found: Scale) -> list[Any]:
    """All sizes in one list, with their sweep, for a CSV file."""
    sweeps = {name: getattr(found, name) for name in ("ranks", "rows", "messages")}
    return [{"sweep": name} | as_json(one) for name, of in sweeps.items() for one in of] + found.could_not_run


def write(found: Scale, out: Path) -> None:
    """Write ``scale.md`` and the plots it shows into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    names = [f"scale_{name}.svg" for name in ("ranks", "rows", "messages") if getattr(found, name)]
    for name in ("ranks", "rows"):
        if of := getattr(found, name):
            label = "ranks" if name == "ranks" else "tokens"
            title = f"ring attention, {ROWS} tokens" if name == "ranks" else f"ring attention, {RANKS} ranks"
            plots.lines(_seconds(of, name), out / f"scale_{name}.svg", xlabel=label, ylabel="s", title=title)
    if found.messages:
        speeds = {way: [(m.mib, m.shifted.gb_per_s[way]) for m in found.messages] for way in shift.WAYS}
        labels = {"xlabel": "MiB a rank", "ylabel": "GB/s, all ranks", "title": f"ring shift, {RANKS} ranks"}
        plots.lines(speeds, out / "scale_messages.svg", **labels)
    output.write(out / "scale.md", (markdown(found, names) + "\n").encode())


def _seconds(of: list[sim.Simulated], size: str) -> dict[str, list[tuple[float, float]]]:
    kinds = {"": "seconds", ", CPU": "cpu_seconds"}
    return {
        f"{who.replace('_', ' ')}{what}": [(getattr(record.setup, size), getattr(record, key)[who]) for record in of]
        for what, key in kinds.items()
        for who in ("one_process", "mesh")
    }


def markdown(found: Scale, plotted: list[str] | None = None) -> str:
    """The document: the machine, a table a sweep, and what could not run; ``plotted`` are files to show."""
    of = found.machine
    text = [
        "# What it costs to play a mesh, by size\n",
        f"Written by `refsim bench scale --out DIR` on {of.measured}: {of.arch}, {of.cores} cores, "
        f"{of.memory_gib} GiB, torch {of.torch} with {of.threads} threads in one process. Ranks share these "
        "cores. Medians of repetitions in turn; a ratio is the median over *pairs*, its range in brackets. *error*: "
        "RMSE against float64 over the standard deviation of what is true; an answer is right up to "
        f"{sim.WORST:g} times the error of one process. *load*: processes that ran or waited in the minute before.\n",
    ]
    if found.ranks:
        text += [f"## Ring attention of {ROWS} tokens, by ranks\n", _attention(found.ranks, "ranks") + "\n"]
    if found.rows:
        text += [f"## Ring attention on {RANKS} ranks, by tokens\n", _attention(found.rows, "rows") + "\n"]
    if found.messages:
        text += [f"## A ring shift on {RANKS} ranks, by MiB that each hands on\n", _shifts(found.messages) + "\n"]
    if found.could_not_run:
        rows = [(skipped.sweep, f"{skipped.size:g}", skipped.sentence) for skipped in found.could_not_run]
        text += ["## Could not run\n", as_markdown(rows, ("sweep", "size", "why")) + "\n"]
    text += [f"![{name.removesuffix('.svg')}]({name})\n" for name in plotted or []]
    return "\n".join(text).rstrip("\n")


def _attention(of: list[sim.Simulated], size: str) -> str:
    first = of[0].setup
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
        for record in of
    )
    setup = f"{first.heads} heads of {first.head_dim}, {first.dtype}, {first.math} math.\n\n"
    return setup + as_markdown(frame.itertuples(index=False), frame.columns, "r" * 9 + "lr")


def _shifts(of: list[Message]) -> str:
    frame = pd.DataFrame(
        {
            "MiB": f"{mib:g}",
            **{f"{way} ms": f"{1e3 * record.seconds[way]:.3f}" for way in shift.WAYS},
            "shared over gloo": _ratio(*_spread(record.times_gloo)),
            "shared of a copy": _ratio(*_spread(record.of_copy), number="{:.0%}"),
            "right": _verdict(record.right),
        }
        for mib, record in ((message.mib, message.shifted) for message in of)
    )
    return as_markdown(frame.itertuples(index=False), frame.columns, "r" * 6 + "l")


def _ratio(ratio: float, low: float, high: float, *, number: str = "{:.2f}") -> str:
    """A ratio and its range; of one measurement there is no range."""
    return f"{number} ({number} to {number})".format(ratio, low, high) if low < high else number.format(ratio)


def _spread(ratio: shift.Ratio) -> list[float]:
    return [ratio.ratio, *ratio.range]


def _verdict(right: bool, hazards: int = 0) -> str:
    if not right:
        return "WRONG"
    return f"{hazards} HAZARDS" if hazards else "yes"
