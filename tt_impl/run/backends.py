"""What may stand behind a mesh, behind one interface: ttnn's mock device, ttsim, silicon.

No kind stands in for another: what was asked for is prepared, or a ``UserError`` says what is missing.

* ``mock`` - the real ttnn builds every program for the mesh; kernels are not run, device reads return zeros.
* ``sim`` - ttsim, Tenstorrent's full-system simulator, as its documentation describes (github.com/tenstorrent/ttsim):
  ``TT_METAL_SIMULATOR`` names the library, ``soc_descriptor.yaml`` lies beside it, slow dispatch, and for more than
  one chip ``TT_METAL_MOCK_CLUSTER_DESC_PATH`` names the descriptor of the simulated product.
* ``device`` - silicon.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec
from tt_impl.run.cluster import claim, opened, process
from tt_impl.run.installed import CLUSTER_DESCRIPTOR, SIMULATOR, installed_toolchain, runtime_root, ttnn_package

# ttnn prints its whole configuration when it is imported, unless its logger is told otherwise before.
os.environ.setdefault("LOGURU_LEVEL", "WARNING")

DEVICE_NODES = Path(os.sep, "dev", "tenstorrent")

_LIBRARY = re.compile(r"libttsim_(?P<arch>wh|bh)(?:_x(?P<chips>\d+))?\.so")
_ARCH = {"wh": "wormhole_b0", "bh": "blackhole"}


class Backend(ABC):
    """One kind of mesh.

    Attributes:
        kind: the name by which users ask for it.
    """

    kind: str

    @abstractmethod
    def prepare(self, spec: MeshSpec) -> None:
        """Set the process up, by environment variables only, before ttnn opens anything; ``UserError`` if it cannot."""

    def open(self, spec: MeshSpec, fabric: str) -> AbstractContextManager[Any]:
        """Open the prepared mesh, a ``ttnn.MeshDevice``, while the block runs."""
        return opened(spec, fabric)

    def values(self, numerics: str) -> AbstractContextManager[Any]:
        """Have reads of a tensor give its values, while it is open: the device's own, or computed beside ttnn.

        Args:
            numerics: how values beside ttnn are rounded, see :attr:`refsim.base.options.RunOptions.numerics`.
        """
        return nullcontext()


def stand_in() -> ModuleType:
    """Import what stands in for hardware: here and nowhere else, and for kind ``mock`` only."""
    from tt_impl.mock import hardware

    return hardware


class Mock(Backend):
    """ttnn's mock device, with values computed beside it."""

    kind = "mock"

    def prepare(self, spec: MeshSpec) -> None:
        stand_in().prepare(spec)

    @contextmanager
    def open(self, spec: MeshSpec, fabric: str) -> Iterator[Any]:
        with stand_in().temporary_files_in(process.folder), opened(spec, fabric) as device, stand_in().refusals():
            yield device

    def values(self, numerics: str) -> AbstractContextManager[Any]:
        return stand_in().shadow(numerics=numerics)


class Simulator(Backend):
    """ttsim; nobody has run this kind yet."""

    kind = "sim"

    def prepare(self, spec: MeshSpec) -> None:
        """ttsim's documented setup; what the user set is kept, what the documentation always sets is set."""
        library = _library(spec)
        if installed_toolchain(runtime_root(ttnn_package())) is None:
            raise UserError(
                "ttsim runs real kernels and no RISC-V toolchain (sfpi) is installed; install Tenstorrent's sfpi."
            )
        if claim("sim", spec, f"{library} {os.environ.get(CLUSTER_DESCRIPTOR)}"):
            os.environ.setdefault("TT_METAL_SLOW_DISPATCH_MODE", "1")
            os.environ.setdefault("TT_METAL_DISABLE_SFPLOADMACRO", "1")


class Silicon(Backend):
    """The devices of this machine; nobody has run this kind yet."""

    kind = "device"

    def prepare(self, spec: MeshSpec) -> None:
        for variable in (SIMULATOR, CLUSTER_DESCRIPTOR):
            if variable in os.environ and process.opened is None:
                raise UserError(f"{variable} is set, so ttnn would not open silicon; unset it.")
        if not DEVICE_NODES.is_dir() or not any(DEVICE_NODES.iterdir()):
            raise UserError("no Tenstorrent device is present in this machine; use kind 'mock' or 'sim'.")
        claim("device", spec, "silicon")

    @contextmanager
    def open(self, spec: MeshSpec, fabric: str) -> Iterator[Any]:
        import ttnn

        if (count := ttnn.get_num_devices()) < spec.num_devices:
            raise UserError(f"mesh {spec} needs {spec.num_devices} devices, but this machine has {count}.")
        with opened(spec, fabric) as device:
            yield device


BACKENDS: dict[str, Backend] = {backend.kind: backend for backend in (Mock(), Simulator(), Silicon())}


def get_backend(kind: str) -> Backend:
    """Return the backend of that name; ``UserError`` that lists the names if there is none."""
    if kind not in BACKENDS:
        raise UserError(f"kind '{kind}' does not exist; choose one of {', '.join(BACKENDS)}.")
    return BACKENDS[kind]


def _library(spec: MeshSpec) -> Path:
    """ttsim's library, named by the environment, if it and what lies beside it can simulate ``spec``."""
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
    return library
