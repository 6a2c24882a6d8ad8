"""What serves anyone's TTNN program on a mock mesh: the pytest plugin, the runner, and what they say about a program.

``tt_impl.mock`` makes the mesh and the values; nothing there knows of this package. Importing it imports no ``ttnn``.
``compare`` puts a torch module beside its counterpart in TTNN, layer by layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_impl.harness.comparison.layerwise import Comparison, compare

__all__ = ["Comparison", "compare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tt_impl.harness' has no attribute '{name}'")
    from tt_impl.harness.comparison import layerwise

    return getattr(layerwise, name)
