"""A report for people: markdown of one program, and of all programs of a folder."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from refsim.files.tables import as_markdown
from tt_impl.harness.reports import exhausted
from tt_impl.harness.watch import rounding

_SLOWEST = 15
_MIB = 1024 * 1024


def program(report: dict[str, Any]) -> str:
    """Show in tables what :func:`tt_impl.harness.reports.write.content` says."""
    meshes = ", ".join("x".join(map(str, m["shape"])) + f" {m['arch']}" for m in report["meshes"])
    head = f"{len(report['operations'])} operations on {meshes or 'no mesh'}, on a mock mesh: no kernel was run."
    if rounded := rounding.sentence([report["numerics"]]):
        head = f"{head} {rounded}."
    if not report["values"]:
        head = f"{head} Values off: nothing about values was shown."
    if ended := report["memory"]["ended"]:
        head = "\n".join([f"**{ended['sentence']}**", "", "```text", *exhausted.lines(ended)[1:], "```", "", head])
    parts = _findings(report) + _time(report) + _memory(report) + _collectives(report)
    return "\n".join([f"# {report['name']}", "", head, "", *parts]) + "\n"


def _findings(report: dict[str, Any]) -> list[str]:
    lines = ["## Findings", ""]
    lines += [f"- {finding['kind']}: {finding['sentence']}" for finding in report["findings"]] or ["None."]
    if report["fallbacks"]:
        names = ", ".join(f"`{name}` x{count}" for name, count in report["fallbacks"].items())
        lines += ["", f"Answered by ttnn's own golden functions, which proves nothing of their values: {names}."]
    return [*lines, ""]


def _time(report: dict[str, Any]) -> list[str]:
    cost = report["cost"]
    lines = [
        "## Device time, predicted",
        "",
        f"**{_us(cost['ns'])} us** from the first program to the end of the last one "
        f"({_us(cost['low_ns'])} to {_us(cost['high_ns'])}): "
        f"{cost['source']}. {cost['priced']} of {cost['launches']} device operations have a price.",
        "",
    ]
    if cost["unpriced"]:
        names = ", ".join(f"`{e['device_op']}` x{e['count']} ({e['reason']})" for e in cost["unpriced"])
        lines += [f"Without a price, and not in the sum: {names}.", ""]
    groups: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for launch in report["launches"]:
        if "ns" in launch:
            groups[launch["op"], launch["device_op"], launch["where"], launch["bound"]].append(launch)
    slowest = sorted(groups.items(), key=lambda group: -sum(launch["ns"] for launch in group[1]))[:_SLOWEST]
    rows = [
        (f"`{op}`", device_op, where, len(launches), bound, *(_us(sum(one[n] for one in launches)) for n in _NS))
        for (op, device_op, where, bound), launches in slowest
    ]
    return [*lines, as_markdown(rows, ("op", "device op", "line", "n", "bound", "low us", "us", "high us")), ""]


_NS = ("low_ns", "ns", "high_ns")


def _memory(report: dict[str, Any]) -> list[str]:
    lines = ["## Memory, by ttnn's allocator", ""]
    for mesh in report["memory"]["meshes"]:
        lines += [f"Mesh {mesh['mesh']}: every one of devices {_span(mesh['devices'])}.", ""]
        rows = [_memory_row(kind, mesh[kind]) for kind in ("DRAM", "L1", "L1_SMALL") if kind in mesh]
        heads = ("memory", "peak KiB a bank", "banks", "peak MiB", "op", "line", "at the end", "holes", "largest free")
        lines += [as_markdown(rows, heads), ""]
        if "L1" in mesh:
            most = mesh["L1"]["with_programs"]
            lines += [
                f"L1 with circular buffers: {_kib(most['bytes'])} KiB of {_kib(mesh['L1']['bank_bytes'])} on the "
                f"fullest core, in `{most['op']}` at {most['where']}.",
                "",
            ]
        for kind in ("DRAM", "L1"):
            rows = [
                (f"`{o['op']}`", o["where"], o["shape"], o["dtype"], o["count"], _kib(o["bytes_per_bank"]))
                for o in mesh.get(kind, {"peak": {"live": []}})["peak"]["live"]
            ]
            if rows or kind == "DRAM":
                lines += [f"Live at the peak of {kind}:", ""]
                lines += [as_markdown(rows, ("op", "line", "shape", "dtype", "n", "KiB a bank")), ""]
    if count := report["memory"]["unknown_layouts"]:
        lines += [f"Of {count} programs ttnn would not tell the circular buffers.", ""]
    lines += [f"At the end {trace}\n" for trace in report["memory"]["traces"]]
    if (binaries := report["memory"]["kernel_binaries"])["programs"]:
        lines += [
            f"Not in these figures: kernel binaries of {binaries['programs']} programs, about "
            f"{binaries['bytes'] / _MIB:.1f} MiB of DRAM on each device ({binaries['source']}).",
            "",
        ]
    return lines


def _memory_row(kind: str, usage: dict[str, Any]) -> tuple:
    peak = usage["peak"]
    holes = usage["fragmentation"]
    highest = _kib(peak["bytes_per_bank"]), usage["banks"], f"{peak['bytes'] / _MIB:.2f}"
    left = _kib(usage["end_bytes_per_bank"]), f"{holes['share']:.1%}", _kib(holes["smallest_largest_free_per_bank"])
    return kind, *highest, f"`{peak['op']}`", peak["where"], *left


def _collectives(report: dict[str, Any]) -> list[str]:
    if not report["collectives"]:
        return []
    wires = ("axis", "bytes", "topology", "links")
    rows = [
        (i, f"`{c['op']}`", c["where"], c["collective"], *(str(c.get(name)) for name in wires))
        for i, c in enumerate(report["collectives"])
    ]
    heads = ("", "op", "line", "collective", *wires)
    return ["## Collectives, in order", "", as_markdown(rows, heads), ""]


def index(rows: list[dict[str, Any]]) -> str:
    """Show all programs in one table."""
    heads = ("program", "ops", "collectives", "predicted us", "range", "unpriced", "DRAM MiB", "L1 KiB", "findings")
    shown = [
        (
            f"[{row['name']}]({row['file'].removesuffix('.json')}.md)", row["operations"], row["collectives"],
            _us(row["ns"][1]), f"{_us(row['ns'][0])} to {_us(row['ns'][2])}", row["unpriced"],
            f"{row['dram_peak_bytes'] / _MIB:.2f}",
            "at least " * bool(row["unknown_layouts"]) + _kib(row["l1_peak_bytes"]),
            ", ".join(f"{kind} x{count}" for kind, count in row["findings"].items()) or "-",
        )
        for row in rows
    ]  # fmt: skip
    head = "On mock meshes: device times are predicted, not measured; memory is what ttnn's allocator says."
    return "\n".join(["# Programs", "", head, "", as_markdown(shown, heads)]) + "\n"


def _us(ns: float) -> str:
    return f"{ns / 1000:.1f}"


def _kib(size: int) -> str:
    return f"{size / 1024:.1f}"


def _span(devices: list[int]) -> str:
    return f"{devices[0]} to {devices[-1]}" if devices == list(range(devices[0], devices[-1] + 1)) else str(devices)
