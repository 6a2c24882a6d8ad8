"""How a mistake is put into a program of either backend: parts of it are replaced, and put back at the end.

A fault is a function that gives a :data:`Patch`: a context manager that the process of a program enters around it
(``RunOptions.fault`` names it as ``module:function``). Most are the wrong version of one function, decorated with
:func:`at`; the others say by :func:`around`, :func:`instead` and :func:`together` what they replace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest import mock

Patch = AbstractContextManager[Any]
Place = Callable[[Callable[..., Any]], Patch]


def instead(owner: Any, name: str, replacement: Any) -> Patch:
    """Replace ``owner.name`` by ``replacement`` while the patch is entered."""
    return mock.patch.object(owner, name, replacement)


@contextmanager
def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Replace the function ``owner.name`` by ``wrapper(original, *its arguments)`` while the patch is entered.

    A method's arguments begin with ``self``; of a static or class method, ``original`` needs neither self nor class.
    """
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    unbound = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
    with instead(owner, name, staticmethod(call) if unbound else call):
        yield


@contextmanager
def together(*patches: Patch) -> Iterator[None]:
    """Enter several patches, in their order."""
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def at(*places: str | Place, within: str = "") -> Callable[[Callable[..., Any]], Callable[[], Patch]]:
    """Make a fault of the decorated function: it is called instead of every place, as :func:`around` calls a wrapper.

    Args:
        places: such as ``refsim.parallel.sdpa:merge`` or ``tt_impl.layers.norm:RMSNorm.__call__``; or a function that
            gives the patch for the decorated one, and says itself what that is called with.
        within: a place in words; the others are replaced only while this one runs.
    """

    def decorate(wrong: Callable[..., Any]) -> Callable[[], Patch]:
        @wraps(wrong)
        def fault() -> Patch:
            if not within:
                return everywhere()
            return around(*_resolved(within), only_here)

        def everywhere() -> Patch:
            return together(*(p(wrong) if callable(p) else around(*_resolved(p), wrong) for p in places))

        def only_here(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with everywhere():
                return original(*args, **kwargs)

        return fault

    return decorate


def _resolved(place: str) -> tuple[Any, str]:
    """Return the module or class that a place lies in, and the name that it has there."""
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    return resolve_name(f"{module}:{owner}"), name
