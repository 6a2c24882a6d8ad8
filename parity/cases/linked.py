"""Copies of folders whose files are links, in which a JSON file says something else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refsim.base import scratch


@contextmanager
def linked(folder: Path) -> Iterator[Path]:
    """Give a copy of a folder, gone after the block; its files are links, each changed by :func:`rewrite`."""
    with scratch.Folder("linked") as within:
        yield Path(shutil.copytree(folder, Path(within) / folder.name, copy_function=os.link))


def rewrite(file: Path, values: dict[str, Any]) -> None:
    """Write another JSON file in the place of a link."""
    file.unlink()
    file.write_text(json.dumps(values))
