"""Rotary position embedding: of video tokens (time, height, width) and of text tokens (position).

Video: pairs of neighbouring features, angles computed in float64.

    features of a head   [ t pairs | h pairs | w pairs ]      pair j of an axis of d features: angle p * theta^(-2j/d)
    (x0, x1)             -> (x0 cos - x1 sin, x0 sin + x1 cos)

Tokens are ordered (t, y, x), t slowest. A member of sp computes the angles of its own tokens only, so nothing is
communicated.

Text: feature j of the first half of a head is paired with feature j of the second half, angles computed in fp32, as
the language models were trained. The one in place of the other is a silent error.

Source: RoFormer (arXiv 2104.09864); interleaved pairs as in diffusers, halves as transformers' ``rotate_half``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.runtime.device import Device
from refsim.runtime.kernels import kernel

Range = tuple[int, int]
Rotary = tuple[Tensor, Tensor]
"""(cos, sin) of this device's rows of one stream, each (rows, E / 2) in fp32."""


def token_positions(grid: tuple[int, int, int], span: Range) -> tuple[Tensor, Tensor, Tensor]:
    """Return (t, y, x) of the tokens [start, stop) of a grid (frames, rows, columns), int64."""
    _, rows, columns = grid
    token = torch.arange(*span)
    return token // (rows * columns), token // columns % rows, token % columns


def rotary_angles(positions: tuple[Tensor, ...], features: tuple[int, ...], theta: float = 10000.0) -> Tensor:
    """Return the angles (tokens, sum(features) / 2) in float64: per axis, a position times its frequencies.

    Args:
        positions: per axis one number per token.
        features: per axis how many features of a head it turns, even.
    """
    angles = []
    for position, size in zip(positions, features, strict=True):
        frequencies = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles.append(torch.outer(position, frequencies))
    return torch.cat(angles, -1)


def apply_rotary(device: Device, x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    """Turn the neighbouring pairs of (B, H, N, E) by the angles of (N, E / 2); fp32 inside, x's dtype out."""
    with device.compute("rope", x_BHNE):
        return _turned_pairs(x_BHNE, cos_NP, sin_NP)


@kernel("rope_pairs")
def _turned_pairs(x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    even, odd = x_BHNE.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos_NP - odd * sin_NP, even * sin_NP + odd * cos_NP], -1)
    return turned.flatten(-2).to(x_BHNE.dtype)


def text_rotary(positions_N: Tensor, features: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), each (N, features / 2) in fp32, of whole positions in a text."""
    angles = text_angles(positions_N, features, theta)
    return angles.cos(), angles.sin()


def text_angles(positions_N: Tensor, features: int, theta: float) -> Tensor:
    """Return the angles (N, features / 2) in fp32 of whole positions."""
    frequencies = 1.0 / theta ** (torch.arange(0, features, 2, dtype=torch.float32) / features)
    return torch.outer(positions_N, frequencies)


def rotate_halves(device: Device, x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    """Turn feature j with feature j + E / 2 of (B, H, N, E) by the angles of (N, E / 2); fp32 inside, x's dtype out."""
    with device.compute("rope", x_BHNE):
        return _turned_halves(x_BHNE, cos_NP, sin_NP)


@kernel("rope_halves")
def _turned_halves(x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    first, second = x_BHNE.float().chunk(2, -1)
    turned = torch.cat([first * cos_NP - second * sin_NP, second * cos_NP + first * sin_NP], -1)
    return turned.to(x_BHNE.dtype)
