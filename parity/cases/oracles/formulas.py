"""Attention by torch's own functions on whole tensors, in this process: what ranks are judged by.

The answer is ``torch.nn.functional.scaled_dot_product_attention`` on float64 by the plain math kernel (the simulator's
blocks use the fused one), the log-sum-exp ``torch.logsumexp`` on float64 scores. The same call in the storage dtype
says what rounding alone costs, of ``gemm`` math the three textbook steps with scores and weights held in that dtype.
Where storage is bf16, all get the same bf16 values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.cases import AttentionShape

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SCORES_BYTES = 16 * 2**20
"""Scores held at a time, which a cache holds; more of them are computed by blocks of queries."""


def joint_rows(tensors: dict[str, Tensor], name: str, rows: int) -> Tensor:
    """Put the prompt's rows behind the real ones of the image: (B, H, rows + L, E)."""
    image = tensors[name][:, :, :rows]
    return torch.cat([image, tensors[f"joint_{name}"]], 2) if f"joint_{name}" in tensors else image


def attention_float64(tensors: dict[str, Tensor], shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """Return (out (B, H, rows + L, E), lse (B, H, rows + L)) in float64 over all real keys."""
    q, k, v = (joint_rows(tensors, name, shape.rows).double() for name in ("q", "k", "v"))
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float64)
    block = max(1, _SCORES_BYTES // (8 * k.shape[2]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for start in range(0, q.shape[2], block):
                at = (slice(b, b + 1), slice(h, h + 1))
                rows = (*at, slice(start, start + block))
                with sdpa_kernel(SDPBackend.MATH):
                    out[rows] = F.scaled_dot_product_attention(q[rows], k[at], v[at])
                lse[rows] = torch.logsumexp(q[rows] @ k[at].transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
    return out, lse


def _stored(tensors: dict[str, Tensor], shape: AttentionShape, dtype: str) -> tuple[Tensor, ...]:
    return tuple(joint_rows(tensors, name, shape.rows).to(_DTYPES[dtype]) for name in ("q", "k", "v"))


def attention_noise(tensors: dict[str, Tensor], shape: AttentionShape, dtype: str) -> Tensor:
    """Call torch's attention once in the storage dtype: (B, H, rows + L, E)."""
    q, k, v = _stored(tensors, shape, dtype)
    return F.scaled_dot_product_attention(q, k, v)


def attention_gemm_noise(tensors: dict[str, Tensor], shape: AttentionShape, dtype: str) -> tuple[Tensor, Tensor]:
    """Do as :func:`attention_float64`, scores and weights in the storage dtype, the softmax between in fp32."""
    q, k, v = _stored(tensors, shape, dtype)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return F.softmax(scores, -1).to(q.dtype) @ v, torch.logsumexp(scores, -1)
