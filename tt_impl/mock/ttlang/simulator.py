"""The functional simulator of TT-Lang, loaded without what it does to a process that has the real ttnn.

When imported it takes over ttnn's golden functions, and makes ``torch.bfloat16`` another name of ``torch.float32``; the
wheel lacks the module that formats its errors; and it ends kernels that drain a buffer, which is legal on a device.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

INSTALL = "pip install 'refsim[ttnn,kernels]'"
_PROMOTED = ("bfloat16", "float16")
"""Names of torch that the simulator rebinds."""


class Unavailable(ImportError):
    """There is no simulator to serve ``import ttl``; one sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message, name="ttl")


@dataclass(frozen=True)
class Simulator:
    """What a kernel is run with.

    Attributes:
        namespace: what kernels know as ``ttl``.
        tensors: its module of tensors, in place of ttnn for kernels.
        operation: its decorator of kernels.
        copies: its module of copies between tensors and blocks.
        path: where submodules of ``ttl`` are found.
    """

    namespace: Any
    tensors: ModuleType
    operation: Any
    copies: ModuleType
    path: tuple[str, ...]

    @property
    def context(self) -> Any:
        """Settings and counts of the kernel under way."""
        return import_module("ttl.sim.context").get_context()


def find() -> ModuleSpec | None:
    """Return where ``ttl`` is: the simulator's, or somebody's own module of that name; None is returned for the latter.

    Raises:
        Unavailable: TT-Lang is not installed, or only its compiler, which gives no values on the mock.
    """
    spec = PathFinder.find_spec("ttl")
    if spec is None:
        raise Unavailable(
            "this program has TT-Lang kernels (import ttl), which run on tt-lang-sim, and that is not installed; "
            f"{INSTALL}."
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "_sim_only_marker.py").is_file() for folder in folders):
        return spec
    if any((folder / "ttl_api.py").is_file() for folder in folders):
        raise Unavailable(
            "TT-Lang's compiler is installed, whose kernels have no values on the mock; install its simulator in its "
            f"place: pip uninstall tt-lang, then {INSTALL}."
        )
    return None


@cache
def load() -> Simulator:
    """Import the simulator into this process, and undo what it does to torch and ttnn.

    Raises:
        Unavailable: it is not installed, or another tool has the slot of ``sys.monitoring`` that it needs.
    """
    spec = find()
    if spec is None:
        raise Unavailable("there is another module ttl than TT-Lang's on the search path; rename it.")
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        raise Unavailable("TT-Lang kernels need Python 3.12, whose sys.monitoring their simulator uses.")
    if (tool := monitoring.get_tool(monitoring.OPTIMIZER_ID)) is not None:
        raise Unavailable(f"{tool} has the slot of sys.monitoring for optimizers, which TT-Lang kernels need; end it.")
    native = {name: getattr(torch, name) for name in _PROMOTED}
    others = {name: sys.modules.get(name) for name in ("ttl", "ttnn")}
    try:
        sys.modules["ttnn"] = None  # an import of it fails, as where there is none
        sys.modules["ttl"] = module_from_spec(spec)  # a shell, without anything that kernels use
        simulation = import_module("ttl.sim")
        names = ("ttnnsim", "operation", "copyhandlers", "blockstate", "diagnostics")
        tensors, operation, copies, states, diagnostics = (import_module(f"ttl.sim.{name}") for name in names)
    finally:
        for name, module in others.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
        for name, dtype in native.items():
            setattr(torch, name, dtype)
    tensors.set_disable_float32_promotion(True)
    vars(diagnostics)["lazy_import_diagnostics"] = lambda: _DIAGNOSTICS
    _allow_draining(states.BlockStateMachine)
    path = tuple(spec.submodule_search_locations or ())
    return Simulator(type(simulation.ttl)(), tensors, operation.operation, copies, path)


def _allow_draining(machine: Any) -> None:
    """Let a block be popped that was waited for and not used: ``with buffer.wait(): pass`` drains a buffer."""
    pop = machine.transition_pop

    def transition_pop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.access_state.name == "MR":
            self.transition_assign_src()
        return pop(self, *args, **kwargs)

    machine.transition_pop = transition_pop


class _CompileError(Exception):
    def __init__(self, message: str, source_file: str, line: int, col: int = 1) -> None:
        super().__init__(message)
        self._text = f"{source_file}:{line}: {message}"

    def format(self) -> str:
        return self._text


class _SourceDiagnostic:
    def __init__(self, lines: list[str], source_file: str) -> None:
        self._source_file = source_file

    def format_error(self, line: int, col: int, message: str, label: str) -> str:
        return f"{self._source_file}:{line}: {label}: {message}"


_DIAGNOSTICS = SimpleNamespace(TTLangCompileError=_CompileError, SourceDiagnostic=_SourceDiagnostic)
"""In place of the module that formats the simulator's messages, which its wheel does not have."""
