"""How a device computes one op on a rank's local tensors, by rule: torch's arguments in, a tensor of their dtype out.

    tensors --> float32, the values that L1 holds --> refsim.numerics.composites --> dtype of the tensors

In a run in fp32 with ``activations=bfloat16`` what goes in is rounded first, so that one op can be a device's while
everything around it is exact. A rule returns ``NotImplemented`` for arguments that it has no arithmetic for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from refsim.base.device_numerics import DeviceNumerics
from refsim.numerics import from_host
from refsim.numerics.composites import Compute, attention, elementwise, linear, norms
from refsim.numerics.composites.compute import zeros_to

_BLOCK = 16
"""Values that share an exponent in bfp8_b and bfp4_b."""


_TILE = 32


class DeviceRules:
    """The arithmetic that a :class:`refsim.base.device_numerics.DeviceNumerics` asks for.

    Args:
        numerics: the rules.
        dtype: storage of the run, ``fp32`` or ``bf16``.
        arch: of the mesh's chips.
    """

    def __init__(self, numerics: DeviceNumerics, dtype: str, arch: str) -> None:
        self._spec = numerics
        self.in_bf16 = dtype == "bf16"
        self._activations = numerics.activations
        if self._activations == "dtype":
            self._activations = "bfloat16" if self.in_bf16 else "float32"
        self._chip = {"arch": arch if numerics.arch == "mesh" else numerics.arch, "level": numerics.level}
        self._weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._products = self._compute(numerics.fidelity, wide=numerics.dest == "fp32")
        self._sdpa = self._compute(numerics.sdpa_fidelity, wide=numerics.sdpa_dest == "fp32")
        self._norm = self._compute(numerics.norm_fidelity, wide=numerics.norm_dest == "fp32")

    def _compute(self, fidelity: str, *, wide: bool) -> Compute:
        return Compute(fidelity, wide, packer_l1_acc=True, approximate=self._spec.approximate, **self._chip)

    def _unit(self, dtype: str) -> Compute:
        """Return the config of an element-wise op, whose destination is as wide as its tensors."""
        return self._compute("HiFi4", wide=dtype == "float32")

    def _dtype(self, x: Tensor) -> str:
        """Return what the device holds a tensor as; in a run in bf16 a tensor in fp32 is one there as well."""
        return "float32" if self.in_bf16 and x.dtype is torch.float32 else self._activations

    def _read(self, x: Tensor | None, dtype: str) -> Tensor | None:
        if x is None:
            return None
        return x.bfloat16().float() if dtype == "bfloat16" else x.float()

    def _matrix(self, weight: Tensor) -> Tensor:
        """Return a weight (out, in) as (in, out) in the format it is stored as, blocks along ``out``."""
        if self._spec.weights == "float32":
            return weight.float().T
        if self._spec.weights == "bfloat16":
            return weight.bfloat16().float().T
        if weight not in self._weights:
            matrix = weight.float().T
            padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % _BLOCK)).contiguous()
            self._weights[weight] = from_host(padded, self._spec.weights)[:, : matrix.shape[1]]
        return self._weights[weight]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply as minimal_matmul does, or as ttnn.linear with a destination of 16 bits."""
        matrix = self._matrix(weight)
        dtype = self._dtype(x)
        if "linear" not in self._spec.ops:
            return torch.nn.functional.linear(x, matrix.T.to(x.dtype), bias)
        product = linear.minimal_matmul if self._products.fp32_dest_acc_en else linear.linear
        how = {"k_block": self._spec.k_block, "compute": self._products, "out_dtype": dtype}
        return product(self._read(x, dtype), matrix, self._read(bias, dtype), **how).to(x.dtype)

    def conv(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, **more: Any
    ) -> Tensor:
        """Convolve as conv2d and conv3d do; not in groups, nor dilated."""
        if more or isinstance(padding, str):
            return NotImplemented
        kernel = self._matrix(weight.flatten(1)).T.reshape(weight.shape)
        dtype = self._dtype(x)
        if "conv" not in self._spec.ops:
            convolve = torch.nn.functional.conv2d if x.ndim == 4 else torch.nn.functional.conv3d
            return convolve(x, kernel.to(x.dtype), bias, stride, padding)
        windows = linear.Windows(padding=padding, stride=stride)
        out = linear.conv(
            self._read(x, dtype),
            kernel,
            self._read(bias, dtype),
            compute=self._products,
            windows=windows,
            out_dtype=dtype,
        )
        return out.to(x.dtype)

    def function(self, name: str, x: Tensor) -> Tensor:
        """Apply a function of the vector unit in an op of its own."""
        dtype = self._dtype(x)
        compute = self._unit(dtype)
        return elementwise.activation(name, self._read(x, dtype), dtype=dtype, compute=compute).to(x.dtype)

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """Apply ttnn.gelu, or the function that approximates it by a hyperbolic tangent."""
        return self.function("gelu_tanh" if approximate == "tanh" else "gelu", x)

    def add(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Add as ttnn.add does: on the matrix unit, in fp32 on the vector unit."""
        return self._binary(elementwise.add, a, b)

    def subtract(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Subtract as :meth:`add` adds."""
        return self._binary(elementwise.subtract, a, b)

    def multiply(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Multiply as ttnn.multiply does, on the vector unit."""
        return self._binary(elementwise.multiply, a, b)

    def divide(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Divide as ttnn.div does, on the vector unit."""
        return self._binary(elementwise.divide, a, b)

    def _binary(self, operation: Any, a: Tensor | float, b: Tensor | float) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        assert isinstance(like, Tensor)
        dtype = self._dtype(like)
        values = [self._read(torch.as_tensor(x), dtype) for x in (a, b)]
        return operation(*values, dtype=dtype, compute=self._unit(dtype)).to(like.dtype)

    def layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        """Norm as ttnn.layer_norm does, over one dim."""
        if len(shape) != 1:
            return NotImplemented
        values, affine, dtype = self._normed(x, weight, bias)
        return norms.layer_norm(values, *affine, eps=eps, compute=self._norm, out_dtype=dtype).to(x.dtype)

    def _normed(self, x: Tensor, *affine: Tensor | None) -> tuple[Tensor, tuple[Tensor | None, ...], str]:
        dtype = self._dtype(x)
        values = self._read(x, dtype)
        assert values is not None
        return values, tuple(self._read(each, dtype) for each in affine), dtype

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Norm as ttnn.rms_norm does."""
        values, affine, dtype = self._normed(x, weight)
        return norms.rms_norm(values, *affine, eps=eps, compute=self._norm, out_dtype=dtype).to(x.dtype)

    def torch_rms_norm(self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        """Norm as :meth:`rms_norm` does what ``torch.nn.RMSNorm`` norms over one dim."""
        if len(shape) != 1 or weight is None or eps is None:
            return NotImplemented
        return self.rms_norm(x, weight, eps)

    def layer_statistics(self, x: Tensor) -> Tensor:
        """Return (..., 2), sums of squares and of values in bf16: layer_norm_pre_all_gather."""
        if not x.shape[-1]:
            return x.new_zeros(*x.shape[:-1], 2, dtype=torch.float32)
        return norms.statistics(self._normed(x)[0], kind="layer", compute=self._norm)

    def from_layer_statistics(
        self, x: Tensor, gathered: Tensor, counts: list[int], features: int, eps: float
    ) -> Tensor:
        """Norm by the statistics of all devices: layer_norm_post_all_gather."""
        if not x.shape[-1]:
            return x
        values, _, dtype = self._normed(x)
        how = {"kind": "layer", "eps": eps, "compute": self._norm, "out_dtype": dtype}
        return norms.from_statistics(values, gathered, features, **how).to(x.dtype)

    def rms_statistics(self, x_BHNE: Tensor) -> Tensor:
        """Return (B, N, 1), sums of squares over local heads, in fp32 as wan_fused_rmsnorm_pre_allgather."""
        rows = self._normed(x_BHNE)[0].transpose(1, 2).flatten(2)
        return norms.statistics(rows, kind="rms", compute=self._norm, out_dtype="float32")

    def from_rms_statistics(
        self, x_BHNE: Tensor, gathered: Tensor, weight_H1E: Tensor, features: int, eps: float
    ) -> Tensor:
        """Norm heads by the statistics of all devices."""
        values, (weight,), dtype = self._normed(x_BHNE, weight_H1E)
        assert weight is not None
        heads = values.shape[1]
        rows = values.transpose(1, 2).flatten(2)
        affine = (weight.reshape(-1), None)
        how = {"kind": "rms", "eps": eps, "compute": self._norm, "out_dtype": dtype}
        normed = norms.from_statistics(rows, gathered, features, affine, **how)
        return normed.unflatten(-1, (heads, -1)).transpose(1, 2).to(x_BHNE.dtype)

    def softmax(self, x: Tensor, dim: int = -1, **more: Any) -> Tensor:
        """Return ttnn.softmax over the last dim."""
        if more or dim not in (-1, x.ndim - 1):
            return NotImplemented
        values, _, dtype = self._normed(x)
        return norms.softmax(values, compute=self._norm, out_dtype=dtype).to(x.dtype)

    def rope_pairs(self, x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
        """Turn neighbouring features as rotary_embedding_llama does, features filled up to whole tiles."""
        dtype = self._dtype(x_BHNE)
        tables = (table.repeat_interleave(2, -1) for table in (cos_NP, sin_NP))
        tiles = [zeros_to(self._read(x, dtype), -1, _TILE) for x in (x_BHNE, *tables)]
        turned = elementwise.rotary(*tiles, dtype=dtype, compute=self._unit(dtype))
        return turned[..., : x_BHNE.shape[-1]].to(x_BHNE.dtype)

    def rope_halves(self, x_BHNE: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
        """Turn feature j with feature j + E / 2: the same arithmetic on other pairs."""
        pairs = torch.stack(x_BHNE.chunk(2, -1), -1).flatten(-2)
        return torch.cat(self.rope_pairs(pairs, cos_NP, sin_NP).unflatten(-1, (-1, 2)).unbind(-1), -1)

    def group_norm(
        self, x_BGC: Tensor, statistics: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Norm (B, groups, channels of a group, ...) by mean and variance as group_norm does by Welford's method."""
        groups = x_BGC.shape[1]
        dtype = self._dtype(weight)  # the images come widened
        values = self._read(x_BGC.flatten(1, 2), dtype)
        affine = [self._read(each.flatten(), dtype) for each in (weight, bias)]
        moments = tuple(moment.float().flatten(1) for moment in statistics)
        how: dict[str, Any] = {"moments": moments, "eps": eps, "compute": self._norm, "out_dtype": dtype}
        return norms.group_norm(values, groups, *affine, **how).to(x_BGC.dtype)

    def channel_norm(self, x: Tensor, scale: float, gamma: Tensor) -> Tensor:
        """Norm channels (dim 1) by their length, as rms_norm does; ``scale`` is the root of their number."""
        values, (weight,), dtype = self._normed(x.movedim(1, -1), gamma.flatten())
        return norms.rms_norm(values, weight, eps=0.0, compute=self._norm, out_dtype=dtype).movedim(-1, 1).to(x.dtype)

    def whole_sdpa(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Attend in one op to all keys, those before, or those that a mask leaves; heads of keys may be shared."""
        causal = options.pop("is_causal", False)
        shared = query.shape[1] // key.shape[1] if options.pop("enable_gqa", False) else 1
        if options.pop("dropout_p", 0.0) or options.keys() - {"scale"} or (causal and attn_mask is not None):
            return NotImplemented
        visits = self._visits(query, options.get("scale"))
        keys, values = (x.float().repeat_interleave(shared, 1) if shared > 1 else x.float() for x in (key, value))
        visits.visit(keys, values, _later if causal else _added(attn_mask))
        return visits.result().to(query.dtype)

    def _visits(self, q: Tensor, scale: float | None = None) -> attention.Visits:
        how = {"scale": scale, "k_chunk": self._spec.k_chunk, "compute": self._sdpa}
        return attention.Visits(self._normed(q)[0], out_dtype=self._dtype(q), **how)

    def blocks_of_keys(self, options: Any, q_BHNE: Tensor) -> CarriedBlocks:
        """Return what attends to keys as they pass by."""
        return CarriedBlocks(self._visits(q_BHNE), q_BHNE, round_keys=self._dtype(q_BHNE) == "bfloat16")


def _later(rows: Tensor, columns: Tensor) -> Tensor:
    return columns > rows


def _added(mask: Tensor | None) -> Tensor | None:
    """Return what torch's mask adds to scores, bf16 values of 4 dims."""
    if mask is None:
        return None
    added = torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask.bfloat16().float()
    return added.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


class CarriedBlocks:
    """Queries that carry maximum, sum and output past blocks of keys, in place of :mod:`refsim.parallel.sdpa`'s merge.

    Attributes:
        q: (B, H, N, E).
    """

    def __init__(self, visits: attention.Visits, q_BHNE: Tensor, *, round_keys: bool) -> None:
        self.q = q_BHNE
        self._visits = visits
        self._round = round_keys
        self._step = 0

    def attend(self, k_BHNE: Tensor, v_BHNE: Tensor, *, step: int) -> None:
        """Attend to one block; a block of another step ends the step before."""
        if step != self._step:
            self._visits.end_step()
            self._step = step
        with torch._C.DisableTorchFunction():
            k, v = ((x.bfloat16() if self._round else x).float() for x in (k_BHNE, v_BHNE))
            self._visits.visit(k, v)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return (out (B, H, N, E) as the queries are stored, log-sum-exp (B, H, N) in fp32)."""
        with torch._C.DisableTorchFunction():
            if self._step:
                self._visits.end_step()
            return self._visits.result().to(self.q.dtype), self._visits.log_sum_exp()
