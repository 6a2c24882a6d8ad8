"""How what a caller hands over reaches the ranks: options as one object, tensors as a file that every rank can map."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from refsim.base import scratch
from refsim.base.options import RunOptions
from refsim.runtime import launch


def asked_variant(options: RunOptions | None, settings: dict[str, Any]) -> str | None:
    """Return the variant that ``as_options`` will find, for what is looked at before any option is checked."""
    return settings.get("variant") if options is None else options.variant


@contextlib.contextmanager
def as_file(tensors: dict[str, Tensor]) -> Iterator[Path]:
    """Write tensors where every rank can map them; the file is removed afterwards."""
    around = launch.scratch_dir()
    with tempfile.TemporaryDirectory(dir=around) if around else scratch.Folder("inputs") as folder:
        path = Path(folder) / "inputs.safetensors"
        copies = {k: t.detach().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()}
        safetensors.torch.save_file(copies, path)
        yield path
