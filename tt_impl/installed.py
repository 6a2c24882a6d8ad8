"""What is installed here: the ``ttnn`` package and the compiler of its kernels, both found without importing ttnn.

Also the environment variables by which ttnn is told of a simulator or of a cluster that is not there.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from refsim.errors import UserError

SIMULATOR = "TT_METAL_SIMULATOR"
CLUSTER_DESCRIPTOR = "TT_METAL_MOCK_CLUSTER_DESC_PATH"

SYSTEM_SFPI = Path(os.sep, "opt", "tenstorrent", "sfpi")
"""Where Tenstorrent's packages install the toolchain, and the second place in which ttnn looks for it."""

COMPILER = Path("compiler", "bin", "riscv-tt-elf-g++")


def ttnn_package() -> Path:
    """Folder of the installed ``ttnn``, found without importing it; ``UserError`` if there is none."""
    found = importlib.util.find_spec("ttnn")
    if found is None or found.origin is None:
        raise UserError(
            "ttnn is not installed in this Python; install it with 'pip install ttnn' (Python 3.10 or 3.12)."
        )
    return Path(found.origin).parent


def installed_toolchain(package: Path) -> Path | None:
    """Root of a real toolchain, of the ``ttnn`` package itself or of the system, or None."""
    for root in (package / "runtime" / "sfpi", SYSTEM_SFPI):
        if (root / COMPILER).is_file():
            return root
    return None
