"""What a suite asks ttnn about the machine while its tests are collected, answered without opening a cluster.

ttnn opens one cluster per process, and a test forked from a process that has opened one could not have another mesh.
Where every test has a mesh of its own, the questions are put to a forked process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ttnn

from tt_impl.harness.pytest.isolation import Child

_OF_TTNN = """
    get_arch_name get_num_devices get_num_pcie_devices GetNumAvailableDevices GetNumPCIeDevices get_device_ids
    get_pcie_device_ids
    """.split()
QUESTIONS = (*((ttnn, name) for name in _OF_TTNN), (ttnn.cluster, "get_cluster_type"))
_originals: dict[tuple[Any, str], Callable[[], Any]] = {}


def ask_elsewhere() -> None:
    """From now on every question is answered by a process of its own."""
    for owner, name in QUESTIONS:
        original = getattr(owner, name, None)
        if original is not None:
            _originals[owner, name] = original
            setattr(owner, name, _elsewhere(original))


def ask_here() -> None:
    """Take that back, in a process that may open its cluster."""
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()


def _elsewhere(question: Callable[[], Any]) -> Callable[[], Any]:
    @cache
    def ask() -> Any:
        answer = Child.ask(lambda: _answer(question()))
        return getattr(ttnn.cluster.ClusterType, answer["enum"]) if "enum" in answer else answer["value"]

    return lambda: ask()


def _answer(value: Any) -> dict[str, Any]:
    return {"enum": value.name} if hasattr(value, "name") else {"value": value}
