"""How what a caller hands over reaches the ranks: options as one object, tensors as a file that every rank can map."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from refsim.base import scratch
from refsim.base.options import RunOptions
from refsim.files import tensor_file
from refsim.runtime import launch


def asked_variant(options: RunOptions | None, settings: dict[str, Any]) -> str | None:
    """Return the variant that ``as_options`` will find, for what is looked at before any option is checked."""
    return settings.get("variant") if options is None else options.variant


@contextlib.contextmanager
def as_file(tensors: dict[str, Tensor]) -> Iterator[Path]:
    """Write tensors where every rank can map them; the file is removed afterwards."""
    around = launch.scratch_dir()
    with (
        tempfile.TemporaryDirectory(dir=around) if around else scratch.Folder("inputs") as folder,
        open(scratch.nameless("inputs"), "wb") as memory,  # writing to a disk's file takes two to seven times as long
    ):
        path = Path(folder) / "inputs.safetensors"
        if hasattr(os, "memfd_create"):
            path.symlink_to(f"/proc/{os.getpid()}/fd/{memory.fileno()}")
        with open(path, "wb") as file:
            tensor_file.write(file, tensors)
        yield path
