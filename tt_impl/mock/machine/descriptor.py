"""Cluster descriptors: the YAML by which UMD, ttnn's driver, learns which chips there are and how they are wired.

A descriptor is generated from a ``MeshSpec`` by (architecture, number of devices): the product that ships with so
many chips. Wormhole: N150, N300, four N300 cards (T3000, QuietBox), Galaxy. Blackhole: P150, P300, two P300 cards
(QuietBox 2), eight P150 (LoudBox), Galaxy. ``tg`` has no mock of its own in ttnn: it is a Galaxy without
wrap-around links.

What ttnn insists on, found by removal: on a T3000 the chips with a PCIe link are the inner ones of the 2x4 (else it
is taken for separate N300 cards); Blackhole ids encode board and place; a Galaxy needs its trays in
``chip_to_bus_id``; every Blackhole chip has 12 logical Ethernet channels, 0 to 11.
A ``harvest_mask`` has the Tensix rows (Wormhole) or columns (Blackhole) that are switched off. One row (not the usual
two) on Wormhole cards is on purpose: the mock assumes that dispatch takes another one, and 8x8 is what programs get on
the real card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec

Edge = tuple[int, int, Sequence[int], Sequence[int]]
"""(chip a, chip b, channels of a, channels of b): one Ethernet link per pair of channels."""

# Ethernet channels towards the neighbour on the east, west, south and north.
WH_CHANNELS = {"E": (8, 9, 10, 11), "W": (4, 5, 6, 7), "S": (12, 13, 14, 15), "N": (0, 1, 2, 3)}
BH_CHANNELS = {"E": (4, 5), "W": (2, 3), "S": (6, 7), "N": (0, 1)}
N300_LINKS = 2
TRAYS = {"wormhole_b0": (0xC0, 0x40, 0x00, 0x80), "blackhole": (0x00, 0xC0, 0x40, 0x80)}
"""Upper half of the PCIe bus ids of a Galaxy's trays: in a corner, next on the long side, on the short one, across."""

BOARDS = {
    "n150": (0x18, 64),
    "n300": (0x14, 64),
    "ubb": (0x35, 0),
    "p150": (0x40, 192),
    "p300": (0x46, 8320),
    "ubb_blackhole": (0x47, 128),
}
"""Upper bits of a board's id, which say what it is, and its ``harvest_mask``."""
ETH_HARVEST_BH = 288


def descriptor(spec: MeshSpec) -> str:
    """Return the YAML text of the cluster ``spec`` is opened on; meshes on one product get equal text."""
    make = _PRODUCTS.get((spec.arch, spec.num_devices))
    if make is None:
        known = ", ".join(f"{n} {arch}" for arch, n in _PRODUCTS)
        raise UserError(f"mesh {spec} has no mock: there is no product with its devices; known are {known}.")
    fields = make(spec).fields()
    return "".join(f"{key}: {_flow(value)}\n" for key, value in fields.items())


