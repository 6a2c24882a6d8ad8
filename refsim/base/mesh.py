"""Named device meshes: architecture, shape, links and wrap-around per mesh axis, and the topology rule.

``axis`` always is a mesh axis (0 = rows, 1 = columns); rank ``r`` sits at ``divmod(r, columns)``.

Sources: TTNN's system meshes and mesh graph descriptors (T3K is a 4x2 of lines that is a ring only when all
eight devices are taken as 1x8; Wormhole Galaxy 6U and Blackhole Galaxy have torus links on both axes; the
Blackhole LoudBox wraps its axis of four; TG is the older Galaxy host that is used with Linear only).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from refsim.base.errors import UserError
from refsim.base.extensions import Catalog, catalog


class Topology(str, Enum):
    """How the devices of a group are wired: ``Linear`` has no link from the last device back to the first."""

    LINEAR = "Linear"
    RING = "Ring"


@dataclass(frozen=True)
class MeshSpec:
    """A mesh of devices.

    Attributes:
        name: what ``--mesh`` takes.
        system: the product the mesh stands for.
        arch: ``wormhole_b0`` or ``blackhole``.
        shape: (rows, columns).
        links: Ethernet links a collective may use per hop, per axis; 0 on an axis of one device.
        torus: per axis, whether the last device is wired back to the first when the mesh is used in 2-D.

    Raises:
        UserError: ``shape`` is no pair of whole numbers above 0.
    """

    name: str
    system: str
    arch: str
    shape: tuple[int, int]
    links: tuple[int, int]
    torus: tuple[bool, bool] = (False, False)

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or any(type(n) is not int or n < 1 for n in self.shape):
            raise UserError(f"mesh {self.name} has shape {self.shape}; give (rows, columns), both at least 1.")

    @property
    def num_devices(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def is_1d(self) -> bool:
        return 1 in self.shape

    def coord(self, rank: int) -> tuple[int, int]:
        return divmod(rank, self.shape[1])

    def rank(self, row: int, column: int) -> int:
        return row * self.shape[1] + column

    def topology(self, axis: int) -> Topology | None:
        """Return the topology of the collectives along one whole mesh axis.

        One device: none. Two: Linear. A 1-D mesh of more than two: Ring. A named axis of a 2-D mesh: Linear,
        unless the mesh says that the axis is a torus ring.
        """
        n = self.shape[axis]
        if n == 1:
            return None
        if n == 2:
            return Topology.LINEAR
        if self.is_1d or self.torus[axis]:
            return Topology.RING
        return Topology.LINEAR

    def __str__(self) -> str:
        return f"{self.name} ({self.shape[0]}x{self.shape[1]})"


_WH = "wormhole_b0"
_BH = "blackhole"

MESHES: dict[str, MeshSpec] = {
    m.name: m
    for m in (
        MeshSpec("n150", "N150", _WH, (1, 1), (0, 0)),
        MeshSpec("n300", "N300", _WH, (1, 2), (0, 1)),
        MeshSpec("t3k", "T3000 (LoudBox)", _WH, (2, 4), (1, 1)),
        MeshSpec("t3k-1x8", "T3000 (LoudBox) as one ring", _WH, (1, 8), (0, 1)),
        MeshSpec("quietbox", "QuietBox (Wormhole)", _WH, (2, 4), (1, 1)),
        MeshSpec("tg", "TG (Galaxy with gateway cards)", _WH, (8, 4), (4, 4)),
        MeshSpec("galaxy", "Galaxy 6U", _WH, (4, 8), (4, 4), torus=(True, True)),
        MeshSpec("bh-p150", "P150", _BH, (1, 1), (0, 0)),
        MeshSpec("bh-p300", "P300", _BH, (1, 2), (0, 2)),
        MeshSpec("bh-qb", "QuietBox 2 (2x P300)", _BH, (2, 2), (2, 2)),
        MeshSpec("bh-qb-1x4", "QuietBox 2 as one ring", _BH, (1, 4), (0, 2)),
        MeshSpec("bh-loudbox", "LoudBox (8x P150)", _BH, (2, 4), (2, 2), torus=(False, True)),
        MeshSpec("bh-galaxy", "Blackhole Galaxy", _BH, (4, 8), (2, 2), torus=(True, True)),
    )
}


def meshes() -> Catalog[MeshSpec]:
    """Return the named meshes, and those that packages register (entry points ``refsim.meshes``)."""
    return _meshes(tuple(sys.path))


@lru_cache(maxsize=4)
def _meshes(path: tuple[str, ...]) -> Catalog[MeshSpec]:
    return catalog(MESHES.values(), "refsim.meshes", MeshSpec, lambda mesh: (mesh.name,))


def get_mesh(name: str | MeshSpec) -> MeshSpec:
    """Return the mesh of that name, or the one that a file ``*.json`` describes (see :mod:`refsim.base.mesh_file`).

    Raises:
        UserError: there is no mesh of that name, with a list of them; or the file describes none.
    """
    if isinstance(name, MeshSpec):
        return name
    if name.endswith(".json"):
        return _from_file(Path(name))
    spec = meshes().find(name)
    if spec is None:
        known = ", ".join(mesh.name for mesh in meshes().all)
        raise UserError(
            f"mesh '{name}' does not exist; choose one of {known}, or give a file such as my_mesh.json{meshes().notes}."
        )
    return spec


def _from_file(path: Path) -> MeshSpec:
    from refsim.base.mesh_file import read_mesh_file  # pydantic, which only a file needs

    spec = MeshSpec(**read_mesh_file(path))
    if spec.name in meshes().by_name and spec != meshes().by_name[spec.name]:
        raise UserError(f"mesh file '{path}' takes the name of another mesh, {spec.name}; give it a name of its own.")
    return spec
