"""Matmul, linear and minimal_matmul: K blocks, and what carries the partial sums between them.

    K block --> matrix unit --> destination --> packer --+--> L1 (bf16; fp32 with a destination of 32 bits)
                    ^                                     |      packer_l1_acc: the packer adds there
                    +---- reload (fp32 cut to TF32) <-----+      otherwise, and before the last block: the next block
                                                                 starts from what was packed
    last block (or, with a bias, L1 + bias on the matrix unit) --> activation --> packer --> out

A K block that is short restarts the destination often, which a 16-bit one gains by: its roundings go away from zero.

Source: tt-metal's `bmm_large_block_zm_fused_bias_activation.cpp` and facts on ttnn 0.81.1's defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from refsim.numerics.composites.compute import Compute, by_rows, reloaded
from refsim.numerics.packer import accumulate

Activation = str | Callable[[Tensor], Tensor] | None
BLOCK_FORMATS = ("bfloat8_b", "bfloat4_b")


def default_compute(
    in0_dtype: str, in1_dtype: str, out_dtype: str, *, program_config: bool = False, arch: str = "wormhole_b0"
) -> Compute:
    """Return what ``ttnn.matmul`` and ``ttnn.linear`` choose when no compute config is given.

    Args:
        in0_dtype, in1_dtype, out_dtype: names of dtypes.
        program_config: a program config or a core grid is given.
        arch: ``wormhole_b0`` or ``blackhole``.
    """
    if "float32" in (in0_dtype, in1_dtype):
        fidelity = "HiFi3" if arch == "wormhole_b0" else "HiFi4"
    elif program_config or (in0_dtype in BLOCK_FORMATS and in1_dtype in BLOCK_FORMATS):
        fidelity = "LoFi"
    else:
        fidelity = "HiFi2"
    wide = out_dtype == "float32"
    return Compute(fidelity, fp32_dest_acc_en=wide, packer_l1_acc=not wide, arch=arch)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    compute: Compute,
    k_block: int | None = None,
    activation: Activation = None,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.linear``: x (..., K) times weight (K, N), plus bias (N,), and an activation.

    Args:
        x, weight, bias: float32, the values that L1 holds; the bias may have a row (M, N) for each of x.
        compute: fidelity, destination, packer_l1_acc.
        k_block: values of K in a block (``in0_block_w`` x 32), by default all of K; the last block may be shorter.
        activation: a function of the vector unit by name, or one of the destination, applied before it is packed.
        out_dtype: of the result.
    """
    rows = by_rows(x)
    depth = rows.shape[1]
    k_block = k_block or depth
    blocks = _blocks(rows, weight, k_block, compute, last_apart=bias is None)
    if bias is None:
        dest = _last_in_destination(blocks, compute)
    else:
        partial = _all_in_l1(blocks, compute) if compute.packer_l1_acc else _spilled(blocks, compute)
        dest = compute.add(partial, bias.reshape(-1, bias.shape[-1]))
    dest = _activated(dest, activation, compute)
    return compute.store(dest, out_dtype).reshape(*x.shape[:-1], weight.shape[1])


def _activated(dest: Tensor, activation: Activation, compute: Compute) -> Tensor:
    if activation is None:
        return dest
    return compute.sfpu(activation, dest) if isinstance(activation, str) else activation(dest)