def _flow(value: Any) -> str:
    """Write nested dicts, lists and scalars in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _board_id(board: str, number: int = 0) -> int:
    return (BOARDS[board][0] << 36) | (0x1000 + number)


@dataclass(frozen=True)
class _Cluster:
    """The cards of a machine, from which its descriptor is written.

    Attributes:
        board: of which kind all cards are.
        cards: the chips of each card.
        edges: which chips are wired to each other, over which Ethernet channels.
        unique_ids: a number for each chip.
        mmio: the chips with a PCIe link, if not all have one.
        coords: (column, row, rack, shelf) per chip, Wormhole cards only.
        bus_ids: PCIe bus per chip, where the order of the chips depends on it.
        pcie_mask: the PCIe cores of a chip that are switched off.
    """

    arch: str
    board: str
    cards: list[list[int]]
    edges: Iterable[Edge]
    unique_ids: dict[int, int]
    mmio: Iterable[int] | None = None
    coords: dict[int, list[int]] | None = None
    asic_locations: dict[int, int] | None = None
    bus_ids: dict[int, int] | None = None
    pcie_mask: Callable[[int], int] = lambda chip: 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of the descriptor."""
        links = [
            [{"chip": a, "chan": x}, {"chip": b, "chan": y}]
            for a, b, channels_a, channels_b in self.edges
            for x, y in zip(channels_a, channels_b, strict=True)
        ]
        chips = range(len(self.unique_ids))
        fields: dict[str, Any] = {
            "arch": {chip: self.arch for chip in chips},
            "chips": self.coords or {},
            "chip_unique_ids": self.unique_ids,
            "ethernet_connections": links,
            "ethernet_connections_to_remote_devices": [],
            "chips_with_mmio": [{chip: k} for k, chip in enumerate(chips if self.mmio is None else self.mmio)],
            "harvesting": {chip: self._harvesting(chip) for chip in chips},
            "boards": [
                [{"board_id": _board_id(self.board, number)}, {"board_type": self.board}, {"chips": card}]
                for number, card in enumerate(self.cards)
            ],
        }
        if self.arch == "blackhole":
            fields["io_device_type"] = "PCIe"
        if self.bus_ids:
            fields["chip_to_bus_id"] = {chip: f"0x{bus:02x}" for chip, bus in self.bus_ids.items()}
        if self.asic_locations:
            fields["asic_locations"] = self.asic_locations
        return fields

    def _harvesting(self, chip: int) -> dict[str, Any]:
        blackhole = self.arch == "blackhole"
        masks = {
            "noc_translation": True,
            "harvest_mask": BOARDS[self.board][1],
            "dram_harvesting_mask": 0,
            "eth_harvesting_mask": ETH_HARVEST_BH if blackhole else 0,
            "pcie_harvesting_mask": self.pcie_mask(chip),
        }
        return masks | ({"l2cpu_harvesting_mask": 0} if blackhole else {})


def _grid_edges(rows: int, cols: int, channels: dict[str, Sequence[int]], wrap_columns: bool = False) -> list[Edge]:
    """Return the edges of a row-major grid of chips; ``wrap_columns`` links the last column to the first."""
    edges = []
    for row in range(rows):
        for col in range(cols):
            chip = row * cols + col
            if col + 1 < cols:
                edges.append((chip, chip + 1, channels["E"], channels["W"]))
            elif wrap_columns:
                edges.append((chip, row * cols, channels["E"], channels["W"]))
            if row + 1 < rows:
                edges.append((chip, chip + cols, channels["S"], channels["N"]))
    return edges


def _n150(_: MeshSpec) -> _Cluster:
    return _Cluster("wormhole_b0", "n150", [[0]], [], {0: _board_id("n150") << 5}, mmio=[0], coords={0: [0, 0, 0, 0]})


