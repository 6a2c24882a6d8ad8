"""A copy of the packages, to be run, recorded or changed in place of the user's files."""

from __future__ import annotations

import compileall
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import refsim
from refsim.base import scratch
from refsim.base.errors import UserError

PACKAGES = ("refsim", "tt_impl", "parity")
ROOT = Path(refsim.__file__).resolve().parents[1]
"""Where the packages lie that this process runs."""


class Tree:
    """The copied packages under ``root``; a file of theirs is named by its path from there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")

    @contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        """Let ``file`` hold ``source`` in this block."""
        path = self.root / file
        original = self.read(file)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it may be as old and its source as long as the change, and would be run instead
        path.write_text(source, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(original, encoding="utf-8")


@contextmanager
def copied(files: list[str] | None = None) -> Iterator[Tree]:
    """Make a copy of the packages, gone after the block; compiled, what runs ``files`` (None: all)."""
    needed = PACKAGES if files is None else {"refsim", "parity", *(file.partition("/")[0] for file in files)}
    with scratch.Folder("tree") as folder:
        root = Path(folder)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, root / package)
        for package in needed:
            compileall.compile_dir(root / package, quiet=2)
        yield Tree(root)


def folder_of(file: str) -> str:
    """Return the folder two levels deep that a file of the packages lies in, such as ``refsim/parallel``."""
    return "/".join(file.split("/")[:2])


def files_under(names: list[str]) -> list[str]:
    """Return the Python files of the packages that are meant by files, folders or patterns such as ``refsim/*/r*.py``.

    Raises:
        UserError: one of them means nothing.
    """
    chosen: list[str] = []
    for name in names:
        path = Path(name)
        relative = path.relative_to(ROOT).as_posix() if path.is_absolute() and path.is_relative_to(ROOT) else name
        pattern = relative.rstrip("/")
        pattern = f"{pattern}/**/*.py" if (ROOT / pattern).is_dir() else pattern
        if Path(pattern).is_absolute() or not pattern.startswith(PACKAGES):
            raise UserError(f"--files '{name}' is not in {', '.join(PACKAGES)}; give paths such as refsim/parallel.")
        matched = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern) if p.suffix == ".py")
        if not matched:
            raise UserError(
                f"--files '{name}' matches no Python file under {ROOT}; give paths such as refsim/parallel."
            )
        chosen += matched
    return list(dict.fromkeys(chosen))
