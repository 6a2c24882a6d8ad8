"""A parallel configuration as a picture: devices as the mesh lies, cfg groups coloured, rings as arrows."""

from __future__ import annotations

import itertools
from html import escape
from typing import Any

from refsim.cli.commands.explain_layout import DeviceShare, Layout

CELL = (150, 84)
GAP = (46, 46)
TOP = 56
COLOURS = ("#dbe9ff", "#ffe6cc", "#dff5dd", "#f3dcf5")
INK = "#1f2933"
RING = "#c0392b"


def svg(layout: Layout) -> str:
    """Return the SVG document of what :func:`refsim.cli.commands.explain_layout.layout_of` gives."""
    rows, columns = layout.shape
    width = columns * (CELL[0] + GAP[0]) + GAP[0]
    height = TOP + rows * (CELL[1] + GAP[1]) + GAP[1]
    title = f"{layout.mesh} {rows}x{columns}, {layout.parallel}, {layout.attention}"
    title += f", {layout.model} {'x'.join(map(str, layout.latent))}" if layout.latent else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{RING}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{GAP[0]}" y="24" font-size="15" font-weight="bold" fill="{INK}">{escape(title)}</text>',
        f'<text x="{GAP[0]}" y="42" fill="{INK}">colour: cfg group; red arrows: where keys and values travel</text>',
    ]
    parts += [_device(device) for device in layout.devices]
    places = {device.rank: device.coord for device in layout.devices}
    for group in layout.groups:
        if group["name"] == "ring":
            parts += _arrows(group, places)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _corner(coord: tuple[int, ...]) -> tuple[int, int]:
    return GAP[0] + coord[1] * (CELL[0] + GAP[0]), TOP + GAP[1] // 2 + coord[0] * (CELL[1] + GAP[1])


def _device(device: DeviceShare) -> str:
    x, y = _corner(device.coord)
    lines = [f"rank {device.rank}  ({device.coord[0]}, {device.coord[1]})"]
    lines += [f"cfg {device.cfg}  sp {device.sp}  tp {device.tp}", *device.ranges]
    text = "".join(
        f'<text x="{x + 10}" y="{y + 20 + 18 * i}" fill="{INK}">{escape(line)}</text>' for i, line in enumerate(lines)
    )
    fill = COLOURS[device.cfg % len(COLOURS)]
    return f'<rect x="{x}" y="{y}" width="{CELL[0]}" height="{CELL[1]}" rx="6" fill="{fill}" stroke="{INK}"/>{text}'


def _arrows(group: dict[str, Any], places: dict[int, tuple[int, ...]]) -> list[str]:
    """Return an arrow per hop; a Ring closes with a curve around, a Line has arrows both ways."""
    ranks = group["ranks"]
    arrows = []
    for a, b in itertools.pairwise(ranks):
        arrows.append(_arrow(places[a], places[b]))
        if group["topology"] == "Linear":
            arrows.append(_arrow(places[b], places[a]))
    if group["topology"] == "Ring":
        x0, y0 = _middle(places[ranks[-1]])
        x1, y1 = _middle(places[ranks[0]])
        along = places[ranks[0]][0] == places[ranks[-1]][0]
        dx, dy = (0, CELL[1] // 2) if along else (-CELL[0] // 2, 0)
        bend = f"{(x0 + x1) // 2 + 2 * dx - (0 if along else 40)},{(y0 + y1) // 2 + 2 * dy + (20 if along else 0)}"
        arrows.append(_path(f"M{x0 + dx},{y0 + dy} Q{bend} {x1 + dx},{y1 + dy}"))
    return arrows


def _middle(coord: tuple[int, ...]) -> tuple[int, int]:
    x, y = _corner(coord)
    return x + CELL[0] // 2, y + CELL[1] // 2


def _arrow(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Return an arrow from border to border, a little aside, so that both directions are seen."""
    x0, y0 = _middle(a)
    x1, y1 = _middle(b)
    if a[0] == b[0]:
        sign = 1 if x1 > x0 else -1
        return _path(f"M{x0 + sign * CELL[0] // 2},{y0 - 8 * sign} L{x1 - sign * CELL[0] // 2},{y1 - 8 * sign}")
    sign = 1 if y1 > y0 else -1
    return _path(f"M{x0 + 8 * sign},{y0 + sign * CELL[1] // 2} L{x1 + 8 * sign},{y1 - sign * CELL[1] // 2}")


def _path(d: str) -> str:
    return f'<path d="{d}" fill="none" stroke="{RING}" stroke-width="1.6" marker-end="url(#tip)"/>'
