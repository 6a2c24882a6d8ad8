"""The machine that tests of others find: a mock cluster, made before ttnn is imported, and what their ttnn lacks."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from refsim.base.errors import UserError
from refsim.base.mesh import MeshSpec, get_mesh
from tt_impl.harness.pytest.selection import AUTO, COLLECTED_ON
from tt_impl.mock import hardware
from tt_impl.mock.machine import environment
from tt_impl.run.installed import ttnn_package


@dataclass
class _Machine:
    """What :func:`prepare` made.

    Attributes:
        mesh: what was asked for.
        folder: holds all files of the mock; None before.
        threads: of torch, before.
        opened: whether a module opened the cluster of the collecting process.
    """

    mesh: str = ""
    folder: Path | None = None
    threads: int = 1
    opened: bool = False


_machine = _Machine()


def say_no_more() -> None:
    """Send what comes after Python's end to nobody, so that the summary stays the last thing a run says.

    ttnn's bindings list every object that outlives them there, as parameters of tests do: no mistake of its user.
    """
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def prepare(mesh: str) -> None:
    """Make ready for tests on a mock of ``mesh``, or (``auto``) on one or another in each forked process.

    Imports ttnn. Raises ``UserError`` if there is no such mesh, or no ttnn.
    """
    ttnn_package()
    spec = get_mesh(COLLECTED_ON if mesh == AUTO else mesh)
    atexit.register(say_no_more)
    _machine.mesh = mesh
    _machine.folder = environment.make_folder()
    environment.share_runtime_root(_machine.folder)
    hardware.keep_temporary_files(_machine.folder)
    if mesh == AUTO:
        hardware.point_at(spec, _machine.folder)
    else:
        hardware.prepare(spec, _machine.folder)
    os.environ.setdefault("ARCH_NAME", spec.arch)

    import torch

    # A forked process hangs in torch if torch's threads ran before the fork; it gets its threads back in enter().
    _machine.threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _complete()
    _hide()
    if mesh == AUTO:
        from tt_impl.harness.pytest import questions

        questions.ask_elsewhere()


def is_prepared() -> bool:
    return _machine.folder is not None


def clean_up() -> None:
    """Remove the files of the mock now: some processes (those of xdist) end without doing so."""
    if _machine.folder is not None:
        shutil.rmtree(_machine.folder, ignore_errors=True)


def look_for_devices() -> None:
    """Note whether this process has opened a cluster, which all that are forked of it would have then.

    A process of its own is asked: ttnn reads its environment with the first question, and a test's fixtures may set
    variables before they open their devices.
    """
    from tt_impl.harness.pytest.isolation import Child  # imports ttnn, which may be missing

    _machine.opened = Child.ask(_sees_another_cluster)


def _sees_another_cluster() -> bool:
    import ttnn

    from tt_impl.harness.pytest import questions

    questions.ask_here()
    other = get_mesh("n150")
    hardware.point_at(other, environment.make_folder())
    return ttnn.get_num_devices() != other.num_devices


def enter(mesh: str) -> MeshSpec:
    """Let this process, forked or not, be the one that runs tests on ``mesh``.

    Raises:
        UserError: the cluster of another mesh was opened before the fork.
    """
    import torch

    torch.set_num_threads(_machine.threads)
    spec = get_mesh(mesh)
    if _machine.mesh == AUTO:
        from tt_impl.harness.pytest import questions

        questions.ask_here()
        hardware.prepare(spec, _machine.folder)
        if _machine.opened:
            raise UserError(
                "a module opened a device while tests were collected, so all tests have its cluster; "
                "name the mesh instead of --ttnn-mock auto."
            )
    return spec


def _hide() -> None:
    """Keep what lies between a test and ttnn out of pytest's tracebacks; ``--full-trace`` shows it."""
    import tt_impl.harness.watch.session  # noqa: F401 - and with it whatever handles calls

    for name, module in list(sys.modules.items()):
        if name.startswith(("tt_impl.", "ttnn.decorators")):
            vars(module)["__tracebackhide__"] = True


def _complete() -> None:
    """Give ttnn the modules of its source tree that suites import and its wheels lack; they do nothing here."""
    import ttnn

    try:
        import ttnn.database  # is it there?
    except ImportError:
        module = ModuleType("ttnn.database")
        vars(module).update(SQLITE_CONNECTION=None, DEVICE_IDS_IN_DATABASE=set())
        sys.modules["ttnn.database"] = module
        vars(ttnn)["database"] = module
