"""Golden values for every ttnn call, per device: the program is unchanged, its answers are real.

The real operation runs first, with all its checks, on the mock mesh; then its rule computes what each device would
hold, and the result is kept, rounded to the dtype of the output, under the output's buffer. Reading a tensor back
gives the golden values. An operation without a rule raises, naming the operation. Rules are torch semantics: they
prove sharding, collectives, axes, head orders and paddings, not kernels, races or speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import ttnn

import tt_impl.mock.rules  # noqa: F401 - registers the rules
from tt_impl.intercept import MARKS, Invocation, intercepted, on_device, tensors_in
from tt_impl.mock.golden import OPTION, golden_values, has_golden
from tt_impl.mock.rules.registry import NEUTRAL, RULES, Call, Rule, for_rule
from tt_impl.mock.values import RANGES, MissingRule, RefusedOption, ShadowError, Shards, Store, host_shards, host_tensor

__all__ = ["Shadow", "ShadowError", "shadow_values"]


class Shadow:
    """The golden values of one program; ``calls`` counts its operations by name.

    ``evaluations`` counts how often rules computed: once for all devices that share their inputs. With ``fallback``,
    operations that no rule answers are answered by ttnn's golden functions, and ``fallbacks`` counts them.
    """

    def __init__(self, fallback: bool = False) -> None:
        self.store = Store()
        self.fallback = fallback
        self.fallbacks: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.evaluations: Counter[str] = Counter()

    def values(self, tensor: ttnn.Tensor) -> list[torch.Tensor]:
        """Golden value of a device tensor on every device, row-major: float32, or int64 for integers."""
        return list(self.store.read(tensor, "values()"))

    def handle(self, call: Invocation) -> Any:
        self.calls[call.name] += 1
        special = SPECIAL.get(call.name)
        if special is not None:
            return special(self, call)
        if not self._touches_device(call):
            return self._without_device(call)
        if call.name not in RULES and not (self.fallback and has_golden(call.name)):
            raise MissingRule(call.name)
        # Read before the operation runs: it may free its inputs, or be told to write into one of them.
        shards = {id(t): self.store.read(t, call.name) for t in self._inputs(call)}
        result = call.proceed()
        outputs = [t for t in tensors_in(result) if on_device(t)]
        context = Call(call.name, call.args, call.kwargs, outputs, self.store)
        golden = self._golden(context, shards)
        self.evaluations[call.name] += context.evaluations
        if len(golden) != len(outputs):
            raise ShadowError(f"{call.name} gives {len(outputs)} tensors, but its shadow rule {len(golden)}.")
        for tensor, value in zip(outputs, golden, strict=True):
            self.store.write(tensor, value, call.name)
        return result

    def _golden(self, context: Call, shards: dict[int, Shards]) -> list[list[torch.Tensor]]:
        """Values of the outputs by the rule; by ttnn's golden function where there is none, or it refuses an option."""
        rule = RULES.get(context.name)
        if rule is None:
            self.fallbacks[context.name] += 1
            return golden_values(context, shards)
        try:
            return _by_rule(rule, context, shards)
        except RefusedOption as refused:
            if not (self.fallback and has_golden(context.name)):
                raise
            try:
                golden = golden_values(context, shards)
            except ShadowError as error:
                raise refused from error
        self.fallbacks[context.name + OPTION] += 1
        return golden

    @staticmethod
    def _touches_device(call: Invocation) -> bool:
        arguments = [*call.args, *call.kwargs.values()]
        return any(isinstance(a, ttnn.MeshDevice) for a in arguments) or any(map(on_device, tensors_in(arguments)))

    @staticmethod
    def _without_device(call: Invocation) -> Any:
        result = call.proceed()
        if any(map(on_device, tensors_in(result))):
            raise MissingRule(call.name)
        return result

    @staticmethod
    def _inputs(call: Invocation) -> list[ttnn.Tensor]:
        """Device tensors whose values a rule sees: all but those passed by a keyword that is neutral."""
        kwargs = {k: v for k, v in call.kwargs.items() if k not in NEUTRAL}
        return [t for t in tensors_in((call.args, kwargs)) if on_device(t)]


@contextmanager
def shadow_values(fallback: bool = False) -> Iterator[Shadow]:
    """Compute golden values while the block runs; tensors made before have none.

    Args:
        fallback: let ttnn's golden functions answer where no rule does. Weak evidence, counted in ``Shadow.fallbacks``.
    """
    shadow = Shadow(fallback)
    with intercepted(shadow.handle):
        yield shadow


def _by_rule(rule: Rule, context: Call, shards: dict[int, Shards]) -> list[list[torch.Tensor]]:
    mesh_shape = next(iter(shards.values())).mesh_shape if shards else (1, 1)
    kwargs = {k: _prepare(v, shards, mesh_shape) for k, v in for_rule(context.kwargs).items()}
    try:
        return rule(context, _prepare(context.args, shards, mesh_shape), kwargs)
    except TypeError as error:
        raise RefusedOption(context.name, f"this call: {error}") from error


def _prepare(value: Any, shards: dict[int, Shards], mesh_shape: tuple[int, int]) -> Any:
    """Arguments as rules get them: tensors as ``Shards`` (undistributed host tensors as torch), shapes as tuples."""
    if isinstance(value, ttnn.Tensor):
        if id(value) in shards:
            return shards[id(value)]
        parts = host_shards(value, 1)
        return parts[0] if len(parts) == 1 else Shards(parts, tuple(value.shape), mesh_shape)
    if isinstance(value, ttnn.Shape):
        return tuple(value)
    if isinstance(value, list | tuple):
        return type(value)(_prepare(item, shards, mesh_shape) for item in value)
    return value


