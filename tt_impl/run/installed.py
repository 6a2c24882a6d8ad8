"""What is installed here: the ``ttnn`` package, its runtime root and the compiler of its kernels, without importing it.

Also the environment variables by which ttnn is told of a simulator or of a cluster that is not there.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from refsim.base.errors import UserError

SIMULATOR = "TT_METAL_SIMULATOR"
CLUSTER_DESCRIPTOR = "TT_METAL_MOCK_CLUSTER_DESC_PATH"
RUNTIME_ROOT = "TT_METAL_RUNTIME_ROOT"
SOURCE_TREE = "TT_METAL_HOME"

SYSTEM_SFPI = Path(os.sep, "opt", "tenstorrent", "sfpi")
"""Where Tenstorrent's packages install the toolchain, and the second place in which ttnn looks for it."""

COMPILER = Path("compiler", "bin", "riscv-tt-elf-g++")


def ttnn_package() -> Path:
    """Folder of the installed ``ttnn``, found without importing it; ``UserError`` if there is none."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise UserError(
            "ttnn is not installed in this Python; install it with 'pip install ttnn' (Python 3.10 or 3.12)."
        )
    return Path(spec.origin).parent


def runtime_root(package: Path) -> Path:
    """Folder in which ttnn looks for kernels, descriptors and its toolchain.

    It is what the environment says; else the source tree in which ``package`` was built (TREE/ttnn/ttnn); else the
    package of a wheel itself. ``UserError`` if none of them is such a folder.
    """
    asked = [Path(os.environ[name]) if os.environ.get(name) else None for name in (RUNTIME_ROOT, SOURCE_TREE)]
    places = [place for place in (asked[0], package.parents[1], package, asked[1]) if place is not None]
    for place in places:
        if (place / "tt_metal").is_dir():
            return place.resolve()
    raise UserError(
        f"ttnn in {package} has no folder tt_metal near it; set {RUNTIME_ROOT} to the tree in which it was built."
    )


def installed_toolchain(root: Path) -> Path | None:
    """Find a real toolchain, of ttnn's runtime ``root`` or of the system, or None."""
    for sfpi in (root / "runtime" / "sfpi", SYSTEM_SFPI):
        if (sfpi / COMPILER).is_file():
            return sfpi
    return None
