"""Shadow rules, a file a family; importing this package registers them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")
