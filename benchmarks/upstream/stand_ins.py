"""An empty ``torchvision``, while conftests of upstream are imported that want it for other models' tests."""

from __future__ import annotations

import sys
import types


def stand_in_for_torchvision() -> list[str]:
    """Put an empty ``torchvision`` in place for the one conftest that imports it for other models' tests; return names.

    Only while conftests are imported: libraries that would use it look for it themselves, and must not find it.
    """
    try:
        import torchvision  # noqa: F401 - the real one is there
    except ImportError:
        module = types.ModuleType("torchvision")
        module.transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]
        stand_ins = {"torchvision": module, "torchvision.transforms": module.transforms}
        sys.modules.update(stand_ins)
        return list(stand_ins)
    return []


def forget(names: list[str]) -> None:
    """Take the stand-ins away again."""
    while names:
        sys.modules.pop(names.pop(), None)
