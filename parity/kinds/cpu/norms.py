"""Every norm of ``refsim.layers``, cut or whole, judged by torch's formula in float64 on rows that are hard to norm.

Rows far from zero, rows that hardly vary, rows of zeros and rows with one large value: a sum or a mean in the storage
dtype, or a variance as the difference of two large numbers, shows in the last place. Weights are powers of two, so that
an answer is rounded to the storage dtype once. With other weights a norm of heads is diffusers' own to the bit: it is
rounded before its weight and after.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.inputs import generator
from parity.kinds.base import DIGITS, CpuKind, Metrics
from parity.measure import metrics as m
from parity.measure.thresholds import Threshold
from refsim.ccl import all_gather
from refsim.files.checkpoint import ShapeWeights
from refsim.layers.group_norm import GroupNorm
from refsim.layers.norm import DistributedLayerNorm, DistributedRMSNorm, LayerNorm, RMSNorm
from refsim.parallel.halo import ImageShards, cut_image, gather_image
from refsim.parallel.padding import padded_features, padded_heads
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.launch import Result
from refsim.runtime.tensor import MeshTensor, shards

_FEATURES = 40
_HEADS = 6
_E = 16
_CHANNELS = 8
_GROUPS = 2
_EPS = 1e-6


class Norms(CpuKind):
    """Statistics of the whole of what is cut, in fp32."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "max_ulp",
                1024,
                "the mean of rows around 100 is known to half a unit of its last place, 64 of those of what is left of "
                "them, times weights up to 4, and is merged a few times; torch's own layer norm in fp32 is off by 170, "
                "and a variance as the mean of squares less the square of the mean by thousands",
            ),
        ),
        "bf16": (
            Threshold("max_ulp", 0.51, "statistics are in fp32, so that all there is, is the answer's one rounding"),
            Threshold("rounded_otherwise", 0, "in bf16 the order of rounding is seen in the bits, and only there"),
        ),
    }

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        return launch.execute("parity.kinds.cpu.norms:program", layout.options(case.dtype, **more), {"seed": seed})

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        dtype = case.layout.options(case.dtype).storage
        digits = DIGITS[case.dtype]
        errors = {name: m.max_ulp(result.tensors[name], ref, digits) for name, ref in expected(seed, dtype).items()}
        return {"max_ulp": m.worst(errors.values()), "rounded_otherwise": self._rounded_otherwise(result, seed, dtype)}

    @staticmethod
    def _rounded_otherwise(result: Result, seed: int, dtype: torch.dtype) -> int:
        """Count the values of a norm of heads that are not diffusers' own."""
        from diffusers.models.normalization import RMSNorm as DiffusersRMSNorm

        right = DiffusersRMSNorm(_E, eps=_EPS)
        right.weight = torch.nn.Parameter(_ordinary(_E).to(dtype), requires_grad=False)
        return int((right(draw(seed, dtype, *_sizes()[1])) != result.tensors["rounded"]).sum())


def expected(seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return every norm in one piece, in float64."""
    x, x_of_heads, picture = (draw(seed, dtype, *size).double() for size in _sizes())
    whole = F.rms_norm(x_of_heads.transpose(1, 2).flatten(2), (_HEADS * _E,), factors(_HEADS * _E).double(), _EPS)
    weight = factors(_CHANNELS).double()
    return {
        "rms_norm": F.rms_norm(x_of_heads, (_E,), factors(_E).double(), _EPS),
        "distributed_rms_norm": whole.unflatten(2, (_HEADS, _E)).transpose(1, 2),
        "layer_norm": F.layer_norm(x, (_FEATURES,), eps=_EPS),
        "distributed_layer_norm": F.layer_norm(x, (_FEATURES,), eps=_EPS),
        "group_norm": F.group_norm(picture, _GROUPS, weight, weight, _EPS),
    }


def program(device: Device, *, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run every norm on this member's part and put the parts together."""
    dtype = device.options.storage
    tp = device.groups["tp"]
    weights = ShapeWeights(dtype, lambda size: factors(size[0]))
    ordinary = ShapeWeights(dtype, lambda size: _ordinary(size[0]).to(dtype))
    x, x_of_heads, picture = (draw(seed, dtype, *size) for size in _sizes())
    of_features = {"features": _FEATURES, "eps": _EPS}
    of_heads = {"num_heads": _HEADS, "head_dim": _E, "eps": _EPS}
    mine = MeshTensor(_part(x, tp, padded_features(_FEATURES, tp.size), 2), shards(device.groups, tp=2))
    heads = MeshTensor(_part(x_of_heads, tp, padded_heads(_HEADS, tp.size), 1), shards(device.groups, tp=1))
    normed = DistributedRMSNorm(weights, device, "norm_k", **of_heads)(heads).local
    cut = ImageShards.of(device, *picture.shape[2:])
    group_norm = GroupNorm(weights, device, "norm", channels=_CHANNELS, groups=_GROUPS)
    results = {
        "rms_norm": RMSNorm(weights, device, "norm_q", features=_E, eps=_EPS)(x_of_heads),
        "rounded": RMSNorm(ordinary, device, "norm_q", features=_E, eps=_EPS)(x_of_heads),
        "distributed_rms_norm": all_gather(device, normed.contiguous(), tp, dim=1)[:, :_HEADS],
        "layer_norm": LayerNorm(device, **of_features)(F.pad(x, (0, 24))),
        "distributed_layer_norm": gather_features(device, DistributedLayerNorm(device, **of_features)(mine)).local,
        "group_norm": gather_image(device, group_norm(cut_image(device, picture, cut), cut), cut),
    }
    results["distributed_layer_norm"] = results["distributed_layer_norm"][..., :_FEATURES]
    return {}, {name: x.clone(memory_format=torch.contiguous_format) for name, x in results.items()}


def _sizes() -> tuple[tuple[int, ...], ...]:
    return (2, 12, _FEATURES), (1, _HEADS, 12, _E), (12, _CHANNELS, 5, 9)


def _part(x: Tensor, group: Group, padded: int, dim: int) -> Tensor:
    """Return a member's lanes of a dim, zeros behind the last one."""
    start, stop = shard_range(padded, group)
    whole = torch.cat([x, x.new_zeros(*x.shape[:dim], padded - x.shape[dim], *x.shape[dim + 1 :])], dim)
    return whole.narrow(dim, start, stop - start)


def factors(count: int) -> Tensor:
    """Return powers of two, the same of every member's lanes."""
    return torch.tensor([1.0, -2.0, 0.5, 4.0]).repeat(-(-count // 4))[:count]


def _ordinary(count: int) -> Tensor:
    """Return weights that are no powers of two."""
    return torch.linspace(0.3, 1.7, count)


def draw(seed: int, dtype: torch.dtype, *size: int) -> Tensor:
    """Draw rows along the one dim of 12: normal, around 100, of 1e-4, zeros, and with one value of 300, in turn."""
    x = torch.randn(size, generator=generator(seed, "norms", *size))
    dim = size.index(12)
    for row, part in enumerate(x.unbind(dim)):
        kind = row % 5
        if kind == 1:
            part += 100.0
        elif kind == 2:
            part *= 1e-4
        elif kind == 3:
            part.zero_()
        elif kind == 4:
            part[(0,) * part.ndim] = 300.0
    return x.to(dtype)
