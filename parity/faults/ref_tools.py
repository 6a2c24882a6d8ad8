"""What the reference's faults share: the cases they run on, and how one is registered.

A fault is a context manager that every rank enters around its program (``RunOptions.fault``): it replaces a named
function or attribute of ``refsim``, calls the original where it can, and puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from parity.cases import AttentionShape, Case, Layout, ModelShape, make_case
from parity.faults.registry import Fault, register


def _attention(mesh: str, parallel: str, *more: Any, rows: int = 101, **options: Any) -> Case:
    shape = AttentionShape(heads=6, n=112, text=21, logical_n=rows, head_dim=32)
    layout = Layout(mesh, parallel, *more, chunks=(64, 48), **options)
    return make_case("attention", "attention", layout, shape, family="outlier_text")


def _model(mesh: str, parallel: str, batch: int = 1) -> Case:
    shape, guidance = ModelShape((12, 20), 29, batch), 4.5 if batch > 1 else None
    return make_case("transformer", "sd35_tiny", Layout(mesh, parallel), shape, guidance=guidance)


RING = _attention("bh-qb-1x4", "sp4")  # 101 tokens as 32 + 32 + 32 + 5 of 32
LINE = _attention("t3k", "sp4_tp2")  # four on a Line
GATHERED = _attention("bh-qb-1x4", "sp4", ring_order="gather")
ULYSSES = _attention("bh-qb-1x4", "sp4", "ulysses")  # 6 heads padded to 8
USP = _attention("bh-qb", "sp4", "usp", 2, 2, rows=70)  # 70 tokens as 32 + 32 + 6 + 0 of 32
SPLIT = _attention("bh-qb-1x4", "sp4", prompt_layout="split")
SERIAL = _model("n150", "sp1")
TP2 = _model("n300", "tp2")  # 3 heads on 2 devices, 48 features in 64 lanes
SP2 = _model("n300", "sp2")
SP2_TP2 = _model("bh-qb", "sp2_tp2")  # two axes of equal size: a wrong axis fits everywhere
CFG2 = _model("n300", "cfg2", batch=2)


def fault(family: str, case: Case, sentence: str, mistake: str = "", *, says: str | None = None) -> Callable:
    """Register the decorated generator function (one ``yield``) as a fault named after it."""

    def decorate(function: Callable[[], Iterator[None]]) -> Callable:
        inject = contextmanager(function)
        register(Fault(function.__name__.replace("_", "-"), family, "cpu", sentence, mistake, case, inject, says))
        return inject

    return decorate


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Any:
    """A patch of ``owner.name`` by ``wrapper(original, *its arguments)``."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return mock.patch.object(owner, name, call)


def instead(owner: Any, name: str, replacement: Any) -> Any:
    """A patch of ``owner.name`` by ``replacement``."""
    return mock.patch.object(owner, name, replacement)
