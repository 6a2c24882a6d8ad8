"""A program that runs a model without values and notes the epsilon of every norm that it asks ttnn for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from refsim.base.options import RunOptions


def program(device: Any, options: RunOptions, *, of: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """``norms``: the different (features, epsilon) that the program ``of`` (``module:function``) uses."""
    from tt_impl.trace.intercept import intercepted

    found = set()

    def handle(call: Any) -> Any:
        if "epsilon" in call.kwargs:
            x = call.args[0] if call.args else call.kwargs["input_tensor"]
            found.add((x.shape[-1], call.kwargs["epsilon"]))
        return call.proceed()

    module, _, name = of.partition(":")
    with intercepted(handle):
        getattr(import_module(module), name)(device, options, **arguments)
    return {"norms": sorted(found)}, {}