def _n300_cards(rows: int, cols: int) -> _Cluster:
    """Lay N300 cards horizontally, two chips each, the chips with a PCIe link on the inside of a 2x4."""
    cards: list[list[int]] = []
    unique_ids = {}
    for left in range(0, rows * cols, 2):
        board_id = _board_id("n300", len(cards)) & 0xFFFFFFFF
        inside, outside = (left + 1, left) if left % cols == 0 and cols > 2 else (left, left + 1)
        cards.append([inside, outside])
        unique_ids[inside] = (2 << 32) | board_id
        unique_ids[outside] = (3 << 32) | board_id
    return _Cluster(
        "wormhole_b0",
        "n300",
        cards,
        _grid_edges(rows, cols, {side: numbers[:N300_LINKS] for side, numbers in WH_CHANNELS.items()}),
        unique_ids,
        mmio=[inside for inside, _ in cards],
        coords={chip: [chip % cols, chip // cols, 0, 0] for chip in range(rows * cols)},
    )


def _p150_cards(rows: int, cols: int, wrap_columns: bool = False) -> _Cluster:
    chips = range(rows * cols)
    return _Cluster(
        "blackhole",
        "p150",
        [[chip] for chip in chips],
        _grid_edges(rows, cols, BH_CHANNELS, wrap_columns),
        {chip: _board_id("p150", chip) << 5 for chip in chips},
        asic_locations=dict.fromkeys(chips, 0),
        bus_ids={chip: 1 + 0x20 * chip for chip in chips} if len(chips) > 1 else None,
        pcie_mask=lambda chip: 2,
    )


def _p300_cards(cards: int) -> _Cluster:
    """Lay P300 cards below each other, left and right chip each; both chips have a PCIe link."""
    edges: list[Edge] = [(2 * c, 2 * c + 1, (2, 3), (9, 8)) for c in range(cards)]
    edges += [(chip, chip + 2, (6, 7), (6, 7)) for chip in range(2 * cards - 2)]
    chips = range(2 * cards)
    return _Cluster(
        "blackhole",
        "p300",
        [[2 * card + 1, 2 * card] for card in range(cards)],
        edges,
        {chip: (_board_id("p300", chip // 2) << 1) + chip % 2 for chip in chips},
        asic_locations={chip: chip % 2 for chip in chips},
        bus_ids={chip: 1 + chip for chip in chips},
        pcie_mask=lambda chip: (2, 1)[chip % 2],
    )


def _galaxy(arch: str, torus: tuple[bool, bool]) -> _Cluster:
    """Join 32 chips, four trays of 2x4, places 1-4 over 5-8, to a grid of 8 (long side) by 4 (short side).

    ``torus`` is (long side, short side). Trays are named by the upper half of the PCIe bus id; their order is what
    ttnn's list of valid groupings expects.
    """
    blackhole = arch == "blackhole"
    channels = BH_CHANNELS if blackhole else WH_CHANNELS
    long_ahead, long_back, short_ahead, short_back = (channels[side] for side in "EWSN")
    corner, along, across, opposite = TRAYS[arch]
    places = [(tray, place) for tray in (corner, along, across, opposite) for place in range(1, 9)]
    chip = {where: number for number, where in enumerate(places)}

    edges: list[Edge] = []
    for tray, place in places:
        if place not in (4, 8):
            edges.append((chip[tray, place], chip[tray, place + 1], long_ahead, long_back))
        if place <= 4:
            edges.append((chip[tray, place], chip[tray, place + 4], short_ahead, short_back))
    for a, b in ((corner, along), (across, opposite)):
        edges += [(chip[a, place], chip[b, place], long_ahead, long_ahead) for place in (4, 8)]
        if torus[0]:
            edges += [(chip[a, place], chip[b, place], long_back, long_back) for place in (1, 5)]
    for a, b in ((corner, across), (along, opposite)):
        edges += [(chip[a, place], chip[b, place], short_ahead, short_ahead) for place in (5, 6, 7, 8)]
        if torus[1]:
            edges += [(chip[a, place], chip[b, place], short_back, short_back) for place in (1, 2, 3, 4)]

    board = "ubb_blackhole" if blackhole else "ubb"
    return _Cluster(
        arch,
        board,
        [list(range(32))],
        edges,
        {number: (_board_id(board) << 8) + number + 1 for number in range(32)},
        asic_locations={number: place for number, (_, place) in enumerate(places)} if blackhole else None,
        bus_ids={number: tray + place for number, (tray, place) in enumerate(places)},
        pcie_mask=lambda chip: 1 if blackhole else 0,
    )


def _long_side_first(spec: MeshSpec) -> tuple[bool, bool]:
    rows, columns = spec.shape
    return spec.torus if rows >= columns else (spec.torus[1], spec.torus[0])


_PRODUCTS: dict[tuple[str, int], Callable[[MeshSpec], _Cluster]] = {
    ("wormhole_b0", 1): _n150,
    ("wormhole_b0", 2): lambda spec: _n300_cards(1, 2),
    ("wormhole_b0", 8): lambda spec: _n300_cards(2, 4),
    ("wormhole_b0", 32): lambda spec: _galaxy(spec.arch, _long_side_first(spec)),
    ("blackhole", 1): lambda spec: _p150_cards(1, 1),
    ("blackhole", 2): lambda spec: _p300_cards(1),
    ("blackhole", 4): lambda spec: _p300_cards(2),
    ("blackhole", 8): lambda spec: _p150_cards(2, 4, wrap_columns=True),
    ("blackhole", 32): lambda spec: _galaxy(spec.arch, _long_side_first(spec)),
}
