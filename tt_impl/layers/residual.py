"""Residual blocks, and the stages of the way up, of decoders; counterpart of ``refsim.layers.residual``.

    x --+-- norm, silu, conv --> norm, silu, conv --+-->
        '-- as it is, or by a convolution of 1 -----'

A norm and a convolution are other ones in every decoder (channels cut over tp; causal in time; a norm that asks the
latent), so a decoder hands in what makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ttnn

Make = Callable[..., Any]


class ResidualBlock:
    """norm, silu, conv, norm, silu, conv, and the input (through a convolution of 1 where channels change).

    Args:
        norm: ``norm(name, channels)`` makes a norm with SiLU, which ttnn has as one operation.
        conv, shortcut: ``conv(name, in_channels, out_channels)`` makes a convolution.
    """

    def __init__(
        self, name: str, in_channels: int, out_channels: int, *, norm: Make, conv: Make, shortcut: Make
    ) -> None:
        self._norm1 = norm(f"{name}.norm1", in_channels)
        self._norm2 = norm(f"{name}.norm2", out_channels)
        self._conv1 = conv(f"{name}.conv1", in_channels, out_channels)
        self._conv2 = conv(f"{name}.conv2", out_channels, out_channels)
        self._shortcut = None
        if in_channels != out_channels:
            self._shortcut = shortcut(f"{name}.conv_shortcut", in_channels, out_channels)

    def __call__(self, x: ttnn.Tensor, *, to_norm: tuple[Any, ...], to_conv: tuple[Any, ...]) -> ttnn.Tensor:
        """``to_norm``, ``to_conv``: what the norms and the convolutions take besides their input."""
        hidden = self._conv1(self._norm1(x, *to_norm), *to_conv)
        hidden = self._conv2(self._norm2(hidden, *to_norm), *to_conv)
        return ttnn.add(hidden, x if self._shortcut is None else self._shortcut(x, *to_conv))


def stages_up(
    widths: list[int], blocks: int, block: Make, up: Make, *, halves: bool = False
) -> list[tuple[list[ResidualBlock], Any]]:
    """Return the residual blocks of every width and what enlarges their result, None for the last.

    Args:
        widths: channels of the stages, in the order they run.
        blocks: residual blocks of a stage.
        block: ``block(name, in_channels, out_channels)`` makes one.
        up: ``up(name, channels, index)`` makes what enlarges the result of a stage.
        halves: it leaves half as many channels.
    """
    stages = []
    arriving = widths[0]
    for index, channels in enumerate(widths):
        name = f"decoder.up_blocks.{index}"
        sizes = [arriving, *[channels] * blocks]
        resnets = [block(f"{name}.resnets.{j}", *pair) for j, pair in enumerate(pairwise(sizes))]
        last = index == len(widths) - 1
        stages.append((resnets, None if last else up(f"{name}.upsamplers.0", channels, index)))
        arriving = channels // 2 if halves else channels
    return stages
