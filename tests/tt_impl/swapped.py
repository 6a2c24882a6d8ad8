"""Changed source in a process that has imported the unchanged one: its functions get the code of the changed file."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

Changed = tuple[Path, str, str]
"""A file, its text when it was imported, its text now."""
Place = tuple[str, int, Any]
"""A function in its file: its name, its first line, where its code ends (two lambdas may stand in one line)."""


class Sources:
    """The files below folders of one tree, which this process imports, and the same files of another, which change."""

    def __init__(self, imported: Path, changing: Path, folders: Sequence[str]) -> None:
        self._changing = changing
        self.files = [path for folder in folders for path in (imported / folder).rglob("*.py")]
        self._texts = {path: path.read_text(encoding="utf-8") for path in self.files}
        self._names = {path: path.relative_to(imported) for path in self.files}

    def changed(self) -> list[Changed]:
        """Return the files that hold another text now."""
        now = [(path, text, (self._changing / self._names[path]).read_text()) for path, text in self._texts.items()]
        return [(path, before, after) for path, before, after in now if before != after]


@contextmanager
def noted() -> Iterator[dict[int, CodeType]]:
    """Note the code of all functions that are called while the block runs."""
    called: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called[id(frame.f_code)] = frame.f_code

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


@contextmanager
def swapped(changed: list[Changed], done: Collection[CodeType] = ()) -> Iterator[bool]:
    """Let functions run the changed code while the block runs; yields whether nothing but functions has changed.

    Those that are ``done`` have run when the process began, and may have made what no new code changes: other
    functions with their defaults, a method of a library.
    """
    pairs = []
    only_functions = True
    for path, before, after in changed:
        old, new = (list(_codes(compile(text, str(path), "exec", dont_inherit=True))) for text in (before, after))
        only_functions &= [code.co_qualname for code in old] == [code.co_qualname for code in new]
        pairs += list(zip(old, new, strict=False))
    files = {str(path) for path, _, _ in changed}
    ran = {_place(code) for code in done if code.co_filename in files}
    only_once = (pair for pair in pairs if not pair[0].co_flags & inspect.CO_NEWLOCALS or _place(pair[0]) in ran)
    only_functions &= all(_alike(old, new) for old, new in only_once)
    only_functions &= all(old.co_freevars == new.co_freevars for old, new in pairs)
    functions = _live(files) if only_functions else {}
    for old, new in pairs:
        for function in functions.get(_place(old), ()):
            function.__code__ = new
    forget_cached()
    try:
        yield only_functions
    finally:
        for old, _ in pairs:
            for function in functions.get(_place(old), ()):
                function.__code__ = old
        forget_cached()


def _codes(code: Any) -> Iterator[Any]:
    """Yield a piece of code and all in it; ``Any``, since mypy checks for a Python whose code has no names."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _alike(old: Any, new: Any) -> bool:
    """Whether two modules, or classes, do the same on import, whatever the functions in them do."""
    constants = [[repr(c) for c in code.co_consts if not isinstance(c, CodeType)] for code in (old, new)]
    return (old.co_code, old.co_names, constants[0]) == (new.co_code, new.co_names, constants[1])


def _place(code: Any) -> Place:
    return code.co_qualname, code.co_firstlineno, list(code.co_positions())[-1]


def _live(files: set[str]) -> dict[Place, list[FunctionType]]:
    """Return the functions of some files that exist in this process."""
    functions = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in files:
            functions[_place(thing.__code__)].append(thing)
    return functions


def forget_cached() -> None:
    """Forget what functions have answered before."""
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("tt_impl"):
            thing.cache_clear()
