"""The one temporary folder of a process: runtime root, cluster descriptor, kernel cache, logs, files of MPI.

ttnn reads its environment once, when the first device is opened. The folder therefore lives as long as the process
and goes when it ends, see :mod:`refsim.base.scratch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refsim.base import scratch
from tt_impl.mock.machine import toolchain
from tt_impl.run.installed import RUNTIME_ROOT, SOURCE_TREE, installed_toolchain, runtime_root, ttnn_package

_shared: Path | None = None


def make_folder() -> Path:
    """Make a folder that is removed when this process ends, after those of dead processes were removed."""
    return Path(scratch.Folder("mock").name)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Set ``TMPDIR`` for what ttnn brings along: opening the first device starts MPI, which leaves files there."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def share_runtime_root(folder: Path | None = None) -> None:
    """Have one runtime root and one cache of kernels, in ``folder``, for all processes that this one forks.

    They are made unless they are there; the first folder stays the shared one.
    """
    global _shared
    if _shared is None:
        folder = folder or make_folder()
        if not (folder / "root").is_dir():
            make_runtime_root(folder)
        _shared = folder


def make_runtime_root(folder: Path) -> Path:
    """Relocate ttnn's runtime root: links into the installed one, with a toolchain where it has none."""
    if _shared is not None:
        return _shared / "root"
    installed = runtime_root(ttnn_package())
    root = folder / "root"
    runtime = root / "runtime"
    runtime.mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name not in ("runtime", "__pycache__"):
            (root / entry.name).symlink_to(entry)
    for entry in (installed / "runtime").glob("*"):
        (runtime / entry.name).symlink_to(entry)
    for tree in filter(None, map(os.environ.get, (RUNTIME_ROOT, SOURCE_TREE))):
        models = Path(tree, "models").absolute()  # of tt-metal, in whose place programs look for files of their own
        if models.is_dir() and not (root / "models").exists():
            (root / "models").symlink_to(models)
    if installed_toolchain(installed) is None:
        (runtime / "sfpi").unlink(missing_ok=True)
        toolchain.write_stand_in(runtime / "sfpi")
    return root


def quiet_environment(folder: Path) -> dict[str, str]:
    """Return variables that keep ttnn's caches and logs in ``folder`` and its messages to errors."""
    variables = {
        "TT_METAL_CACHE": str((_shared or folder) / "cache"),
        "TT_METAL_LOGS_PATH": str(folder / "logs"),
        # torch's threads would spin for 20 ms an operation beside ttnn's on a busy machine; read when torch is imported
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "OMPI_MCA_btl": "self",  # MPI of one process: no shared memory that a killed one would leave behind
        "TT_METAL_SHM_TRACKING_DISABLED": "1",  # of real chips, for others to watch; it would stay behind
    }
    for name, value in (("TT_LOGGER_LEVEL", "off"), ("TT_METAL_LOGGER_LEVEL", "off"), ("LOGURU_LEVEL", "WARNING")):
        variables[name] = os.environ.get(name, value)
    return variables
