"""What the wires of the cluster carry."""

from __future__ import annotations

from tests.harness.programs.events import (
    GATHER,
    collective,
    made,
    read,
    row,
    use,
)


def wires() -> None:
    for axis, links, said in (
        (1, 2, ()),
        (1, 3, ("too-many-links error 0",)),
        (0, 1, ()),
        (0, 2, ("too-many-links error 0",)),
    ):
        events = [collective("all_gather", 1, 2, axis=axis, over={"links": links}), read(2)]
        row(f"links {links} of axis {axis}", events, *said)
    ring = {"topology": "Ring"}
    row("ring of four", [collective("all_gather", 1, 2, over=ring), read(2)], "ring-without-link error 0")
    row("ring of two", [collective("all_gather", 1, 2, axis=0, over=ring), read(2)])
    row(
        "ring this ttnn makes a line",
        [collective("all_gather", 1, 2, over=ring | {"runs_as": "Linear"}), read(2)],
        "ring-without-link error 0",
    )
    by_default = {"topology": None, "runs_as": "Linear"}
    row("ring by default", [collective(GATHER, 1, 2, over=by_default), read(2)], "ring-without-link note 0")
    row(
        "ring by default, hangs",
        [collective(GATHER, 1, 2, over={"topology": None}), read(2)],
        "ring-without-link error 0",
    )
    row("no ring by default", [collective("all_gather", 1, 2, over={"topology": None}), read(2)])
    three = {"devices": (0, 1, 2), "mesh": (1, 3)}
    row(
        "ring of three without a wire",
        [collective("all_gather", use(1, **three), made(2, **three), over=ring), read(2)],
        "ring-without-link error 0",
    )
    square = {"devices": (0, 1, 5, 4), "mesh": (1, 4)}
    row("ring of four that closes", [collective("all_gather", use(1, **square), made(2, **square), over=ring), read(2)])
    apart = {"devices": (0, 2, 1, 3), "mesh": (1, 4)}
    row(
        "no neighbours", [collective("all_gather", use(1, **apart), made(2, **apart)), read(2)], "not-neighbours note 0"
    )
    upright = {"devices": (0, 4, 5, 1), "mesh": (4, 1)}
    row(
        "down a column",
        [collective("all_gather", use(1, **upright), made(2, **upright), axis=0, over={"links": 2}), read(2)],
        "too-many-links error 0",
    )
    row(
        "an axis of one device",
        [collective("all_gather", use(1, **upright), made(2, **upright), over={"links": 2} | ring), read(2)],
    )
    row(
        "over all of a row",
        [collective("all_gather", use(1, **apart), made(2, **apart), axis=None), read(2)],
        "not-neighbours note 0",
    )
    row("over all of two rows", [collective("all_gather", 1, 2, axis=None, over=ring | {"links": 9}), read(2)])
    row(
        "along an axis of one",
        [collective("all_gather", use(1, **apart), made(2, **apart), axis=0, over=ring), read(2)],
    )
    for axis, links, said in (
        (-1, 2, ()),
        (-1, 3, ("too-many-links error 0",)),
        (-2, 1, ()),
        (-2, 2, ("too-many-links error 0",)),
    ):
        events = [collective("all_gather", 1, 2, axis=axis, over={"links": links}), read(2)]
        row(f"links {links} of axis {axis}, counted from the end", events, *said)
    bent = {"devices": (4, 5, 1, 2), "mesh": (1, 4)}
    for links, said in ((1, ()), (2, ("too-many-links error 0",))):
        events = [
            collective("all_gather", use(1, **bent), made(2, **bent), over={"links": links}),
            read(use(2, **bent)),
        ]
        row(f"links {links} where one pair has one", events, *said)
    for kind in ("point_to_point", "broadcast"):
        row(f"{kind} apart", [collective(kind, use(1, **apart), made(2, **apart), kind), read(2)])
