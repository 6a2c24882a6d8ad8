"""Which of a suite's tests run, and on which mesh: seeded samples, and the mesh that a test asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

AUTO = "auto"
COLLECTED_ON = "t3k"
"""The mesh that a suite's questions while it is collected are answered for, where every test has a mesh of its own."""

SMALLEST = ((1, "n150"), (2, "n300"), (8, "t3k"), (32, "galaxy"))
"""Number of devices a mesh has, and its name: a test gets the first that has enough."""

SINGLE = ("device",)
FIXTURES = {
    "t3k_single_board_mesh_device": "t3k",
    "pcie_mesh_device": "t3k",
    "bh_1d_mesh_device": "bh-qb",
    "bh_2d_mesh_device": "bh-qb",
}


def sample(items: Sequence[Any], *, per_function: int, total: int, seed: str) -> list[Any]:
    """Choose the items that run, in their order.

    Args:
        items: pytest items.
        per_function: at most so many cases of one test function; 0 takes all.
        total: at most so many of what is left; 0 takes all.
        seed: another seed gives another sample; one seed gives the same on every machine.
    """
    selected = list(items)
    if per_function:
        groups: dict[str, list[Any]] = {}
        for item in selected:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
        chosen = {id(item) for group in groups.values() for item in _drawn(group, per_function, seed)}
        selected = [item for item in selected if id(item) in chosen]
    if total:
        chosen = {id(item) for item in _drawn(selected, total, seed)}
        selected = [item for item in selected if id(item) in chosen]
    return selected


def _drawn(items: Sequence[Any], count: int, seed: str) -> list[Any]:
    """``count`` of the items; what is marked to be skipped comes last."""

    def place(item: Any) -> tuple[bool, str]:
        digest = hashlib.sha256(f"{seed}:{item.nodeid}".encode()).hexdigest()
        return item.get_closest_marker("skip") is not None, digest

    return sorted(items, key=place)[:count]


def mesh_of(item: Any) -> str:
    """Name of the mesh that a pytest item asks for by its fixtures and their values, ``mesh_device`` above all.

    A test that asks for none gets the mesh that the suite was collected on: it may open one by itself.
    """
    names = getattr(item, "fixturenames", ())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "mesh_device" in names:
        return _with_devices(parameters.get("mesh_device"))
    for fixture, mesh in FIXTURES.items():
        if fixture in names:
            return mesh
    return SMALLEST[0][1] if any(name in names for name in SINGLE) else COLLECTED_ON


def _with_devices(value: Any) -> str:
    """Find the smallest mesh for a ``mesh_device`` parameter: a number of devices, or (rows, columns)."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(size, int) for size in value):
        value = value[0] * value[1]
    if not isinstance(value, int):
        return COLLECTED_ON
    return next((name for devices, name in SMALLEST if devices >= value), SMALLEST[-1][1])
