"""A machine that seems to have a mesh: its environment, the open mesh, and values for what is computed there.

On silicon and in ttsim nothing of this package is loaded: ``tt_impl.run.backends.stand_in`` imports this module, for
meshes of kind ``mock`` only, and so does ``tt_impl.harness``, which knows no other kind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh
from tt_impl.mock.machine import environment
from tt_impl.mock.machine.descriptor import descriptor
from tt_impl.mock.machine.environment import temporary_files_in
from tt_impl.run import cluster
from tt_impl.run.installed import CLUSTER_DESCRIPTOR, SIMULATOR

if TYPE_CHECKING:
    import ttnn

    from tt_impl.mock.calls.shadow import Shadow


def prepare(mesh: MeshSpec | str, folder: Path | None = None) -> MeshSpec:
    """Point ttnn at a mock cluster of ``mesh``, by environment variables; to be called before ttnn opens anything.

    Args:
        mesh: one of ``refsim meshes``, or a mesh of your own.
        folder: of :func:`tt_impl.mock.machine.environment.make_folder`; None makes one that goes when this process
        ends.

    Raises:
        UserError: there is no such mesh or no mock of it, or this process has opened another cluster.
    """
    spec = get_mesh(mesh)
    if cluster.claim("mock", spec, descriptor(spec)):
        cluster.process.folder = folder or environment.make_folder()
        point_at(spec, cluster.process.folder)
    return spec


def point_at(spec: MeshSpec, folder: Path) -> None:
    """Set the variables by which ttnn finds a mock cluster of ``spec``, with its files in ``folder``."""
    path = folder / f"cluster-{spec.name}.yaml"
    path.write_text(descriptor(spec), encoding="utf-8")
    os.environ.pop(SIMULATOR, None)
    os.environ["TT_METAL_RUNTIME_ROOT"] = str(environment.make_runtime_root(folder))
    os.environ[CLUSTER_DESCRIPTOR] = str(path)
    os.environ.update(environment.quiet_environment(folder))


@contextmanager
def ttnn_mock(
    mesh: MeshSpec | str = "t3k",
    *,
    fabric: str | None = None,
    fallback: bool = False,
    numerics: str = "off",
    values: bool = True,
) -> Iterator[ttnn.MeshDevice]:
    """Open a mesh without hardware: ``with ttnn_mock("t3k") as mesh_device:``, values included.

    Args:
        mesh: one of ``refsim meshes``, or a mesh of your own.
        fabric: name of a ``ttnn.FabricConfig``; None derives it from the topologies of the mesh.
        fallback: operations without a rule are answered by ttnn's golden functions, which proves nothing about them.
        numerics: ``exact`` or ``fast`` rounds as the device's kernels do (docs/numerics.md); ``off`` rounds once.
        values: False computes none: shapes, memory and ttnn's checks alone; what is read are zeros.

    Raises:
        UserError: no such mesh, fabric or level; another cluster was opened in this process, or one is open.
    """
    spec = prepare(mesh)
    with temporary_files_in(cluster.process.folder):
        opened = cluster.opened(spec, fabric or cluster.derive_fabric(spec))
        with opened as device, refusals(), shadow(fallback, numerics, values):
            yield device


def keep_temporary_files(folder: Path) -> None:
    """Have what ttnn brings along leave its files in ``folder``, in a process whose meshes others open."""
    tempfile.tempdir = tempfile.gettempdir()  # Python's own stay where they would have been
    os.environ["TMPDIR"] = str(folder)


def refusals() -> AbstractContextManager[None]:
    """Have calls that would end the process on a mock mesh raise ``UserError`` instead, while it is open."""
    from tt_impl.mock.calls.checks import refuse_crashes
    from tt_impl.trace.intercept import intercepted

    return intercepted(refuse_crashes)


def shadow(fallback: bool = False, numerics: str = "off", values: bool = True) -> AbstractContextManager[Shadow]:
    """Have every operation compute its values, while it is open; without ``values`` none does."""
    from tt_impl.mock.calls.shadow import shadow_values

    return shadow_values(fallback, numerics, values)


def check_numerics(level: str) -> None:
    """Raise ``UserError`` unless ``level`` is ``off``, or one that can be computed here."""
    if level != "off":
        from refsim.numerics.matrix_unit import check_level

        check_level(level)


def check_values(option: str) -> bool:
    """Tell whether values are to be computed: ``on`` or ``off``.

    Raises:
        UserError: it is neither.
    """
    if option not in ("on", "off"):
        raise UserError(f"values can be on or off, not '{option}'.")
    return option == "on"


def seed_of(option: str) -> int | None:
    """Read ``random`` or ``random:SEED``; None for nothing.

    Raises:
        UserError: it is neither.
    """
    if not option:
        return None
    kind, has_seed, seed = option.partition(":")
    if kind != "random" or (has_seed and not seed.isdecimal()):
        raise UserError(f"weights can be random or random:SEED, not '{option}'.")
    return int(seed or 0)


def share() -> None:
    """Load once, and lay out once, what all processes need that this one forks."""
    import tt_impl.mock.calls.shadow  # noqa: F401 - and with it ttnn and the rules

    environment.share_runtime_root()
