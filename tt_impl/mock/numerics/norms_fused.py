"""Norms of diffusion transformers whose statistics go over a ring inside the kernel, with heads and rotation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.numerics.composites import elementwise, fused_norms
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, computing


def normed(
    kernel: Kernel, part: Tensor, shards: list[Tensor], weight: Tensor | None, bias: Tensor | None, *, epsilon: float,
    centred: bool,
) -> Tensor:  # fmt: skip
    """Normalise a device's columns by those of all ``shards``; what is rotated after is packed as an intermediate."""
    compute = kernel.compute(fused_norms.DIT)
    turns = kernel.call.kwargs.get("rope_cos") is not None
    how: dict[str, Any] = {"eps": epsilon, "compute": compute}
    function = fused_norms.fused_layer_norm if centred else fused_norms.fused_rms_norm
    out_dtype = compute.l1_dtype if turns else kernel.out_dtype
    return function(part, shards, (weight, bias), out_dtype=out_dtype, **how)


def rotated(kernel: Kernel, x: Tensor, transformation: Tensor | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """Turn neighbours of heads; another transformation is not modelled."""
    if cos is None or sin is None or transformation is None:
        return x
    if not torch.equal(transformation.reshape(transformation.shape[-2:]), elementwise.swapped()):
        raise Unmodelled("another transformation")
    compute = kernel.compute(fused_norms.DIT)
    cos, sin = (table[..., : x.shape[-2], :] for table in (cos, sin))
    return fused_norms.rotated_once(x, cos, sin, compute=compute, out_dtype=kernel.out_dtype)


computing(
    "experimental.dit_fused_distributed_rmsnorm",
    "experimental.dit_fused_distributed_layernorm",
    normed=normed,
    rotated=rotated,
)
