"""Attention of a few rows, for sizes of which the whole would take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.nn.functional as F
from torch import Tensor


@contextmanager
def only_rows(choose: Callable[[int], Tensor]) -> Iterator[None]:
    """Have torch's attention without a mask compute only the rows of q that ``choose(rows)`` numbers; others are NaN.

    Rows do not depend on each other.
    """
    whole = F.scaled_dot_product_attention

    def some(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, **how: Any):
        if mask is not None or is_causal:
            return whole(q, k, v, mask, is_causal=is_causal, **how)
        rows = choose(q.shape[2])
        out = q.new_full((*q.shape[:3], v.shape[-1]), float("nan"))
        out[:, :, rows] = whole(q[:, :, rows], k, v, **how)
        return out

    with mock.patch.object(F, "scaled_dot_product_attention", some):
        yield
