"""What operations leave in the tiles of their results beyond the shape.

Kernels work on whole tiles, so most leave there what they make of the padding of their inputs. Known are those that
move whole tiles, compute element by element, multiply matrices, or fill; of all others nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import ttnn

from tt_impl.mock.rules.binary import BINARY, IN_PLACE
from tt_impl.mock.rules.eltwise import UNARY
from tt_impl.mock.rules.padding_read import PRODUCTS, SOFTMAX
from tt_impl.mock.rules.registry import RULES, Call, for_rule, mapped
from tt_impl.mock.storage.dtypes import round_to
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.padding import Padding
from tt_impl.mock.storage.values import Shards
from tt_impl.trace.intercept import on_device, tensors_in

_UNKNOWN = Padding()
_BY_PLACE = frozenset({"alt_complex_rotate90", "prelu", "tril", "triu"})
"""Operations of one tensor that are not the same function for every element."""


def left_in_tiles(call: Call, output: ttnn.Tensor) -> Padding:
    """Return what ``call`` leaves in the last tiles of one of its outputs, if they are not whole."""
    leaves = _LEAVES.get(call.name)
    if leaves is None or output.shape == output.padded_shape:
        return _UNKNOWN
    try:
        return leaves(call, output)
    except (ArithmeticError, LookupError, RuntimeError, ShadowError, TypeError, ValueError):
        return _UNKNOWN  # what the rule refuses of padding


def _inputs(call: Call) -> list[ttnn.Tensor]:
    named = for_rule(call.kwargs, call.name) if call.kwargs else {}
    return [tensor for tensor in tensors_in((call.args, named)) if on_device(tensor)]


def _ends(tensor: ttnn.Tensor) -> tuple[int, ...]:
    return (1, 1, *tensor.shape)[-2:]


def _same_tiles(call: Call, output: ttnn.Tensor) -> Padding:
    source = _inputs(call)[0]
    return call.store.fills(source) if _ends(source) == _ends(output) else _UNKNOWN


def _swapped(call: Call, output: ttnn.Tensor) -> Padding:
    """Turn rows into columns, or break tiles and fill them with ``pad_value``."""
    source = _inputs(call)[0]
    fills = call.store.fills(source)
    if call.name == "ttnn.transpose" and _ends(source) == _ends(output)[::-1]:
        rank = len(source.shape)
        if {call.argument("dim1", 1) % rank, call.argument("dim2", 2) % rank} == {rank - 1, rank - 2}:
            return Padding(fills.columns, fills.rows)
    number = call.kwargs.get("pad_value") or 0.0
    return Padding.of(number) if fills == Padding.of(number) or _ends(source) != _ends(output) else _UNKNOWN


def _reshaped(call: Call, output: ttnn.Tensor) -> Padding:
    if call.kwargs.get("skip_padding_fill"):
        return _UNKNOWN
    return Padding.of(call.kwargs.get("pad_value") or 0.0)


def _element_by_element(call: Call, output: ttnn.Tensor) -> Padding:
    """Compute the operation of the numbers that fill up its inputs; an input that is repeated has none."""
    inputs = {id(tensor): tensor for tensor in _inputs(call)}
    rows, columns = _ends(output)
    below = {key: call.store.fills(t).rows if _ends(t)[0] == rows else None for key, t in inputs.items()}
    right = {key: call.store.fills(t).columns if _ends(t)[1] == columns else None for key, t in inputs.items()}
    number = _of_numbers(call, inputs, below)
    return Padding(number, number if right == below else _of_numbers(call, inputs, right))


def _of_numbers(call: Call, inputs: dict[int, ttnn.Tensor], fills: dict[int, float | None]) -> float | None:
    if None in fills.values():
        return 0.0 if "multiply" in call.name and 0.0 in fills.values() else None

    def number(value: Any) -> Any:
        fill = fills.get(id(value))
        return value if fill is None else Shards([torch.tensor([fill])], (1,), (1, 1), inputs[id(value)].dtype)

    alone = replace(call, evaluations=0)
    arguments = mapped(number, (call.args, for_rule(call.kwargs, call.name)))
    ((value,),) = RULES[call.name](alone, *arguments)
    return float(round_to(value, call.outputs[0].dtype))


def _of_product(call: Call, output: ttnn.Tensor) -> Padding:
    """Return the product of zeros with a column, or a row: 0, if nothing is added or applied to it."""
    extras = ("bias", "bias_tensor", "activation", "fused_activation", "program_activation", "fuse_swiglu")
    options = for_rule(call.kwargs, call.name)
    if len(call.args) > 2 or any(options.get(name) is not None for name in extras) or call.name == "ttnn.addmm":
        return _UNKNOWN
    a, b = (call.argument(*place) for place in PRODUCTS[call.name])
    fills_a = call.store.fills(a)
    fills_b = call.store.fills(b)
    rows = fills_a.columns if options.get("transpose_a") else fills_a.rows
    columns = fills_b.rows if options.get("transpose_b") else fills_b.columns
    return Padding(*(0.0 if fill == 0.0 else None for fill in (rows, columns)))


def _of_softmax(call: Call, output: ttnn.Tensor) -> Padding:
    """Leave zeros right of the last column, which the kernel hides, if that is the dim it normalises."""
    dim = call.kwargs.get("dim", -1) if call.name != "ttnn.softmax" else call.argument("dim", 1)
    last = dim is None or dim % len(output.shape) == len(output.shape) - 1
    return Padding(None, 0.0 if last and not output.is_sharded() else None)


def _of_norm(call: Call, output: ttnn.Tensor) -> Padding:
    """Leave what the weight and the bias have right of their last column, times and plus anything finite."""
    weight = call.kwargs.get("weight")
    bias = call.kwargs.get("bias")
    zero = [call.store.fills(t).columns == 0.0 for t in (weight, bias) if t is not None]
    return Padding(None, 0.0 if weight is not None and all(zero) else None)


def _table() -> dict[str, Callable[[Call, ttnn.Tensor], Padding]]:
    moved = """
        assign clone copy interleaved_to_sharded move reallocate reshard sharded_to_interleaved to_memory_config
        squeeze unsqueeze unsqueeze_to_4D""".split()
    elements = {*UNARY, *BINARY, *IN_PLACE, "addalpha", "addcdiv", "addcmul", "isclose", "lerp", "mac", "polyval"}
    elements |= {"subalpha", "typecast", "unary_chain", "where"}
    return {
        **{f"ttnn.{name}": _same_tiles for name in moved},
        **{f"ttnn.{name}": _element_by_element for name in elements - _BY_PLACE},
        **dict.fromkeys(("ttnn.reshape", "ttnn.Tensor.reshape"), _reshaped),
        **dict.fromkeys(("ttnn.permute", "ttnn.transpose"), _swapped),
        **dict.fromkeys(PRODUCTS, _of_product),
        **dict.fromkeys(SOFTMAX, _of_softmax),
        **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _of_norm),
    }


_LEAVES = _table()
