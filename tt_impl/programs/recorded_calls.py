"""One forward of a published model on a mesh, without weights, and what every call of ttnn in it was given.

Twice, so that both of what takes turns is used. Only one block of each kind is there, at the real widths.
Counterpart of nothing in ``refsim``: only ttnn takes such options.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import ttnn

from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from tt_impl.parallel.context import Context
from tt_impl.pipelines.allocation import Subject
from tt_impl.pipelines.transformer import submeshes
from tt_impl.trace.intercept import Invocation, intercepted, on_device, tensors_in

CallRecord = dict[str, Any]


def program(
    device: ttnn.MeshDevice,
    options: RunOptions,
    *,
    model: dict[str, Any] | str,
    shapes: dict[str, list[int]],
    again: dict[str, list[int]] | None = None,
    **_: Any,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Report ``calls``, different ones once each (see :func:`described`), ``grid``, ``shape`` of the submesh,
    how many global semaphores no call was given (``idle``), and with what numbers they begin (``begins``).

    Args:
        again: shapes of a further forward that are not those of the others.
    """
    subject = Subject.of(model, shapes)
    submesh = submeshes(device, options)[0]
    subject = subject.with_counts(dict.fromkeys(subject.counts(), 1)) if subject.counts() else subject
    watcher = Watcher()
    with intercepted(watcher):
        built = subject.build(Context(submesh, options), ShapeWeights(torch.bfloat16))
        for _again in range(2):
            subject.feed(built)
        if again:
            Subject.of(model, shapes | again).feed(built)
    size = submesh.compute_with_storage_grid_size()
    report = {"calls": list(watcher.calls.values()), "idle": watcher.idle, "grid": [size.x, size.y]}
    return report | {"shape": list(submesh.shape), "begins": sorted(watcher.begins)}, {}


class Watcher:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`."""

    def __init__(self) -> None:
        self.calls: dict[str, CallRecord] = {}
        self.begins: set[int] = set()
        self._semaphores: dict[int, tuple[Any, bool]] = {}

    @property
    def idle(self) -> int:
        """Global semaphores that were made and no call was given."""
        return sum(not used for _, used in self._semaphores.values())

    def __call__(self, call: Invocation) -> Any:
        result = call.proceed()
        if call.name == "ttnn.create_global_semaphore":
            self._semaphores[id(result)] = result, False
            self.begins.add(call.args[2])
        for value in _nested([*call.args, *call.kwargs.values()]):
            if id(value) in self._semaphores:
                self._semaphores[id(value)] = value, True
        if call.inputs:
            record = described(call, result)
            self.calls.setdefault(str(record), record)
        return result


def _nested(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _nested(value)
        else:
            yield value


def described(call: Invocation, result: Any) -> CallRecord:
    """Note a call's arguments as JSON values: ``op``, ``inputs`` and ``outputs`` (shape, padded shape, dtype, memory),
    ``arguments`` (whole numbers, booleans and names of its options), ``squares`` of what is multiplied with itself, and
    :func:`settings`."""
    inputs = [_tensor(t) for t in call.inputs]
    outputs = [_tensor(t) for t in tensors_in(result) if on_device(t)]
    arguments = {name: _plain(value) for name, value in call.kwargs.items()}
    record: CallRecord = {"op": call.name, "inputs": inputs, "outputs": outputs}
    record["arguments"] = {name: value for name, value in arguments.items() if value is not None}
    if call.name == "ttnn.multiply" and call.args[0] is call.args[1]:
        record["squares"] = True
    return record | settings(call.kwargs)


def settings(options: dict[str, Any]) -> CallRecord:
    """Of the options of a call those that are settings of the device: ``compute``, ``matmul``, ``sdpa``, ``conv``."""
    record: CallRecord = {}
    if (how := options.get("compute_kernel_config")) is not None:
        record["compute"] = {
            "fidelity": how.math_fidelity.name,
            "approximate": how.math_approx_mode,
            "fp32": how.fp32_dest_acc_en,
            "l1_accumulation": how.packer_l1_acc,
        }
    if isinstance(config := options.get("config"), ttnn.MinimalMatmulConfig):
        size = config.compute_with_storage_grid_size
        block = {"m": config.M_block_size, "k": config.K_block_size, "n": config.N_block_size}
        record["matmul"] = block | {"h": config.subblock_h, "w": config.subblock_w, "grid": [size.x, size.y]}
    if isinstance(config := options.get("config"), ttnn.Conv3dConfig):
        size = config.compute_with_storage_grid_size
        record["conv"] = {"c_in": config.C_in_block, "c_out": config.C_out_block, "grid": [size.x, size.y]}
        record["conv"] |= {"h": config.H_out_block, "w": config.W_out_block}
    if isinstance(config := options.get("program_config"), ttnn.SDPAProgramConfig):
        size = config.compute_with_storage_grid_size
        chunks = {"q": config.q_chunk_size, "k": config.k_chunk_size, "approximate": config.exp_approx_mode}
        record["sdpa"] = chunks | {"grid": [size.x, size.y]}
    return record


def _plain(value: Any) -> Any:
    """Return a number, a boolean, a name, or the kind of memory; None for anything else."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
        return list(value)
    if isinstance(value, ttnn.MemoryConfig):
        return value.buffer_type.name
    return value.name if isinstance(value, ttnn.Topology | ttnn.UnaryOpType | ttnn.DataType) else None


def _tensor(t: ttnn.Tensor) -> list[Any]:
    memory = "freed"
    with suppress(RuntimeError):  # an operation may free what it was given
        memory = t.memory_config().buffer_type.name
    return [list(t.shape), list(t.padded_shape), t.dtype.name, memory]
