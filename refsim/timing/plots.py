"""SVG plots that are the same bytes every time: fixed hash salt, no date, no fonts of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refsim.errors import UserError


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("the plots need matplotlib; install it with `pip install matplotlib`.") from error
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "refsim", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(4.6 * columns, 3.6 * rows), squeeze=False)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": "refsim"})
    pyplot.close(figure)


def scaling(lines: dict[str, list[tuple[int, float, float]]], path: Path) -> None:
    """Per model: devices, expected and desired seconds per step, both logarithmic; dashed beyond real systems."""
    figure, axes = _figure(1, max(len(lines), 1))
    for axis, (name, points) in zip(axes[0], lines.items(), strict=False):
        devices = [p[0] for p in points]
        axis.plot(devices, [p[1] for p in points], "o-", label="expected")
        axis.plot(devices, [p[2] for p in points], "s--", label="desired (roofline)")
        axis.plot(devices, [points[0][1] * devices[0] / d for d in devices], ":", color="grey", label="perfect scaling")
        axis.axvspan(45, max(devices) * 1.2, color="grey", alpha=0.15, label="simulated systems")
        axis.set(xscale="log", yscale="log", xlabel="devices", ylabel="s per step", title=name)
        axis.set_xticks(devices, [str(d) for d in devices])
        axis.minorticks_off()
        axis.legend()
    _save(figure, path)


def hiding(bars: dict[tuple[str, str], list[tuple[int, float, float, float]]], path: Path) -> None:
    """Per model and arch: gather, sdpa and their overlapped time (ms) over ring sizes."""
    figure, axes = _figure(2, len(bars) // 2)
    for axis, ((name, arch), points) in zip(axes.T.flat, bars.items(), strict=True):
        sizes = [p[0] for p in points]
        for i, (label, style) in enumerate((("T_gather", "^--"), ("T_sdpa", "s--"), ("overlapped", "o-")), 1):
            axis.plot(sizes, [p[i] for p in points], style, label=label)
        axis.set(xscale="log", yscale="log", xlabel="ring size", ylabel="ms per layer", title=f"{name}, {arch}")
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
        axis.legend()
    _save(figure, path)
