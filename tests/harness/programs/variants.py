"""Kinds of findings in many forms: axes, operations, readers, positions and keywords; each wrong, and once right.

A family is a program of an :class:`tests.tt_impl.env.Env`, ``wrong`` and its options; every combination of
the options is a program of its own. A wrong one is named by its kind, a right one gives nothing. The mesh is 2x4 lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env
from tt_impl.mock.storage.errors import ShadowError

EXPECTED: dict[str, str] = {}
"""The kind that names the wrong version of every program."""
FAMILIES: dict[str, tuple[str, dict[str, Sequence[Any]]]] = {}
"""Kind and options of every family."""
UNSUMMED = 64
"""Columns of a sum on each device."""


def table() -> str:
    """Return the families as rows of Markdown: kind, family, options, programs (half of them right)."""
    rows = ["| kind | family | options | programs |", "|---|---|---|---|"]
    for name, (kind, options) in sorted(FAMILIES.items(), key=lambda row: row[1][0]):
        told = "; ".join(f"{option}: {', '.join(map(str, values))}" for option, values in options.items())
        rows.append(f"| `{kind}` | {name.replace('_', ' ')} | {told} | {2 * prod(map(len, options.values()))} |")
    return "\n".join(rows)


def family(kind: str, **options: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(program: Callable[..., None]) -> Callable[..., None]:
        FAMILIES[program.__name__] = (kind, options)
        for chosen in product(*options.values()):
            name = "-".join((program.__name__, *map(str, chosen)))
            globals()[name] = functools.partial(program, **dict(zip(options, chosen, strict=True)))
            EXPECTED[name] = kind
        return program

    return register


def cut(axis: int, dim: int) -> tuple[int | None, int | None]:
    """A tensor cut along ``dim`` over one axis, the same along the other one."""
    return (dim, None) if axis == 0 else (None, dim)


def first(t: Env, tensor: Any) -> torch.Tensor:
    return t.ttnn.to_torch(t.ttnn.get_device_tensors(tensor)[0])


def inner(t: Env, axis: int) -> int:
    return 64 * t.shape[axis]


def part_of_a_product(t: Env, axis: int, form: str) -> Any:
    """Columns times rows that are cut over the axis: each device has a part of the sum."""
    ttnn, columns = t.ttnn, UNSUMMED * t.shape[axis]
    x = t.put(t.rand(1, 1, 32, inner(t, axis)), cut(axis, 3))
    if form == "transposed":
        weight = t.put(t.rand(columns, inner(t, axis)), cut(axis, 1))
        return ttnn.matmul(x, weight, transpose_b=True)
    weight = t.put(t.rand(inner(t, axis), columns), cut(axis, 0))
    if form == "keywords":
        return ttnn.linear(input_tensor_a=x, input_tensor_b=weight)
    if form == "minimal":
        return ttnn.experimental.minimal_matmul(x, weight)
    if form == "scaled":
        return ttnn.multiply(ttnn.linear(x, weight), 0.5)
    return ttnn.reshape(ttnn.matmul(x, weight), (1, 32, columns)) if form == "view" else ttnn.matmul(x, weight)


def summed(t: Env, y: Any, axis: int, add: str) -> Any:
    """The sum over the axis, whole on every device again."""
    ttnn = t.ttnn
    if add == "all_reduce":
        return ttnn.all_reduce(y, cluster_axis=axis, topology=t.linear)
    if add == "scatter_gather":
        part = ttnn.reduce_scatter(y, -1, cluster_axis=axis, topology=t.linear)
        return ttnn.all_gather(part, dim=-1, cluster_axis=axis, topology=t.linear)
    part = ttnn.experimental.reduce_scatter_minimal_async(
        y, dim=len(y.shape) - 1, multi_device_global_semaphore=t.semaphores(3), barrier_semaphore=t.semaphores(1)[0],
        cluster_axis=axis, topology=t.linear,
    )  # fmt: skip
    return ttnn.experimental.all_gather_async(
        part, dim=len(y.shape) - 1, multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0],
        cluster_axis=axis, topology=t.linear,
    )  # fmt: skip


def used(t: Env, y: Any, reader: str) -> None:
    ttnn = t.ttnn
    if reader == "softmax":
        y = ttnn.softmax(y, dim=-1)
    elif reader == "rms_norm":
        y = ttnn.rms_norm(y, epsilon=1e-5)
    elif reader == "product":
        y = ttnn.multiply(y, y)
    elif reader == "host":
        return first(t, ttnn.from_device(y))
    return first(t, y)


@family("partial-sum", axis=(0, 1), form=("matmul", "transposed", "keywords", "minimal", "scaled", "view"),
        reader=("softmax", "host"))  # fmt: skip
def forgotten(t: Env, wrong: bool, axis: int, form: str, reader: str) -> None:
    y = part_of_a_product(t, axis, form)
    used(t, y if wrong else summed(t, y, axis, "all_reduce"), reader)


@family("partial-sum", axis=(0, 1), add=("all_reduce", "scatter_gather", "async"), reader=("rms_norm", "product"))
def along_the_other_axis(t: Env, wrong: bool, axis: int, add: str, reader: str) -> None:
    used(t, summed(t, part_of_a_product(t, axis, "matmul"), 1 - axis if wrong else axis, add), reader)


@family("bias-summed", axis=(0, 1), add=("all_reduce", "scatter_gather", "async"), by=("linear", "add", "add_"))
def bias_of_every_device(t: Env, wrong: bool, axis: int, add: str, by: str) -> None:
    ttnn, columns = t.ttnn, UNSUMMED * t.shape[axis]
    x, weight = (
        t.put(t.rand(1, 1, 32, inner(t, axis)), cut(axis, 3)),
        t.put(t.rand(inner(t, axis), columns), cut(axis, 0)),
    )
    bias = t.put(t.rand(1, columns))
    y = ttnn.linear(x, weight, bias=bias if wrong and by == "linear" else None)
    if wrong and by != "linear":
        y = ttnn.add(y, bias) if by == "add" else ttnn.add_(y, bias)
    y = summed(t, y, axis, add)
    first(t, y if wrong else ttnn.add(y, bias))


@family("local-statistics", axis=(0, 1), norm=("rms_norm", "layer_norm"), gather=("whole", "async", "other_axis"))
def statistics(t: Env, wrong: bool, axis: int, norm: str, gather: str) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, inner(t, axis)), cut(axis, 3))
    stats = getattr(ttnn, f"{norm}_pre_all_gather")(x, dtype=ttnn.bfloat16)
    if gather == "other_axis":
        stats = ttnn.all_gather(stats, 3, cluster_axis=1 - axis if wrong else axis, topology=t.linear)
    elif not wrong and gather == "whole":
        stats = ttnn.all_gather(stats, -1, cluster_axis=axis, topology=t.linear)
    elif not wrong:
        stats = ttnn.experimental.all_gather_async(
            stats, dim=3, multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0],
            cluster_axis=axis, topology=t.linear,
        )  # fmt: skip
    first(t, getattr(ttnn, f"{norm}_post_all_gather")(x, stats, epsilon=1e-5))


@family("ring-without-link", op=("all_gather", "reduce_scatter", "all_reduce", "all_gather_async", "scatter_async"))
def ring(t: Env, wrong: bool, op: str) -> None:
    ttnn = t.ttnn
    topology = ttnn.Topology.Ring if wrong else t.linear
    x = t.put(t.rand(1, 1, 32, 512), (None, 3))
    how = {"cluster_axis": 1, "topology": topology}
    if op == "all_gather":
        y = ttnn.all_gather(x, 3, **how)
    elif op == "reduce_scatter":
        y = ttnn.reduce_scatter(x, 3, **how)
    elif op == "all_reduce":
        y = ttnn.all_reduce(x, **how)
    elif op == "all_gather_async":
        y = ttnn.experimental.all_gather_async(
            x, dim=3, multi_device_global_semaphore=t.semaphores(2), barrier_semaphore=t.semaphores(1)[0], **how
        )
    else:
        y = ttnn.experimental.reduce_scatter_minimal_async(
            x, dim=3, multi_device_global_semaphore=t.semaphores(3), barrier_semaphore=t.semaphores(1)[0], **how
        )
    first(t, y)


@family("small-buffer", axis=(0, 1), dim=(1, 2, 3, -1), positional=(False, True))
def gather_into(t: Env, wrong: bool, axis: int, dim: int, positional: bool) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 2, 64, 256), (None, None))
    shape = [1, 2, 64, 256]
    shape[dim] *= 1 if wrong else t.shape[axis]
    buffer = t.empty(*shape)
    ttnn.synchronize_device(t.device)
    how = {"num_links": 1, "topology": t.linear, "cluster_axis": axis}
    named = {"persistent_output_buffer": buffer, "dim": dim, "multi_device_global_semaphore": t.semaphores(2)}
    try:
        if positional:
            y = ttnn.experimental.all_gather_async(x, *named.values(), **how)
        else:
            y = ttnn.experimental.all_gather_async(input_tensor=x, **named, **how)
        first(t, y)
    except ShadowError:  # the buffer's shape is not that of the result
        assert wrong


@family("freed", how=("call", "method", "forced", "by_keyword"), reader=("add", "host", "view", "output"))
def given_back(t: Env, wrong: bool, how: str, reader: str) -> None:
    ttnn = t.ttnn
    x, other = t.put(t.rand(1, 1, 32, 128)), t.put(t.rand(1, 1, 32, 128))

    def free() -> None:
        if how == "method":
            x.deallocate(True)
        elif how == "by_keyword":
            ttnn.deallocate(tensor=x)
        else:
            ttnn.deallocate(x, *([True] if how == "forced" else []))

    if wrong:
        free()
    try:
        if reader == "host":
            first(t, x)
        elif reader == "view":
            first(t, ttnn.reshape(x, (1, 32, 128)))
        else:
            first(t, ttnn.add(other, x) if reader == "add" else ttnn.multiply(other, 2.0, output_tensor=x))
    except (RuntimeError, ShadowError, UserError):
        assert wrong
    if not wrong:
        free()


@family("never-written", made=("empty", "empty_like", "allocate"), reader=("add", "matmul", "in_place", "view", "copy"))
def unwritten(t: Env, wrong: bool, made: str, reader: str) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 128, 128))
    if made == "empty":
        y = t.empty(1, 1, 128, 128)
    elif made == "empty_like":
        y = ttnn.empty_like(x)
    else:
        y = ttnn.allocate_tensor_on_device(ttnn.Shape((1, 1, 128, 128)), ttnn.bfloat16, ttnn.TILE_LAYOUT, t.device)
    if not wrong:
        ttnn.copy(x, y)
    if reader == "add":
        out = ttnn.add(x, y)
    elif reader == "matmul":
        out = ttnn.matmul(y, x)
    elif reader == "in_place":
        out = ttnn.multiply_(y, 2.0)
    elif reader == "view":
        out = ttnn.exp(ttnn.reshape(y, (1, 128, 128)))
    else:
        out = ttnn.clone(y)
    first(t, out)


@family("trace-overwrites-input", by=("in_place", "output", "copy", "view"), blocking=(False, True), warm=(False, True))
def replayed(t: Env, wrong: bool, by: str, blocking: bool, warm: bool) -> None:
    ttnn, shape = t.ttnn, (1, 1, 32, 64)
    x, scale, fresh, other = (t.put(t.rand(*shape)) for _ in range(4))

    def step() -> Any:
        if by == "in_place":
            ttnn.multiply_(scale if wrong else ttnn.clone(scale), 2.0)
        elif by == "output":
            ttnn.multiply(scale, 2.0, output_tensor=scale if wrong else other)
        elif by == "copy":
            ttnn.copy(ttnn.multiply(scale, 2.0), scale if wrong else other)
        else:
            ttnn.multiply_(ttnn.reshape(scale if wrong else ttnn.clone(scale), (1, 32, 64)), 2.0)
        return ttnn.multiply(x, scale)

    if warm:
        step()
        ttnn.copy(fresh, scale)
    trace = ttnn.begin_trace_capture(t.device, cq_id=0)
    y = step()
    ttnn.end_trace_capture(t.device, trace, cq_id=0)
    for _ in range(2):
        ttnn.execute_trace(t.device, trace, cq_id=0, blocking=blocking)
    first(t, y)
    ttnn.release_trace(t.device, trace)


@family("not-finite", op=("log", "sqrt", "rsqrt", "asin", "softmax", "acos", "pow"), dtype=("bfloat16", "float32"))
def not_a_number(t: Env, wrong: bool, op: str, dtype: str) -> None:
    ttnn = t.ttnn
    value = torch.full(
        (1, 1, 32, 32), {"softmax": -torch.inf, "asin": -2.0, "acos": 2.0}.get(op, -1.0) if wrong else 0.5
    )
    x = t.put(value, dtype=dtype)
    if op == "softmax":
        y = ttnn.softmax(x, dim=-1)
    else:
        y = ttnn.pow(x, 0.5) if op == "pow" else getattr(ttnn, op)(x)
    first(t, y)


@family("refused", op=("matmul", "add", "reshape", "concat", "rms_norm"))
def caught(t: Env, wrong: bool, op: str) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 64))
    other = t.put(t.rand(1, 1, 32, 96 if wrong else 64))
    try:
        if op == "matmul":
            y = ttnn.matmul(x, other, transpose_b=True)
        elif op == "add":
            y = ttnn.add(x, other)
        elif op == "reshape":
            y = ttnn.reshape(x, (1, 1, 48 if wrong else 64, 32))
        elif op == "concat":
            y = ttnn.concat([x, other], 2)
        else:
            y = ttnn.rms_norm(x, weight=ttnn.reshape(other, (1, 1, 32, 96)) if wrong else t.put(t.rand(1, 64)))
    except RuntimeError:  # as programs do that have another way
        y = x
    first(t, y)


@family("tile-padding", rows=(20, 40), keys=(4, 1), shared=(False, True))
def mask(t: Env, wrong: bool, rows: int, keys: int, shared: bool) -> None:
    ttnn = t.ttnn
    q, k, v = (t.put(t.rand(1, heads, rows, 64)) for heads in (4, keys, keys))
    hidden = torch.full((1, 1 if shared else 4, rows, rows), -1e9).triu(1)
    padded = ttnn.from_torch(
        hidden, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device,
        pad_value=0.0 if wrong else -float("inf"), mesh_mapper=ttnn.ReplicateTensorToMesh(t.device),
    )  # fmt: skip
    first(t, ttnn.transformer.scaled_dot_product_attention(q, k, v, attn_mask=padded, is_causal=False))


@family("partial-sum", axis=(0, 1), gathered=(False, True),
        reader=("max", "square", "clamp", "matmul", "maximum", "where"))  # fmt: skip
def no_function_of_a_sum(t: Env, wrong: bool, axis: int, gathered: bool, reader: str) -> None:
    """Gathered, the parts lie side by side, and are added up along the new dim."""
    ttnn, size = t.ttnn, t.shape[axis]
    y = part_of_a_product(t, axis, "matmul")
    other = t.put(t.rand(size if gathered and wrong else 1, 1, 32, UNSUMMED * size))
    if gathered:
        y = ttnn.all_gather(y, 0, cluster_axis=axis, topology=t.linear)
        y = y if wrong else ttnn.sum(y, dim=0, keepdim=True)
    elif not wrong:
        y = summed(t, y, axis, "all_reduce")
    if reader == "max":
        y = ttnn.max(y, dim=-1, keepdim=True)
    elif reader == "clamp":
        y = ttnn.clamp(y, min=-1.0, max=1.0)
    elif reader == "matmul":
        y = ttnn.matmul(y, y, transpose_b=True)
    elif reader == "maximum":
        y = ttnn.maximum(other, y)
    else:
        y = ttnn.square(y) if reader == "square" else ttnn.where(y, other, 0.0)
    first(t, y)


@family("partial-sum", axis=(0, 1), dim=(2, 3), op=("sum", "mean"), reader=("rsqrt", "subtract", "divide"))
def reduced(t: Env, wrong: bool, axis: int, dim: int, op: str, reader: str) -> None:
    """A mean over what is cut is that of one device's part."""
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 128, 256), cut(axis, dim))
    total = getattr(ttnn, op)(ttnn.square(x), dim=dim, keepdim=True)
    if not wrong:
        total = ttnn.all_reduce(total, cluster_axis=axis, topology=t.linear)
    if reader == "rsqrt":
        total = ttnn.rsqrt(total)
    first(t, ttnn.subtract(x, total) if reader == "subtract" else ttnn.divide(x, total))


