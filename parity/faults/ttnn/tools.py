"""What the device backend's faults share: the cases they run on, and ways to replace a part of ``tt_impl``.

A fault is a function that the worker calls before its program; it replaces a named function or attribute of a module
of ``tt_impl`` and calls the original where it can. Each is run on the smallest case that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.registry import Fault, register


def _block(
    *where: str | int, model: str = "sd35_tiny64_block", n: int = 75, text: int = 29, split: bool = False
) -> Case:
    layout = Layout(*where, prompt_layout="split" if split else "replicated")
    return make_case("ttnn_block", model, layout, BlockShape(n, text), dtype="bf16")


def _whole(mesh: str, parallel: str, latent: tuple[int, int], batch: int) -> Case:
    shape = ModelShape(latent, 29, batch)
    guidance = 4.5 if batch == 2 else None
    return make_case("ttnn_transformer", "sd35_tiny64", Layout(mesh, parallel), shape, dtype="bf16", guidance=guidance)


TP2 = _block("n300", "tp2")  # 3 heads on 2 devices: one padded head
TP2_DUAL = _block("n300", "tp2", model="sd35_tiny64_dual_block")
TP8 = _block("t3k-1x8", "tp8")  # 3 heads on 8 devices, 192 features in 256 lanes
SP2 = _block("n300", "sp2")  # 75 tokens as 64 + 11 of 64
SP2_SPLIT = _block("n300", "sp2", split=True, text=45)  # 45 prompt tokens as 32 + 13 of 32
SP2_DUAL = _block("n300", "sp2", model="sd35_tiny64_dual_block")  # two ring attentions with nothing in between
SP2_TP2 = _block("bh-qb", "sp2_tp2")  # two axes of equal size: a wrong axis fits everywhere
SP2_TP4 = _block("t3k", "sp2_tp4")
ULYSSES = _block("t3k", "sp4_tp2", "ulysses", n=150)
USP = _block("t3k", "sp8", "usp", 4, 2, n=150)  # shards 0-4 of 8 hold tokens
CFG2 = _whole("n300", "cfg2", (10, 24), 2)
WHOLE_SP2 = _whole("n300", "sp2", (12, 24), 1)


def fault(
    family: str, case: Case, sentence: str, mistake: str, *, says: str | None = None
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the decorated function as a fault of the device backend.

    ``says``: a regular expression in the error that refuses the fault; None where only a metric may catch it.
    """

    def decorate(inject: Callable[[], None]) -> Callable[[], None]:
        name = f"ttnn-{inject.__name__.replace('_', '-')}"
        register(Fault(name, family, "ttnn-mock", sentence, mistake, case, inject, says))
        return inject

    return decorate


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(original, *its arguments)``."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))


def around_init(cls: type, wrapper: Callable[..., None]) -> None:
    """Replace the constructor of ``cls`` by ``wrapper(original, self, *its arguments)``."""
    original = cls.__init__
    cls.__init__ = lambda self, *args, **kwargs: wrapper(original, self, *args, **kwargs)


def while_building(cls: type, put: Callable[..., Any]) -> None:
    """While a ``cls`` is built, ``Context.put`` is ``put(original, ctx, x, **placement)``."""
    from tt_impl.parallel.context import Context

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        plain = Context.put
        around(Context, "put", put)
        try:
            original(self, *args, **kwargs)
        finally:
            Context.put = plain

    around_init(cls, init)
