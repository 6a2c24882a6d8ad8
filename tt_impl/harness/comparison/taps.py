"""What every layer of a torch module gave, and every operation of a TTNN program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tt_impl.mock.calls.shadow import Shadow, shadow_values
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.rules.registry import leaves
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.trace.intercept import Invocation, installed, intercepted, on_device, tensors_in

MODULE = "(module)"
"""Name of the whole module among its layers."""

Inputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"


@dataclass(frozen=True)
class Result:
    """One result of an operation: ``values`` per device of a ``mesh``, row-major."""

    op: str
    where: str
    values: list[Tensor]
    mesh: tuple[int, ...]

    def is_called(self, name: str) -> bool:
        """Whether ``name`` means this operation: ``ttnn.add``, ``add``, or its line (``model.py:33``)."""
        return self.op == name or self.op.endswith(f".{name}") or self.where.endswith(name)


def call(function: Callable[..., Any], inputs: Inputs) -> Any:
    """Call ``function`` with one tensor, positional arguments, or arguments by name."""
    if isinstance(inputs, Mapping):
        return function(**inputs)
    return function(inputs) if isinstance(inputs, Tensor) else function(*inputs)


def layers_of(module: nn.Module, inputs: Inputs) -> list[tuple[str, Tensor]]:
    """Results of all submodules, and of the module itself, by name, in the order in which they were done.

    A layer that runs again has the number of its turn, ``norm (2)``; several tensors have their places, ``attn[1]``.
    """
    layers: list[tuple[str, Tensor]] = []
    turns: Counter[str] = Counter()

    def hook(name: str) -> Callable[..., None]:
        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            turns[name] += 1
            shown = name if turns[name] == 1 else f"{name} ({turns[name]})"
            tensors = [t for t in leaves(output) if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
            for i, tensor in enumerate(tensors):
                layers.append((shown if len(tensors) == 1 else f"{shown}[{i}]", tensor.detach().clone()))

        return note

    handles = [part.register_forward_hook(hook(name or MODULE)) for name, part in module.named_modules()]
    try:
        with torch.no_grad():
            call(module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return layers


def results_of(program: Callable[..., Any], inputs: Inputs) -> tuple[list[Result], Any]:
    """Results of all operations that took tensors on devices, in order, and what the program returns.

    Uses the shadow that is installed, which knows the program's weights, or else one of its own.
    """
    results: list[Result] = []
    with ExitStack() as stack:
        shadow = installed(Shadow) or stack.enter_context(shadow_values())
        log = EventLog(shadow)

        def note(invocation: Invocation) -> Any:
            event = log.events[-1]
            outcome = invocation.proceed()
            if event.inputs:
                for tensor in tensors_in(outcome):
                    if on_device(tensor) and tensor.is_allocated():
                        _append(results, event.op, event.where, tensor, shadow)
            return outcome

        stack.enter_context(intercepted(note, first=True))
        stack.enter_context(intercepted(log, first=True))
        returned = call(program, inputs)
    return results, returned


def _append(results: list[Result], op: str, where: str, tensor: Any, shadow: Shadow) -> None:
    try:
        values = shadow.values(tensor)
    except ShadowError:  # a result that nobody can know cannot be put beside a layer
        return
    if values and values[0].is_floating_point():
        results.append(Result(op, where, values, tuple(int(n) for n in tensor.device().shape)))
