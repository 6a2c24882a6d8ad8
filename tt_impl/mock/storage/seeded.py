"""Random weights that take no memory until somebody computes with them: seeded by their name, drawn anew at each use.

A checkpoint of 140 GB is a name, a shape and a dtype a tensor; its values are drawn by torch from a seed and the name,
so that the same seed gives the same bits whenever and wherever they are read.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch.utils import _pytree as pytree

_KEEPS = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}


class Seeded(torch.Tensor):
    """A tensor of normal numbers of scale ``1 / sqrt(fan in)``; one of a dim has ones (a norm's weight) or near zero.

    Operations see real tensors: ``real()`` draws them, and what is made of them is an ordinary tensor.
    """

    @staticmethod
    def __new__(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Seeded:
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        made.of = (name, seed)
        return made

    of: tuple[str, int]

    def real(self) -> torch.Tensor:
        """Draw the values."""
        name, seed = self.of
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))  # torch takes 32 bits of it
        if not self.dtype.is_floating_point:
            return torch.zeros(tuple(self.shape), dtype=self.dtype)
        drawn = torch.randn(tuple(self.shape), generator=generator)
        if self.dim() > 1:
            drawn *= (self.numel() / self.shape[0]) ** -0.5
        else:
            drawn *= 0.02
            drawn += name.endswith("weight")
        return drawn.to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _KEEPS:
            (one,) = args
            return cls(one.of[0], tuple(one.shape), one.dtype, one.of[1])
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and set(kwargs) == {"dtype"}:
            (one,) = args
            return cls(one.of[0], tuple(one.shape), kwargs["dtype"], one.of[1])
        real = pytree.tree_map_only(cls, cls.real, (args, kwargs))
        return func(*real[0], **real[1])

    def __repr__(self, **options: Any) -> str:
        return f"Seeded({self.of[0]!r}, {tuple(self.shape)}, {self.dtype})"


def real(tensor: Any) -> Any:
    """Return the values of a tensor that has none yet, and any other one as it is."""
    return tensor.real() if isinstance(tensor, Seeded) else tensor
