"""Open a mesh for the device backend: on a mock cluster (no hardware), in ttsim, or on silicon.

The three kinds never stand in for each other: what was asked for is opened, or a ``UserError`` says what is missing.

* ``mock`` - the real ttnn builds every program for the mesh; kernels are not run, device reads return zeros.
* ``sim`` - ttsim, Tenstorrent's full-system simulator, as its documentation describes (github.com/tenstorrent/ttsim):
  ``TT_METAL_SIMULATOR`` names the library, ``soc_descriptor.yaml`` lies beside it, slow dispatch, and for more than
  one chip ``TT_METAL_MOCK_CLUSTER_DESC_PATH`` names the descriptor of the simulated product.
* ``device`` - silicon.

ttnn opens one cluster per process. Meshes of one product (t3k, t3k-1x8) may follow each other in a process. A mesh
cut into submeshes (``device.create_submeshes``) must be used through them only: ttnn cannot close it otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from refsim.errors import UserError
from refsim.mesh import MeshSpec, Topology, get_mesh
from tt_impl.installed import CLUSTER_DESCRIPTOR, SIMULATOR, installed_toolchain, ttnn_package

KINDS = ("mock", "sim", "device")
L1_SMALL_BYTES = 32768
DEVICE_NODES = Path(os.sep, "dev", "tenstorrent")

_LIBRARY = re.compile(r"libttsim_(?P<arch>wh|bh)(?:_x(?P<chips>\d+))?\.so")
_ARCH = {"wh": "wormhole_b0", "bh": "blackhole"}


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


@dataclass
class _Process:
    """What this process has opened: ``cluster`` tells one cluster from another."""

    opened: str | None = None
    cluster: str = ""
    folder: Path | None = None
    is_open: bool = False


_process = _Process()


def stand_in() -> ModuleType:
    """What stands in for hardware. It is imported here and nowhere else, and for kind ``mock`` only."""
    from tt_impl.mock import hardware

    return hardware


def derive_fabric(spec: MeshSpec) -> str:
    """Name of the ``ttnn.FabricConfig`` for the topologies of a mesh: a ring anywhere asks for the ring fabric."""
    if spec.num_devices == 1:
        return "DISABLED"
    rings = [spec.topology(axis) is Topology.RING for axis in (0, 1)]
    return "FABRIC_1D_RING" if any(rings) else "FABRIC_1D"


@contextmanager
def open_mesh(spec: MeshSpec | str, kind: str = "mock", fabric: str | None = None) -> Iterator[Mesh]:
    """Open a mesh and close it again.

    Args:
        spec: a mesh, or the name of one.
        kind: ``mock``, ``sim`` or ``device``.
        fabric: name of a ``ttnn.FabricConfig``; None derives it from the topologies of the mesh.

    Raises:
        UserError: no such mesh, kind or fabric; simulator or silicon not there; another cluster in this process.
    """
    spec = get_mesh(spec)
    if kind not in KINDS:
        raise UserError(f"kind '{kind}' does not exist; choose one of {', '.join(KINDS)}.")
    fabric = fabric or derive_fabric(spec)
    prepare = {"mock": _prepare_mock, "sim": _prepare_sim, "device": _prepare_device}[kind]
    ttnn_package()
    prepare(spec)

    import ttnn

    from tt_impl.parallel.checks import guard

    fabric_config = getattr(ttnn.FabricConfig, fabric, None)
    if fabric_config is None:
        raise UserError(f"fabric '{fabric}' does not exist; choose a name of ttnn.FabricConfig, such as FABRIC_1D.")
    if kind == "device" and (found := ttnn.get_num_devices()) < spec.num_devices:
        raise UserError(f"mesh {spec} needs {spec.num_devices} devices, but this machine has {found}.")
    device = None
    _process.is_open = True
    try:
        with stand_in().temporary_files_in(_process.folder) if _process.folder else nullcontext():
            ttnn.set_fabric_config(fabric_config)
            device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*spec.shape), l1_small_size=L1_SMALL_BYTES)
        mesh = Mesh(device, spec, kind, fabric)
        with stand_in().refusals() if kind == "mock" else nullcontext(), guard(spec, mesh.grid):
            yield mesh
    finally:
        _process.is_open = False
        try:
            if device is not None:
                ttnn.close_mesh_device(device)
        finally:
            ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def _claim(kind: str, spec: MeshSpec, cluster: str) -> bool:
    """Note that this process opens ``cluster``; False if it has done so before, ``UserError`` if it is another one."""
    wanted = f"{kind} {spec}"
    if _process.is_open:
        raise UserError(f"{_process.opened} is still open in this process; close it before {wanted} is opened.")
    if _process.opened is None:
        _process.opened, _process.cluster = wanted, cluster
        return True
    if _process.cluster != cluster:
        raise UserError(
            f"this process has opened {_process.opened}, and ttnn opens one cluster per process; "
            f"open {wanted} in a process of its own."
        )
    _process.opened = wanted
    return False


def _prepare_mock(spec: MeshSpec) -> None:
    if _claim("mock", spec, stand_in().descriptor(spec)):
        _process.folder = stand_in().install(spec)


def _prepare_sim(spec: MeshSpec) -> None:
    """ttsim's documented setup; what the user set is kept, what the documentation always sets is set."""
    library = Path(os.environ.get(SIMULATOR, ""))
    if SIMULATOR not in os.environ:
        raise UserError(
            f"the simulator needs {SIMULATOR}: set it to the path of ttsim's libttsim_wh.so or libttsim_bh.so."
        )
    if not library.is_file():
        raise UserError(f"{SIMULATOR} names '{library}', which is not a file; set it to the path of ttsim's library.")
    soc = library.parent / "soc_descriptor.yaml"
    if not soc.is_file():
        raise UserError(
            f"ttsim needs {soc.name} beside {library.name}; copy it from tt_metal/soc_descriptors of the ttnn package."
        )
    name = _LIBRARY.fullmatch(library.name)
    chips = int(name["chips"] or 1) if name else spec.num_devices
    if name and (_ARCH[name["arch"]] != spec.arch or chips < spec.num_devices):
        raise UserError(
            f"{library.name} simulates {chips} {_ARCH[name['arch']]} chip(s), but mesh {spec} has "
            f"{spec.num_devices} {spec.arch}; set {SIMULATOR} to the library of that product."
        )
    if chips > 1 and not Path(os.environ.get(CLUSTER_DESCRIPTOR, "")).is_file():
        raise UserError(
            f"a simulation of {chips} chips needs {CLUSTER_DESCRIPTOR}: set it to the product's cluster descriptor."
        )
    if installed_toolchain(ttnn_package()) is None:
        raise UserError(
            "ttsim runs real kernels and no RISC-V toolchain (sfpi) is installed; install Tenstorrent's sfpi."
        )
    if _claim("sim", spec, f"{library} {os.environ.get(CLUSTER_DESCRIPTOR)}"):
        os.environ.setdefault("TT_METAL_SLOW_DISPATCH_MODE", "1")
        os.environ.setdefault("TT_METAL_DISABLE_SFPLOADMACRO", "1")


def _prepare_device(spec: MeshSpec) -> None:
    for variable in (SIMULATOR, CLUSTER_DESCRIPTOR):
        if variable in os.environ and _process.opened is None:
            raise UserError(f"{variable} is set, so ttnn would not open silicon; unset it.")
    if not DEVICE_NODES.is_dir() or not any(DEVICE_NODES.iterdir()):
        raise UserError("no Tenstorrent device is present in this machine; use kind 'mock' or 'sim'.")
    _claim("device", spec, "silicon")
