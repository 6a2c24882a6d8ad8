"""Blockwise attention of one device: one (q chunk, k chunk) at a time, merged by log-sum-exp.

    for every k block that arrives:  (out_new, lse_new) = softmax attention over this block alone
        s   = sigmoid(lse_new - lse)              weight of the new block
        out = out + s * (out_new - out)           in fp32
        lse = lse - logsigmoid(lse - lse_new)     = log(exp(lse) + exp(lse_new))

Adding block outputs without these weights is wrong however well it correlates (PCC 0.9991 has been seen).

``device.options.math`` says how a block alone is computed; partial results and the merge are fp32 either way:
    storage      in the dtype of storage by torch's fused kernel, whose answer to a block is rounded to that dtype
    reference    one precision above (bf16 -> fp32, fp32 -> fp64), so that what is left of rounding is the scheme's own
    gemm         two products of matrices in the dtype of storage, the softmax between them in fp32:
                 q, k -> scores, rounded to storage -> exp(scores - top) in fp32, rounded to storage -> product with v
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.options import RunOptions
from refsim.parallel.sequence import Keys
from refsim.runtime.device import Device
from refsim.runtime.kernels import kernel

_ABOVE = {torch.float32: torch.float64, torch.bfloat16: torch.float32}
_TILE = 2**20
"""Scores that :func:`_by_products` holds at a time, of 64 to 512 queries: 4 MiB in fp32, which a cache holds."""


class OnlineSoftmax:
    """Attention of a fixed set of queries ``q_BHNE`` to blocks of keys as they come.

    Queries are handled ``device.options.chunk_sizes[0]`` rows at a time; the caller cuts keys into k chunks.

    Args:
        by_sample: samples may differ in their keys, so each has an answer of its own and attends to its own keys only.
        answered: how many rows, from the first, are to be answered; the others get zeros.
    """

    def __init__(self, device: Device, q_BHNE: Tensor, *, by_sample: bool = False, answered: int | None = None) -> None:
        self.device = device
        self._samples = q_BHNE.split(1) if by_sample else (q_BHNE,)
        self._missing = 0 if answered is None else q_BHNE.shape[2] - answered
        self._blocks = [_blocks_of_keys(device.options, sample[:, :, :answered]) for sample in self._samples]
        self._seen: set[int] = set()

    def attend(self, k_BHNE: Tensor, v_BHNE: Tensor, keys: Keys | None = None, *, step: int, buffer: str = "-") -> None:
        """Attend to one block of keys, in one piece per range of ``keys`` (all rows if None) or per sample's mask.

        What has no rows changes nothing, but a block in a device buffer counts as read as a whole: a device's op does
        not know before what is padding.

        Args:
            buffer: what the trace says of keys that are in no device buffer.
        """
        k_buffer = self.device.buffers.of(k_BHNE)
        with self.device.reading("sdpa", k_BHNE, v_BHNE, step=step):
            for sample, k, v in self._pieces(k_BHNE, v_BHNE, keys):
                q = self._samples[sample]
                id = k_buffer.id if k_buffer else buffer
                with self.device.compute("sdpa", q, k, v, step=step, buffer=id, again=sample in self._seen):
                    self._blocks[sample].attend(k, v, step=step)
                self._seen.add(sample)

    def attend_in_blocks(
        self, k_BHNE: Tensor, v_BHNE: Tensor, mask_BN: Tensor | None = None, *, step: int = 0, buffer: str
    ) -> None:
        """Attend to keys of any number, ``device.options.chunk_sizes[1]`` rows at a time."""
        size = self.device.options.chunk_sizes[1]
        for start in range(0, k_BHNE.shape[2], size):
            k, v = (x[:, :, start : start + size] for x in (k_BHNE, v_BHNE))
            masked = () if mask_BN is None else (mask_BN[:, start : start + size],)
            self.attend(k, v, *masked, step=step, buffer=buffer)

    def _pieces(self, k_BHNE: Tensor, v_BHNE: Tensor, keys: Keys | None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the rows of a block that are keys, with the number of their sample; none that have no rows."""
        ranges = [(0, k_BHNE.shape[2])] if keys is None else keys
        count = len(self._blocks)
        for sample, (k, v) in enumerate(zip(k_BHNE.chunk(count), v_BHNE.chunk(count), strict=True)):
            if isinstance(ranges, Tensor):
                chosen = [ranges[sample]] if ranges[sample].any() else []
            else:
                chosen = [slice(start, stop) for start, stop in ranges if start < stop]
            yield from ((sample, k[:, :, rows], v[:, :, rows]) for rows in chosen)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return (out_BHNE in the storage dtype, lse_BHN in fp32)."""
        results = [blocks.result() for blocks in self._blocks]
        out, lse = results[0] if len(results) == 1 else (torch.cat(parts) for parts in zip(*results, strict=True))
        if self._missing:
            return F.pad(out, (0, 0, 0, self._missing)), F.pad(lse, (0, self._missing))
        return out, lse


class Blocks(Protocol):
    """What has been seen of the keys: ``q`` (B, H, N, E), and an answer that every block changes."""

    q: Tensor

    def attend(self, k_BHNE: Tensor, v_BHNE: Tensor, *, step: int) -> None:
        """Take one block into the answer."""

    def result(self) -> tuple[Tensor, Tensor]:
        """Return (out_BHNE in the storage dtype, lse_BHN in fp32)."""


@kernel("blocks_of_keys")
def _blocks_of_keys(options: RunOptions, q_BHNE: Tensor) -> Blocks:
    return MergedBlocks(options, q_BHNE)


class MergedBlocks:
    """The running output and log-sum-exp, into which each block's own answer is merged."""

    def __init__(self, options: RunOptions, q_BHNE: Tensor) -> None:
        self._dtype = q_BHNE.dtype
        self._q_chunk_size = options.chunk_sizes[0]
        self._block = _by_products if options.math == "gemm" else _fused
        self.q = _packed(q_BHNE, _ABOVE[q_BHNE.dtype] if options.math == "reference" else q_BHNE.dtype)
        self._out = torch.zeros(q_BHNE.shape, dtype=torch.float32)
        self._lse = torch.full(q_BHNE.shape[:-1], -torch.inf, dtype=torch.float32)
        self._started = False

    def attend(self, k_BHNE: Tensor, v_BHNE: Tensor, *, step: int) -> None:
        """Answer one block alone and merge it."""
        k = _packed(k_BHNE, self.q.dtype)
        v = _packed(v_BHNE, self.q.dtype)
        for start in range(0, self.q.shape[2], self._q_chunk_size):
            rows = slice(start, start + self._q_chunk_size)
            out, lse = self._block(self.q[:, :, rows], k, v)
            if self._started:
                merge(self._out[:, :, rows], self._lse[:, :, rows], out.float(), lse.float())
            else:
                self._out[:, :, rows] = out
                self._lse[:, :, rows] = lse
        self._started = True

    def result(self) -> tuple[Tensor, Tensor]:
        """Return (out_BHNE in the storage dtype, lse_BHN in fp32)."""
        return self._out.to(self._dtype), self._lse


