"""Models as diffusers and transformers compute them: what every class of theirs wants, and how its answer is read.

Most classes are served by :class:`parity.cases.oracles.base.Oracle`. One that wants more has a module in this folder
with a subclass that names it; a new file needs no line elsewhere.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity.cases.oracles.base import Oracle


@cache
def oracle_of(class_name: str) -> Oracle:
    """Return the oracle of a class of diffusers or transformers."""
    from parity.cases.oracles.base import Oracle  # imports torch, which a list of cases does without

    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return next((known() for known in Oracle.__subclasses__() if class_name in known.class_names), Oracle())
