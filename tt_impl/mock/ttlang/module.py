"""``import ttl`` while programs run on the mock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tt_impl.mock.ttlang.simulator import find, load


class _Finder(MetaPathFinder, Loader):
    """Serves ``ttl``; everything below it is found where the simulator lies."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "ttl" or find() is None:
            return None
        return ModuleSpec("ttl", self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _module()

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is made whole."""


@cache
def _module() -> ModuleType:
    """Make the module that kernels know as ``ttl``."""
    from tt_impl.mock.ttlang import older
    from tt_impl.mock.ttlang.kernels import operation

    simulator = load()
    older.add_to(simulator.namespace)
    module = ModuleType("ttl", "TT-Lang kernels on the mock.")
    names = [name for name in dir(simulator.namespace) if not name.startswith("__")]
    vars(module).update({name: getattr(simulator.namespace, name) for name in names})
    vars(module)["operation"] = partial(operation, simulator)
    module.__path__ = list(simulator.path)
    return module


_FINDER = _Finder()


@contextmanager
def served() -> Iterator[None]:
    """Answer ``import ttl`` by the simulator while the block runs; nothing is loaded before a program asks for it."""
    if _FINDER in sys.meta_path:
        yield
        return
    former = sys.modules.pop("ttl", None)
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)
        sys.modules.pop("ttl", None)
        if former is not None:
            sys.modules["ttl"] = former