def merge(out: Tensor, lse: Tensor, out_new: Tensor, lse_new: Tensor) -> None:
    """Take the answer of one more block into the running one, (..., N, E) and (..., N) in fp32, in place.

    The result does not depend on which of the two came first but for rounding, so members of a ring may visit shards
    in different orders.
    """
    out.lerp_(out_new, torch.sigmoid(lse_new - lse).unsqueeze(-1))  # in one pass over memory
    lse.sub_(F.logsigmoid(lse - lse_new))


def _fused(q_BHNE: Tensor, k_BHME: Tensor, v_BHME: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to one block by torch's kernel: out (B, H, N, E) in their dtype, lse (B, H, N) in fp32 or wider."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q_BHNE, k_BHME, v_BHME)


def _by_products(q_BHNE: Tensor, k_BHME: Tensor, v_BHME: Tensor) -> tuple[Tensor, Tensor]:
    """Compute what :func:`_fused` does by two matrix products, a head and a tile of scores at a time; both in fp32."""
    batch, heads, queries, features = q_BHNE.shape
    out = torch.empty(q_BHNE.shape, dtype=torch.float32)
    lse = torch.empty(q_BHNE.shape[:-1], dtype=torch.float32)
    scale = features**-0.5
    tile = max(64, min(512, _TILE // k_BHME.shape[2]))
    for b, h, start in itertools.product(range(batch), range(heads), range(0, queries, tile)):
        rows = b, h, slice(start, start + tile)
        weights_NM = torch.mm(q_BHNE[rows], k_BHME[b, h].T).float()
        top_N1 = weights_NM.amax(-1, keepdim=True)
        weights_NM.sub_(top_N1).mul_(scale).exp_()
        total_N1 = weights_NM.sum(-1, keepdim=True)
        torch.div(torch.mm(weights_NM.to(q_BHNE.dtype), v_BHME[b, h]), total_N1, out=out[rows])
        lse[rows] = torch.add(total_N1.log(), top_N1, alpha=scale).squeeze(-1)
    return out, lse


def _packed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` in ``dtype``, dense: the kernel takes features for neighbours in memory, else it answers wrongly."""
    # to() alone takes any strides for contiguous where the dtype is right already
    return x.to(dtype, memory_format=torch.contiguous_format).contiguous()


def intersect(keys: Keys, start: int, stop: int) -> Keys:
    """Return the keys among rows [start, stop), relative to ``start``; of a range outside nothing, b <= a."""
    if isinstance(keys, Tensor):
        return keys[:, start:stop]
    return [(max(a, start) - start, min(b, stop) - start) for a, b in keys]
