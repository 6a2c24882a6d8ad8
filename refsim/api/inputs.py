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
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.runtime import launch


def as_options(options: RunOptions | None, given: dict[str, Any]) -> RunOptions:
    """Return the one of the two that was given: a ``RunOptions``, or the keywords of :meth:`RunOptions.of`."""
    if options is not None:
        if given:
            raise UserError(
                f"give options or {', '.join(given)}, not both; options.but({next(iter(given))}=...) works."
            )
        return options
    if "mesh" not in given:
        raise UserError("a run needs a mesh, such as mesh='t3k'; `refsim meshes` lists the names.")
    return RunOptions.of(**given)


def asked_variant(options: RunOptions | None, given: dict[str, Any]) -> str | None:
    """Return the variant that :func:`as_options` will find, for what is looked at before any option is checked."""
    return given.get("variant") if options is None else options.variant


@contextlib.contextmanager
def as_file(tensors: dict[str, Tensor]) -> Iterator[Path]:
    """Write tensors where every rank can map them; the file is removed afterwards."""
    around = launch.scratch_dir()
    with tempfile.TemporaryDirectory(dir=around) if around else scratch.Folder("inputs") as folder:
        path = Path(folder) / "inputs.safetensors"
        copies = {k: t.detach().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()}
        safetensors.torch.save_file(copies, path)
        yield path