@family("bias-summed", axis=(0, 1), by=("addcmul", "number", "share", "divided"), add=("all_reduce", "scatter_gather"))
def counted_once_per_device(t: Env, wrong: bool, axis: int, by: str, add: str) -> None:
    """One n-th of what is added on each of n devices is right."""
    ttnn, size = t.ttnn, t.shape[axis]
    y = part_of_a_product(t, axis, "matmul")
    whole, gate = t.put(t.rand(1, 1, 32, UNSUMMED * size)), t.put(t.rand(1, 1, 1, UNSUMMED * size))
    if by == "addcmul":
        y = ttnn.addcmul(whole, y, gate) if wrong else ttnn.multiply(y, gate)
    elif by == "number":
        y = ttnn.add(y, 1.0 if wrong else 0.0)
    else:
        factor = 1.0 if wrong else 1 / size
        y = ttnn.add(y, ttnn.multiply(whole, factor) if by == "share" else ttnn.divide(whole, 1 / factor))
    first(t, summed(t, y, axis, add))


@family("local-statistics", axis=(0, 1), norm=("layer_norm", "rms_norm", "softmax"), by=("host", "reduce_scatter"))
def of_some_columns(t: Env, wrong: bool, axis: int, norm: str, by: str) -> None:
    ttnn = t.ttnn
    x = t.put(t.rand(1, 1, 32, 256), cut(axis, 3))
    if by == "reduce_scatter":
        part = part_of_a_product(t, axis, "matmul")
        x = ttnn.reduce_scatter(part, 3, cluster_axis=axis, topology=t.linear)
    x = ttnn.multiply(ttnn.add(x, x), 0.5)
    if not wrong:
        x = ttnn.all_gather(x, 3, cluster_axis=axis, topology=t.linear)
    first(t, ttnn.softmax(x, dim=-1) if norm == "softmax" else getattr(ttnn, norm)(x, epsilon=1e-5))


@family("never-written", reader=("product", "slice", "added"), rows=(32, 96))
def filled_in_part(t: Env, wrong: bool, reader: str, rows: int) -> None:
    ttnn = t.ttnn
    cache = t.empty(1, 2, 128, 64)
    ttnn.fill_cache(cache, t.put(t.rand(1, 2, rows, 64)), 0)
    read = 128 if wrong else rows
    keys = ttnn.slice(cache, (0, 0, 0, 0), (1, 2, read, 64)) if reader == "slice" or not wrong else cache
    if reader == "added":
        first(t, ttnn.add(keys, 1.0))
    else:
        first(t, ttnn.matmul(t.put(t.rand(1, 2, 32, 64)), keys, transpose_b=True))
