"""Run a kernel on the functional simulator: torch tensors of any size in and out.

``import ttl`` of a kernel is answered as in programs on the mock (:mod:`tt_impl.mock.ttlang`): bf16 is held in bf16,
fp32 in fp32. Tensors are padded to whole tiles and handed over as tensors of the simulator; the answer is cut back.
What the simulator only warns of (more dataflow buffers than a node has, more bytes than its L1) is an error here, as it
would be on a device.
"""

from __future__ import annotations

import importlib
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.kernels.blocks import TILE
from tt_impl.mock.ttlang.module import served
from tt_impl.mock.ttlang.simulator import Simulator, load

KERNELS = {
    "residual_add": "residual_add",
    "rmsnorm": "rmsnorm",
    "rope": "rope",
    "softmax": "softmax",
    "matmul": "matmul",
    "matmul_residual_add": "matmul",
    "matmul_silu_mul": "matmul_silu_mul",
    "argmax": "argmax",
}
"""Kernel and the file it is in."""


class KernelError(Exception):
    """A kernel that a node could not hold, or that the simulator refused; one sentence."""


@dataclass(frozen=True)
class Simulated:
    """What a run gave: the answer, the dataflow buffers of a node and their bytes of L1, seconds of simulation."""

    out: Tensor
    l1_bytes: int
    buffers: int
    seconds: float


def run(
    name: str, operands: list[Tensor], out_shape: tuple[int, int], *, grid: tuple[int, int] = (1, 1), **options: Any
) -> Simulated:
    """Simulate one kernel.

    Args:
        name: one of ``KERNELS``.
        operands: 2-D torch tensors, fp32 or bf16, in the kernel's order, without ``out``.
        out_shape: rows and columns of the answer, which has the dtype of the first operand (fp32 for argmax).
        grid: nodes, rows and columns.
        options: of the kernel's ``make_...``.

    Raises:
        KernelError: buffers that a node cannot hold, or what the simulator says.
    """
    with served():
        simulator = _simulator()
        ttl = importlib.import_module("ttl")
        make = getattr(importlib.import_module(f"tt_impl.kernels.{KERNELS[name]}"), f"make_{name}")
    dtype = torch.float32 if name == "argmax" else operands[0].dtype
    used: dict[str, int] = {}

    def counted(*args: Any, **kwargs: Any) -> Any:
        made = buffer_like(*args, **kwargs)
        used.update(bytes=simulator.context.kernel_l1_bytes, buffers=simulator.context.kernel_dfb_count)
        return made

    buffer_like = ttl.make_dataflow_buffer_like
    ttl.make_dataflow_buffer_like = counted  # type: ignore[attr-defined]  # a module made when it is imported
    started = time.monotonic()
    tensors = [_tensor(simulator, _padded(x)) for x in operands]
    out = _tensor(simulator, _padded(torch.zeros(out_shape, dtype=dtype)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(grid=grid, **options)(*tensors, out)
    except Warning as e:
        raise KernelError(f"{name} does not fit a node: {str(e).split('. ')[0]}; take smaller blocks.") from e
    except (RuntimeError, ValueError, TypeError) as e:
        raise KernelError(f"{name}: {e.__cause__ or e}") from e
    finally:
        ttl.make_dataflow_buffer_like = buffer_like  # type: ignore[attr-defined]
    answer = simulator.tensors.to_torch(out)[: out_shape[0], : out_shape[1]].to(dtype)
    return Simulated(answer, used["bytes"], used["buffers"], time.monotonic() - started)


def _simulator() -> Simulator:
    try:
        return load()
    except ImportError as e:
        raise KernelError(str(e)) from e


def _tensor(simulator: Simulator, x: Tensor) -> Any:
    return simulator.tensors.from_torch(x, dtype=x.dtype, layout=simulator.tensors.TILE_LAYOUT)


def _padded(x: Tensor) -> Tensor:
    """Return ``x`` with zeros added up to whole tiles."""
    rows, columns = x.shape
    return F.pad(x, (0, -columns % TILE, 0, -rows % TILE))