def _blocks(
    rows: Tensor, weight: Tensor, k_block: int, compute: Compute, *, last_apart: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return operands by K block.

    Of level ``fast`` those that are added in float32 in L1, which rounds nothing that counts, are one: all of them, or
    those before the last where that starts from their sum (``last_apart``).
    """
    starts = list(range(0, rows.shape[1], k_block))
    if compute.level == "fast" and compute.fp32_dest_acc_en and compute.packer_l1_acc:
        starts = sorted({0, starts[-1]}) if last_apart else [0]
    ends = [*starts[1:], rows.shape[1]]
    return [(rows[:, k:end], weight[k:end]) for k, end in zip(starts, ends, strict=True)]


def _last_in_destination(blocks: list[tuple[Tensor, Tensor]], compute: Compute) -> Tensor:
    """Return the destination after the last block, which starts from the sum of the others."""
    *before, last = blocks
    if not before:
        return compute.matmul(*last)
    carried = _all_in_l1(before, compute) if compute.packer_l1_acc else _spilled(before, compute)
    return compute.matmul(*last, start=reloaded(carried))


def _all_in_l1(blocks: list[tuple[Tensor, Tensor]], compute: Compute) -> Tensor:
    """Return what L1 holds after the packer has added every block."""
    partial = compute.store(compute.matmul(*blocks[0]))
    for block in blocks[1:]:
        added = compute.matmul(*block)
        partial = accumulate(partial, added, dtype=compute.l1_dtype, fp32_dest_acc_en=compute.fp32_dest_acc_en)
    return partial


def _spilled(blocks: list[tuple[Tensor, Tensor]], compute: Compute) -> Tensor:
    """Return what L1 holds after every block, each starting from what the one before packed."""
    partial = None
    for block in blocks:
        start = None if partial is None else reloaded(partial)
        partial = compute.store(compute.matmul(*block, start=start))
    assert partial is not None
    return partial


def minimal_matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    k_block: int,
    compute: Compute | None = None,
    activation: Activation = None,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.experimental.minimal_matmul``: HiFi2, 32-bit destination, K blocks added in fp32 in L1.

    Args:
        x, weight, bias, k_block, activation, out_dtype: as in :func:`linear`.
        compute: by default HiFi2 with a destination of 32 bits.
    """
    compute = replace(compute or Compute("HiFi2", fp32_dest_acc_en=True), packer_l1_acc=True)
    rows = by_rows(x)
    blocks = _blocks(rows, weight, k_block, compute, last_apart=False)
    dest = reloaded(_all_in_l1(blocks, compute))
    if bias is not None:
        dest = compute.add(dest, bias.reshape(-1, bias.shape[-1]))
    dest = _activated(dest, activation, compute)
    return compute.store(dest, out_dtype).reshape(*x.shape[:-1], weight.shape[1])


@dataclass(frozen=True)
class Windows:
    """What a convolution sees; each of every spatial dim, or one for all."""

    padding: int | tuple[int, ...] = 0
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1


_WINDOWS_AT_ONCE = 2**25
"""Values of windows that a convolution has in memory at once: overlapping ones repeat those of the input."""


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    compute: Compute,
    windows: Windows = Windows(),
    blocks: tuple[int | None, int | None] = (None, None),
    activation: Activation = None,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return conv2d or conv3d as ttnn runs it: windows as rows of a matmul, K in blocks.

    Args:
        x: float32 (B, C, H, W) or (B, C, T, H, W).
        weight: float32 (O, C, kernel...).
        bias: float32 (O,).
        compute: as of :func:`linear`.
        windows: padding, stride and dilation.
        blocks: values of K = kernel x C in a block, by default those of one place of the kernel; channels whose places
            come before those of the next channels, by default all C.
        activation, out_dtype: as of :func:`linear`.

    Returns:
        float32 (B, O, ...).
    """
    spatial = x.dim() - 2
    kernel = weight.shape[2:]
    pads, strides, steps = ((n,) * spatial if isinstance(n, int) else n for n in astuple(windows))
    k_block, channel_block = blocks
    x = torch.nn.functional.pad(x, [pad for one in reversed(pads) for pad in (one, one)])
    for index in range(spatial):
        x = x.unfold(2 + index, steps[index] * (kernel[index] - 1) + 1, strides[index])[..., :: steps[index]]
    # (B, blocks, C, places..., kernel...) -> (B, places..., blocks, kernel..., C): channels of one place lie together
    x, weight = (t.unflatten(1, (-1, channel_block or t.shape[1])) for t in (x, weight))
    grid = x.permute(0, *range(3, 3 + spatial), 1, *range(3 + spatial, 3 + 2 * spatial), 2)
    matrix = weight.permute(1, *range(3, 3 + spatial), 2, 0).reshape(-1, weight.shape[0])
    k_block = k_block or weight.shape[2]
    outs = []
    for part in grid.split(max(1, _WINDOWS_AT_ONCE * grid.shape[1] // grid.numel()), 1):  # a row rounds by itself
        rows = part.reshape(part.shape[0] * part.shape[1 : 1 + spatial].numel(), -1)
        out = linear(rows, matrix, bias, compute=compute, k_block=k_block, activation=activation, out_dtype=out_dtype)
        outs.append(out.reshape(*part.shape[: 1 + spatial], -1))
    return torch.cat(outs, 1).movedim(-1, 1)
