"""Open a mesh for our own models, on any backend, with the mistakes found that ttnn's host side accepts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from refsim.base.mesh import MeshSpec, get_mesh
from tt_impl.run.backends import get_backend
from tt_impl.run.cluster import derive_fabric
from tt_impl.run.installed import ttnn_package


@dataclass(frozen=True)
class Mesh:
    """An open mesh: ``device`` is the ``ttnn.MeshDevice``, ``fabric`` the name of its ``ttnn.FabricConfig``."""

    device: Any
    spec: MeshSpec
    kind: str
    fabric: str

    @property
    def grid(self) -> tuple[int, int]:
        """Compute cores of one device that programs may use: (columns x, rows y)."""
        size = self.device.compute_with_storage_grid_size()
        return size.x, size.y

    @property
    def arch(self) -> str:
        return self.device.arch().name.lower()

    def describe(self) -> str:
        """One line: which kind ran, mesh, architecture, grid, fabric."""
        return f"{self.kind} {self.spec}, {self.arch}, {self.grid[0]}x{self.grid[1]} cores, {self.fabric}"


@contextmanager
def open_mesh(spec: MeshSpec | str, kind: str = "mock", fabric: str | None = None) -> Iterator[Mesh]:
    """Open a mesh and close it again.

    Args:
        spec: a mesh, or the name of one.
        kind: ``mock``, ``sim`` or ``device``, see :mod:`tt_impl.run.backends`.
        fabric: name of a ``ttnn.FabricConfig``; None derives it from the topologies of the mesh.

    Raises:
        UserError: no such mesh, kind or fabric; simulator or silicon not there; another cluster in this process.
    """
    spec = get_mesh(spec)
    backend = get_backend(kind)
    fabric = fabric or derive_fabric(spec)
    ttnn_package()
    backend.prepare(spec)

    from tt_impl.parallel.checks import guard

    with backend.open(spec, fabric) as device:
        mesh = Mesh(device, spec, kind, fabric)
        with guard(spec, mesh.grid):
            yield mesh
