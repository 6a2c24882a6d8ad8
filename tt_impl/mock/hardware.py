"""What the rest of ``tt_impl`` asks of the mock: a machine that seems to have a mesh, and values for what it computes.

``tt_impl.mesh.stand_in`` imports this module, for meshes of kind ``mock`` only; on silicon and in ttsim nothing of this
package is loaded.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from refsim.mesh import MeshSpec
from tt_impl.installed import CLUSTER_DESCRIPTOR, SIMULATOR
from tt_impl.mock import environment
from tt_impl.mock.descriptor import descriptor

if TYPE_CHECKING:
    from tt_impl.mock.shadow import Shadow

__all__ = ["descriptor", "install", "refusals", "share", "values"]


def install(spec: MeshSpec) -> Path:
    """Point ttnn's environment at a mock cluster of ``spec``; returns the folder that holds all of its files."""
    folder = environment.make_folder()
    path = folder / "cluster.yaml"
    path.write_text(descriptor(spec), encoding="utf-8")
    os.environ.pop(SIMULATOR, None)
    os.environ["TT_METAL_RUNTIME_ROOT"] = str(environment.make_runtime_root(folder))
    os.environ[CLUSTER_DESCRIPTOR] = str(path)
    os.environ.update(environment.quiet_environment(folder))
    return folder


def temporary_files_in(folder: Path) -> AbstractContextManager[None]:
    """See :func:`tt_impl.mock.environment.temporary_files_in`."""
    return environment.temporary_files_in(folder)


def refusals() -> AbstractContextManager[None]:
    """While it is open, calls that would end the process on a mock mesh raise ``UserError`` instead."""
    from tt_impl.intercept import intercepted
    from tt_impl.mock.checks import refuse_crashes

    return intercepted(refuse_crashes)


def values() -> AbstractContextManager[Shadow]:
    """While it is open, every operation computes its golden values."""
    from tt_impl.mock.shadow import shadow_values

    return shadow_values()


def share() -> None:
    """Load once, and lay out once, what all processes need that this one forks."""
    import tt_impl.mock.shadow  # noqa: F401 - and with it ttnn and the rules

    environment.share_runtime_root()
