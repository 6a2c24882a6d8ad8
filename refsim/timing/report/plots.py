"""Draw SVG plots that are the same bytes every time: fixed hash salt, no date, no fonts of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files import output


def _figure(rows: int, columns: int, width: float = 4.6, height: float = 3.6) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("the plots need matplotlib; install it with `pip install matplotlib`.") from error
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "refsim", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)


def _save(figure: Any, path: Path, *, below: float = 0.0) -> None:
    """Write the figure; ``below`` is the share of the height that is left free at the bottom."""
    from matplotlib import pyplot

    figure.tight_layout(rect=(0, below, 1, 1))
    save = partial(figure.savefig, format="svg", metadata={"Date": None, "Creator": "refsim"})
    output.write(path, save)
    pyplot.close(figure)


def _log(axis: Any) -> None:
    """Make an axis logarithmic, with 1, 2 and 5 of each decade written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class System:
    """One line of :func:`systems`: seconds of denoising as expected and at the roofline; ``whole``: of the whole
    pipeline as expected and as published, where it is.
    """

    name: str
    expected: float
    desired: float
    whole: tuple[float, float] | None


def systems(rows: dict[str, list[System]], path: Path) -> None:
    """Draw a line a system of each model: denoising beside its roofline, the published time beside the expected one."""
    most = max(map(len, rows.values()))
    figure, axes = _figure(-(-len(rows) // 2), 2, 5.4, 0.2 * most + 1.3)
    for axis, (name, of_model) in zip(axes.flat, rows.items(), strict=False):
        places = list(range(len(of_model)))
        expected = [r.expected for r in of_model]
        desired = [r.desired for r in of_model]
        axis.hlines(places, desired, expected, color="grey", linewidth=1.5)
        axis.plot(desired, places, "s", color="C1", markersize=5, label="denoising, desired (roofline)")
        axis.plot(expected, places, "o", color="C0", markersize=6, label="denoising, expected")
        if whole := [(*r.whole, i) for i, r in enumerate(of_model) if r.whole]:
            ours, theirs, at = zip(*whole, strict=True)
            axis.plot(ours, at, "D", color="C0", fillstyle="none", markersize=6, label="as published was run, expected")
            axis.plot(theirs, at, "kD", markersize=4, label="published")
        axis.set_yticks(places, [r.name for r in of_model], fontsize=7)
        axis.set_ylim(most - 0.5, -0.7)
        axis.set(xscale="log", xlabel="s", title=name)
        _log(axis.xaxis)
        axis.grid(axis="x", alpha=0.3)
        axis.legend(fontsize=7, loc="best")
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    _save(figure, path)


def scaling(lines: dict[str, list[tuple[int, float, float]]], path: Path) -> None:
    """Draw devices against expected and desired seconds per step by model, log-log; grey beyond real systems."""
    figure, axes = _figure(1, max(len(lines), 1))
    for axis, (name, points) in zip(axes[0], lines.items(), strict=False):
        devices = [p[0] for p in points]
        axis.plot(devices, [p[1] for p in points], "o-", label="expected")
        axis.plot(devices, [p[2] for p in points], "s--", label="desired (roofline)")
        axis.plot(devices, [points[0][1] * devices[0] / d for d in devices], ":", color="grey", label="perfect scaling")
        axis.axvspan(45, max(devices) * 1.3, color="grey", alpha=0.15, label="simulated systems")
        axis.set(xscale="log", yscale="log", xlabel="Blackhole devices", ylabel="s per step", title=name)
        axis.set_xlim(min(devices) / 1.2, max(devices) * 1.3)
        axis.set_xticks(devices, [str(d) for d in devices])
        axis.minorticks_off()
        _log(axis.yaxis)
        axis.grid(alpha=0.3)
        axis.legend()
    _save(figure, path)


def lines(series: dict[str, list[tuple[float, float]]], path: Path, **labels: str) -> None:
    """Draw points (x, y) of each series as a line, both axes logarithmic, every x written out.

    Args:
        labels: ``xlabel``, ``ylabel`` and ``title``, as matplotlib calls them.
    """
    figure, ((axis,),) = _figure(1, 1, 6.4, 4.2)
    for (name, points), style in zip(series.items(), ("o-", "s--", "^-.", "x:"), strict=False):
        axis.plot(*zip(*points, strict=True), style, label=name)
    sizes = sorted({x for points in series.values() for x, _ in points})
    axis.set(xscale="log", yscale="log", **labels)
    axis.set_xticks(sizes, [f"{x:g}" for x in sizes])
    axis.minorticks_off()
    _log(axis.yaxis)
    axis.grid(alpha=0.3)
    axis.legend()
    _save(figure, path)


def hiding(bars: dict[tuple[str, str], list[tuple[int, float, float, float]]], path: Path) -> None:
    """Draw gather, sdpa and overlapped time (ms) over ring sizes by model and arch, between max and sum of both."""
    figure, axes = _figure(2, len(bars) // 2)
    for axis, ((name, arch), points) in zip(axes.T.flat, bars.items(), strict=True):
        sizes = [p[0] for p in points]
        least = [max(p[1], p[2]) for p in points]
        most = [p[1] + p[2] for p in points]
        axis.fill_between(sizes, least, most, color="C0", alpha=0.2, label="all hidden .. nothing hidden")
        axis.plot(sizes, [p[3] for p in points], "o-", color="C0", label="predicted")
        axis.plot(sizes, [p[2] for p in points], "x:", color="C1", label="T_sdpa alone")
        axis.plot(sizes, [p[1] for p in points], "^--", color="C2", label="T_gather alone")
        title = f"{name}, {arch.removesuffix('_b0').capitalize()}"
        axis.set(xscale="log", yscale="log", xlabel="ring size", ylabel="ms per layer", title=title)
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
        _log(axis.yaxis)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncol=4)
    _save(figure, path, below=0.04)


def pareto(points: dict[str, tuple[float, float]], front: list[str], path: Path, *, limit: float, title: str) -> None:
    """Draw 1 - PCC over predicted seconds.

    Args:
        points: (seconds, 1 - PCC) by the name of a choice.
        front: names of those that no other one beats, joined by a line.
        path: of the SVG.
        limit: 1 - PCC that is allowed.
        title: above the plot.
    """
    figure, axes = _figure(1, 1, width=7.0, height=4.6)
    axis = axes[0][0]
    joined = sorted(points[name] for name in front)
    axis.plot([x for x, _ in joined], [y for _, y in joined], color="0.6", zorder=1)
    for name, (seconds, error) in points.items():
        axis.scatter([seconds], [error], s=18, color="tab:blue" if name in front else "0.6", zorder=2)
        axis.annotate(name, (seconds, error), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axis.axhline(limit, color="tab:red", linewidth=0.8, linestyle="--")
    axis.set_yscale("log")
    axis.set_xlabel("seconds, predicted")
    axis.set_ylabel("1 - PCC, predicted")
    axis.set_title(title)
    _save(figure, path)
