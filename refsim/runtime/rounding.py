"""What a run with ``device_numerics`` computes in place of torch: every op as the kernel of a device does.

    layer -- F.linear, F.gelu, x + y ... --> torch function --.
          -- @kernel("rms_norm") ... ------------------------+--> rule of the op (refsim.runtime.device_rules)
                                                              '-> no rule: torch, rounded once, counted by name

Rules see what the ranks hold: a linear's weight is this rank's part, a collective's addition is one hop. In a run in
bf16 every arithmetic op on bf16 tensors is the device's, and what is computed in fp32 is the host's. In a run in fp32
nothing tells the two apart, so only what layers mark, and products, norms and activations, follow the rules.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from refsim.base.device_numerics import DeviceNumerics
from refsim.runtime import kernels
from refsim.runtime.device_rules import DeviceRules

Rule = tuple[str, Callable[..., Any]]
"""Kind of op, as ``DeviceNumerics.ops`` names it, and what computes it."""

_FUNCTIONS = ("exp", "log", "reciprocal", "rsqrt", "sigmoid", "sqrt", "square", "tanh")
_COPIES = frozenset(
    "to bfloat16 cat stack pad flatten reshape clone contiguous copy_ index_select repeat_interleave repeat new_empty "
    "new_zeros zeros_like empty_like zero_ fill_ neg abs where __getitem__ interpolate amax max clamp one_hot "
    "embedding index_copy masked_fill".split()
)
"""Torch functions that round nothing, beyond those that give views."""


@contextmanager
def as_device(numerics: DeviceNumerics, dtype: str, arch: str) -> Iterator[Counter[str]]:
    """Compute ops by the rules of ``numerics`` until the block ends.

    Args:
        numerics: the rules.
        dtype: storage of the run, ``fp32`` or ``bf16``.
        arch: of the mesh's chips.

    Yields:
        The ops without a rule, counted by name as they come.
    """
    _share_cores()
    rounding = DeviceRounding(DeviceRules(numerics, dtype, arch), numerics.ops)
    with rounding, kernels.in_place_of_torch(rounding):
        yield rounding.without_rule


def _share_cores() -> None:
    """Let compiled loops use as many cores as torch does: ranks share them, and waiting for one costs milliseconds.

    Numba's threads are OpenMP's as torch's are, and it sets their number for both.
    """
    if importlib.util.find_spec("numba") is not None:
        import numba

        threads = torch.get_num_threads()
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        torch.set_num_threads(threads)


class DeviceRounding(TorchFunctionMode):
    """Computes torch functions, and those marked by :func:`refsim.runtime.kernels.kernel`, by rules.

    Attributes:
        without_rule: ops on device tensors that torch rounded once, counted by name.
    """

    def __init__(self, rules: DeviceRules, ops: tuple[str, ...]) -> None:
        super().__init__()
        self.without_rule: Counter[str] = Counter()
        self._in_bf16 = rules.in_bf16
        self._ops = {*ops}
        products = {*ops, *(("linear", "conv") if "weights" in ops else ())}
        self._torch: dict[Any, Rule] = {
            F.linear: ("linear", rules.linear),
            F.conv2d: ("conv", rules.conv),
            F.conv3d: ("conv", rules.conv),
            F.layer_norm: ("norm", rules.layer_norm),
            F.rms_norm: ("norm", rules.torch_rms_norm),
            F.scaled_dot_product_attention: ("sdpa", rules.whole_sdpa),
            F.silu: ("activation", lambda x, inplace=False: rules.function("silu", x)),
            F.gelu: ("activation", rules.gelu),
            F.relu: ("activation", lambda x, inplace=False: rules.function("relu", x)),
        }
        self._torch = {func: rule for func, rule in self._torch.items() if rule[0] in products}
        self._on_bf16: dict[str, Rule] = {
            "add": ("eltwise", rules.add),
            "sub": ("eltwise", rules.subtract),
            "mul": ("eltwise", rules.multiply),
            "div": ("eltwise", rules.divide),
            "__rsub__": ("eltwise", lambda a, b: rules.subtract(b, a)),
            "add_": ("eltwise", lambda a, b: a.copy_(rules.add(a, b))),
            "sub_": ("eltwise", lambda a, b: a.copy_(rules.subtract(a, b))),
            "mul_": ("eltwise", lambda a, b: a.copy_(rules.multiply(a, b))),
            "softmax": ("norm", rules.softmax),
            **{name: ("activation", partial(rules.function, name)) for name in _FUNCTIONS},
        }
        self._marked: dict[str, Rule] = {
            "add": ("eltwise", rules.add),
            "mul": ("eltwise", rules.multiply),
            "hop": ("ccl", rules.add),
            "rms_norm": ("norm", rules.rms_norm),
            "channel_norm": ("norm", rules.channel_norm),
            "group_norm": ("norm", rules.group_norm),
            "layer_statistics": ("norm", rules.layer_statistics),
            "from_layer_statistics": ("norm", rules.from_layer_statistics),
            "rms_statistics": ("norm", rules.rms_statistics),
            "from_rms_statistics": ("norm", rules.from_rms_statistics),
            "rope_pairs": ("rope", rules.rope_pairs),
            "rope_halves": ("rope", rules.rope_halves),
            "blocks_of_keys": ("sdpa", rules.blocks_of_keys),
        }

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in self._torch:
            return self._by(self._torch[func][1], func.__name__, func, args, kwargs)
        if not self._in_bf16 or not any(_is_bf16(x) for x in args):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in self._on_bf16:
            return self._arithmetic(name, func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_new(result, args) and name not in _COPIES:
            self.without_rule[name] += 1
        return result

    def kernel(self, name: str, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute what a layer marked as an op of the device."""
        op, rule = self._marked.get(name, ("", None))
        if rule is not None and op in self._ops:
            with torch._C.DisableTorchFunction():
                return self._by(rule, name, function, args, kwargs)
        if rule is None:
            self.without_rule[name] += 1
        return function(*args, **kwargs)

    def _arithmetic(self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        op, rule = self._on_bf16[name]
        mixed = any(isinstance(x, Tensor) and x.dtype is torch.float32 for x in args)
        if op not in self._ops or mixed:
            return func(*args, **kwargs)
        if kwargs and op != "norm":
            self.without_rule[name] += 1
            return func(*args, **kwargs)
        return self._by(rule, name, func, args, kwargs)

    def _by(self, rule: Callable[..., Any], name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute by a rule; by torch, counted, where it has none for these arguments, and where there is nothing."""
        if any(isinstance(x, Tensor) and not x.numel() for x in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        result = rule(*args, **kwargs)
        if result is NotImplemented:
            self.without_rule[name] += 1
            return func(*args, **kwargs)
        return result


def _is_bf16(x: Any) -> bool:
    if isinstance(x, tuple | list):
        return any(_is_bf16(each) for each in x)
    return isinstance(x, Tensor) and x.dtype is torch.bfloat16


def _is_new(result: Any, args: tuple) -> bool:
    """Whether a function gave a bf16 tensor of its own, and no view of what it took."""
    if not isinstance(result, Tensor) or result.dtype is not torch.bfloat16 or not result.ndim:
        return False  # a single number is what the host asks about a tensor
    memory = result.untyped_storage().data_ptr()
    return all(not isinstance(x, Tensor) or x.untyped_storage().data_ptr() != memory for x in args)
