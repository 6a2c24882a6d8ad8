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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from benchmarks import shift, sim
from refsim.base.errors import RankFailure, UserError
from refsim.files import output
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


def measure(sizes: Sizes, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """The three sweeps, a record a size, and what could not run; ``wrong`` counts results that are not right."""
    found: dict[str, Any] = {"machine": sim.machine(), "ranks": [], "rows": [], "messages": []}
    skipped: list[dict[str, Any]] = []

    def add(sweep: str, size: float, run: Callable[[], dict[str, Any]]) -> None:
        say(f"{sweep}: {size:g}")
        try:
            found[sweep].append(run())
        except (UserError, RankFailure) as error:
            skipped.append({"sweep": sweep, "size": float(size), "sentence": error.with_flags})
            say(f"could not run: {error.with_flags}")
        finally:
            launch.end_ranks()

    for point in sizes.ranks:
        add("ranks", point.ranks, lambda point=point: sim.measure(point, "ring", say=say))
    for point in sizes.rows:
        add("rows", point.rows, lambda point=point: sim.measure(point, "ring", say=say))
    for size in sizes.messages:
        add("messages", size / _MIB, lambda size=size: _message(size, sizes.repetitions, say))
    done = [*found["ranks"], *found["rows"], *found["messages"]]
    wrong = sum(not record["right"] or record.get("hazards", 0) > 0 for record in done)
    return found | {"could_not_run": skipped, "wrong": wrong}


def _message(size: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    times = max(shift.TIMES, min(_MOST_SHIFTS, _AT_ONCE // size))  # a small one takes too little time to be timed
    return {"mib": size / _MIB} | shift.compare(RANKS, size, rounds, times=times, say=say)


def records(found: dict[str, Any]) -> list[dict[str, Any]]:
    """All sizes in one list, with their sweep, for a CSV file."""
    sweeps = [{"sweep": name} | record for name in ("ranks", "rows", "messages") for record in found[name]]
    return sweeps + found["could_not_run"]


def write(found: dict[str, Any], out: Path) -> None:
    """Write ``scale.md`` and the plots it shows into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    names = [f"scale_{name}.svg" for name in ("ranks", "rows", "messages") if found[name]]
    for name in ("ranks", "rows"):
        if found[name]:
            label = "ranks" if name == "ranks" else "tokens"
            title = f"ring attention, {ROWS} tokens" if name == "ranks" else f"ring attention, {RANKS} ranks"
            plots.lines(_seconds(found[name], name), out / f"scale_{name}.svg", xlabel=label, ylabel="s", title=title)
    if found["messages"]:
        speeds = {way: [(record["mib"], record["gb_per_s"][way]) for record in found["messages"]] for way in shift.WAYS}
        labels = {"xlabel": "MiB a rank", "ylabel": "GB/s, all ranks", "title": f"ring shift, {RANKS} ranks"}
        plots.lines(speeds, out / "scale_messages.svg", **labels)
    output.write(out / "scale.md", (markdown(found, names) + "\n").encode())


def _seconds(of: list[dict[str, Any]], size: str) -> dict[str, list[tuple[float, float]]]:
    kinds = {"": "seconds", ", CPU": "cpu_seconds"}
    return {
        f"{who.replace('_', ' ')}{what}": [(record[size], record[key][who]) for record in of]
        for what, key in kinds.items()
        for who in ("one_process", "mesh")
    }


def markdown(found: dict[str, Any], plotted: list[str] | None = None) -> str:
    """The document: the machine, a table a sweep, and what could not run; ``plotted`` are files to show."""
    of = found["machine"]
    text = [
        "# What it costs to play a mesh, by size\n",
        f"Written by `refsim bench scale --out DIR` on {of['measured']}: {of['arch']}, {of['cores']} cores, "
        f"{of['memory_gib']} GiB, torch {of['torch']} with {of['threads']} threads in one process. Ranks share these "
        "cores. Medians of repetitions in turn; a ratio is the median over *pairs*, its range in brackets. *error*: "
        "RMSE against float64 over the standard deviation of what is true; an answer is right up to "
        f"{sim.WORST:g} times the error of one process. *load*: processes that ran or waited in the minute before.\n",
    ]
    if found["ranks"]:
        text += [f"## Ring attention of {ROWS} tokens, by ranks\n", _attention(found["ranks"], "ranks") + "\n"]
    if found["rows"]:
        text += [f"## Ring attention on {RANKS} ranks, by tokens\n", _attention(found["rows"], "rows") + "\n"]
    if found["messages"]:
        text += [f"## A ring shift on {RANKS} ranks, by MiB that each hands on\n", _shifts(found["messages"]) + "\n"]
    if skipped := found["could_not_run"]:
        rows = [(record["sweep"], f"{record['size']:g}", record["sentence"]) for record in skipped]
        text += ["## Could not run\n", as_markdown(rows, ("sweep", "size", "why")) + "\n"]
    text += [f"![{name.removesuffix('.svg')}]({name})\n" for name in plotted or []]
    return "\n".join(text).rstrip("\n")


def _attention(of: list[dict[str, Any]], size: str) -> str:
    first = of[0]
    frame = pd.DataFrame(
        {
            size: record[size],
            "pairs": record["repetitions"],
            "one process s": f"{record['seconds']['one_process']:.3f}",
            "mesh s": f"{record['seconds']['mesh']:.3f}",
            "times": _ratio(record["ratio"], *record["ratio_range"]),
            "CPU s": f"{record['cpu_seconds']['mesh']:.3f}",
            "times CPU s": f"{record['cpu_ratio']:.2f}",
            "error": f"{record['rel_rmse']['mesh']:.1e}",
            "of one process": f"{record['rel_rmse']['one_process']:.1e}",
            "right": _verdict(record),
            "load": f"{record['load_before']:.1f}",
        }
        for record in of
    )
    setup = f"{first['heads']} heads of {first['head_dim']}, {first['dtype']}, {first['math']} math.\n\n"
    return setup + as_markdown(frame.itertuples(index=False), frame.columns, "r" * 9 + "lr")


def _shifts(of: list[dict[str, Any]]) -> str:
    frame = pd.DataFrame(
        {
            "MiB": f"{record['mib']:g}",
            **{f"{way} ms": f"{1e3 * record['seconds'][way]:.3f}" for way in shift.WAYS},
            "shared over gloo": _ratio(*_spread(record["times_gloo"])),
            "shared of a copy": _ratio(*_spread(record["of_copy"]), number="{:.0%}"),
            "right": _verdict(record),
        }
        for record in of
    )
    return as_markdown(frame.itertuples(index=False), frame.columns, "r" * 6 + "l")


def _ratio(ratio: float, low: float, high: float, *, number: str = "{:.2f}") -> str:
    """A ratio and its range; of one measurement there is no range."""
    return f"{number} ({number} to {number})".format(ratio, low, high) if low < high else number.format(ratio)


def _spread(ratio: dict[str, Any]) -> list[float]:
    return [ratio["ratio"], *ratio["range"]]


def _verdict(record: dict[str, Any]) -> str:
    if not record["right"]:
        return "WRONG"
    return f"{record['hazards']} HAZARDS" if record.get("hazards") else "yes"
