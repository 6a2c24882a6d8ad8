"""Blockwise attention of one device: one (q chunk, k chunk) at a time, merged by log-sum-exp.

    for every k block that arrives:  (out_new, lse_new) = softmax attention over this block alone
        s   = sigmoid(lse_new - lse)              weight of the new block
        out = out - s * (out - out_new)           in fp32
        lse = lse - logsigmoid(lse - lse_new)     = log(exp(lse) + exp(lse_new))

Adding block outputs without these weights is wrong however well it correlates (PCC 0.9991 has been seen).

A block alone is computed one precision above storage (bf16 -> fp32, fp32 -> fp64), so that what is left of rounding
is the scheme's own: partial results and the merge are fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.parallel.sequence import Range
from refsim.runtime.device import Device

_MATH = {torch.float32: torch.float64, torch.bfloat16: torch.float32}


class OnlineSoftmax:
    """Running attention output and log-sum-exp of a fixed set of queries ``q_BHNE``.

    Queries are handled ``device.options.q_chunk_size`` rows at a time; the caller cuts keys into k chunks.
    """

    def __init__(self, device: Device, q_BHNE: Tensor) -> None:
        self.device, self._dtype = device, q_BHNE.dtype
        self._q_chunk_size = device.options.q_chunk_size
        self._q = _packed(q_BHNE, _MATH[q_BHNE.dtype])
        self._out = torch.zeros(q_BHNE.shape, dtype=torch.float32)
        self._lse = torch.full(q_BHNE.shape[:-1], -torch.inf, dtype=torch.float32)
        self._started = False

    def attend(self, k_BHNE: Tensor, v_BHNE: Tensor, *, step: int, buffer: str) -> None:
        """Attend to one block of keys; a block without rows changes nothing."""
        if k_BHNE.shape[2] == 0:
            return
        with self.device.compute("sdpa", self._q, k_BHNE, v_BHNE, step=step, buffer=buffer):
            k, v = _packed(k_BHNE, self._q.dtype), _packed(v_BHNE, self._q.dtype)
            for start in range(0, self._q.shape[2], self._q_chunk_size):
                rows = slice(start, start + self._q_chunk_size)
                out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(self._q[:, :, rows], k, v)
                self._merge(rows, out.float(), lse.float())
        self._started = True

    def _merge(self, rows: slice, out_new: Tensor, lse_new: Tensor) -> None:
        if not self._started:
            self._out[:, :, rows], self._lse[:, :, rows] = out_new, lse_new
            return
        out, lse = self._out[:, :, rows], self._lse[:, :, rows]
        out.sub_(torch.sigmoid(lse_new - lse).unsqueeze(-1) * (out - out_new))
        lse.sub_(F.logsigmoid(lse - lse_new))

    def result(self) -> tuple[Tensor, Tensor]:
        """(out_BHNE in the storage dtype, lse_BHN in fp32)."""
        return self._out.to(self._dtype), self._lse


def _packed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype``, dense: the kernel takes features for neighbours in memory and answers wrongly otherwise."""
    return x.to(dtype, memory_format=torch.contiguous_format)


def intersect(ranges: list[Range], start: int, stop: int) -> list[Range]:
    """The parts of ``ranges`` inside [start, stop), relative to ``start``."""
    cut = [(max(a, start) - start, min(b, stop) - start) for a, b in ranges]
    return [(a, b) for a, b in cut if a < b]
