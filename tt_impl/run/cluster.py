"""The cluster this process has opened, whatever stands behind it: ttnn opens one per process.

Meshes of one product (t3k, t3k-1x8) may follow each other in a process. A mesh cut into submeshes
(``device.create_submeshes``) must be used through them only: ttnn cannot close it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, Topology

if TYPE_CHECKING:
    import ttnn

L1_SMALL_BYTES = 32768


@dataclass
class Process:
    """What this process has opened.

    Attributes:
        opened: the kind and the mesh, in words; None before the first.
        cluster: tells one cluster from another.
        folder: what a mock cluster keeps its files in.
        is_open: whether a mesh is open now.
    """

    opened: str | None = None
    cluster: str = ""
    folder: Path | None = None
    is_open: bool = False


process = Process()


def claim(kind: str, spec: MeshSpec, cluster: str) -> bool:
    """Note that this process opens ``cluster``; False if it has done so before, ``UserError`` if it is another one."""
    wanted = f"{kind} {spec}"
    if process.is_open:
        raise UserError(f"{process.opened} is still open in this process; close it before {wanted} is opened.")
    if process.opened is None:
        process.opened = wanted
        process.cluster = cluster
        return True
    if process.cluster != cluster:
        raise UserError(
            f"this process has opened {process.opened}, and ttnn opens one cluster per process; "
            f"open {wanted} in a process of its own."
        )
    process.opened = wanted
    return False


def derive_fabric(spec: MeshSpec) -> str:
    """Name of the ``ttnn.FabricConfig`` for the topologies of a mesh: a ring anywhere asks for the ring fabric."""
    if spec.num_devices == 1:
        return "DISABLED"
    rings = [spec.topology(axis) is Topology.RING for axis in (0, 1)]
    return "FABRIC_1D_RING" if any(rings) else "FABRIC_1D"


@contextmanager
def opened(spec: MeshSpec, fabric: str) -> Iterator[ttnn.MeshDevice]:
    """Open the mesh of the prepared cluster while the block runs; ``UserError`` if there is no such fabric."""
    import ttnn

    fabric_config = getattr(ttnn.FabricConfig, fabric, None)
    if fabric_config is None:
        raise UserError(f"fabric '{fabric}' does not exist; choose a name of ttnn.FabricConfig, such as FABRIC_1D.")
    device = None
    process.is_open = True
    try:
        ttnn.set_fabric_config(fabric_config)
        device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*spec.shape), l1_small_size=L1_SMALL_BYTES)
        yield device
    finally:
        process.is_open = False
        try:
            if device is not None:
                ttnn.close_mesh_device(device)
        finally:
            ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