def _mesh_of(tensor: ttnn.Tensor) -> tuple[int, int]:
    rows, columns = tensor.device().shape
    return rows, columns


def _from_torch(shadow: Shadow, call: Invocation) -> Any:
    """Convert twice, to the device and to the host: the host copy went through the real mapper and rounding."""
    result = call.proceed()
    if result is not None and on_device(result):
        kwargs = {k: v for k, v in call.kwargs.items() if k not in ("device", "memory_config", "cq_id")}
        shadow.store.write(result, _host(call.original(*call.args, **kwargs), result), call.name)
    return result


def _to_device(shadow: Shadow, call: Invocation) -> Any:
    source = call.args[0] if call.args else call.kwargs["tensor"]
    if on_device(source):
        raise ShadowError(f"{call.name} of a tensor that is on a device has no shadow rule.")
    result = call.proceed()
    shadow.store.write(result, _host(source, result), call.name)
    return result


def _host(host: ttnn.Tensor, like: ttnn.Tensor) -> list[torch.Tensor]:
    rows, columns = _mesh_of(like)
    return host_shards(host, rows * columns)


def _to_host(shadow: Shadow, call: Invocation) -> Any:
    """to_torch, from_device and the like, of the golden values instead of the zeros of the mock."""
    source, *rest = call.args or (None,)
    if source is None:
        source, rest = call.kwargs.get("tensor"), []
    if not isinstance(source, ttnn.Tensor) or not on_device(source):
        return call.proceed()
    golden = host_tensor(source, shadow.store.read(source, call.name))
    if call.name in ("ttnn.from_device", "ttnn.Tensor.cpu"):
        return golden
    kwargs = {k: v for k, v in call.kwargs.items() if k not in ("tensor", "device", "cq_id")}
    return call.original(golden, *rest, **kwargs)


def _deallocate(shadow: Shadow, call: Invocation) -> Any:
    tensor = call.args[0]
    buffer = tensor.buffer_unique_id() if on_device(tensor) and tensor.is_allocated() else None
    result = call.proceed()
    if not tensor.is_allocated():
        shadow.store.values.pop(buffer, None)
    return result


def _copy_to_device(shadow: Shadow, call: Invocation) -> Any:
    host, device = call.args[:2]
    result = call.proceed()
    shadow.store.write(device, _host(host, device), call.name)
    return result


def _fill(value: float | None) -> Callable[[Shadow, Invocation], Any]:
    """zeros, ones and the like; None takes the fill value of the call, NaN stands for memory nobody has written."""

    def special(shadow: Shadow, call: Invocation) -> Any:
        result = call.proceed()
        if result is not None and on_device(result):
            filled = value
            if filled is None:
                filled = call.kwargs["fill_value"] if "fill_value" in call.kwargs else call.args[1]
            integer = result.dtype in RANGES
            number = filled
            if integer and filled != filled:
                low, high = RANGES[result.dtype]
                number = -1 if low < 0 else high
            golden = torch.full(tuple(result.shape), number, dtype=torch.int64 if integer else torch.float32)
            rows, columns = _mesh_of(result)
            shadow.store.write(result, [golden] * (rows * columns), call.name)
        return result

    return special


def _method_to(shadow: Shadow, call: Invocation) -> Any:
    """``Tensor.to``: host to device, or nothing that the shadow knows."""
    if not on_device(call.args[0]):
        return _to_device(shadow, call) if shadow._touches_device(call) else call.proceed()
    raise ShadowError(f"{call.name} of a tensor on a device has no shadow rule; use ttnn.to_layout.")


def _valueless(shadow: Shadow, call: Invocation) -> Any:
    return call.proceed()


SPECIAL: dict[str, Callable[[Shadow, Invocation], Any]] = {
    "ttnn.from_torch": _from_torch,
    "ttnn.to_device": _to_device,
    "ttnn.to_torch": _to_host,
    "ttnn.from_device": _to_host,
    "ttnn.Tensor.cpu": _to_host,
    "ttnn.Tensor.to_torch": _to_host,
    "ttnn.Tensor.to_numpy": _to_host,
    "ttnn.Tensor.to_list": _to_host,
    "ttnn.Tensor.item": _to_host,
    "ttnn.Tensor.to": _method_to,
    "ttnn.deallocate": _deallocate,
    "ttnn.Tensor.deallocate": _deallocate,
    "ttnn.copy_host_to_device_tensor": _copy_to_device,
    "ttnn.MeshDevice.create_submesh": _valueless,
    "ttnn.MeshDevice.create_submeshes": _valueless,
    **{f"ttnn.{name}": _valueless for name in MARKS},
    "ttnn.zeros": _fill(0.0),
    "ttnn.zeros_like": _fill(0.0),
    "ttnn.ones": _fill(1.0),
    "ttnn.ones_like": _fill(1.0),
    "ttnn.full": _fill(None),
    "ttnn.full_like": _fill(None),
    "ttnn.empty": _fill(float("nan")),
    "ttnn.empty_like": _fill(float("nan")),
    "ttnn.allocate_tensor_on_device": _fill(float("nan")),
    "ttnn.experimental.dit_fused_distributed_groupnorm_create_stats_buffer": _fill(float("nan")),
    "ttnn.experimental.dit_fused_distributed_rmsnorm_create_stats_buffer": _fill(float("nan")),
    "ttnn.experimental.dit_fused_distributed_layernorm_create_stats_buffer": _fill(float("nan")),
}
