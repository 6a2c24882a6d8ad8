"""What the scripts that drive published programs share."""

from __future__ import annotations

import math
from typing import Any

import torch
import ttnn


def pcc(a: Any, b: Any) -> float:
    """Return Pearson's correlation of all values."""
    both = torch.stack([torch.as_tensor(value).flatten().float() for value in (a, b)])
    return torch.corrcoef(both)[0, 1].item()


def check(what: str, value: Any) -> None:
    """Print a comparison as :mod:`benchmarks.programs.campaign` reads it."""
    print(f"check: {what}: {value:.5f}" if isinstance(value, float) else f"check: {what}: {value}", flush=True)


def open_mesh() -> Any:
    """Open the 2x4 mesh of tt_dit's own tests."""
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 4), l1_small_size=32768, trace_region_size=50_000_000)


def arange_from_the_host() -> None:
    """Replace tt_dit's ``arange``, which subtracts from uint32: ttnn 0.81.1 refuses that."""
    from models.tt_dit.utils import tensor

    def arange(start: Any, end: Any, step: Any = 1.0, *, dtype: Any, device: Any, **_: Any) -> Any:
        values = torch.arange(start, end, step).to(torch.int32)
        mapper = ttnn.ReplicateTensorToMesh(device)
        return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device, mesh_mapper=mapper)

    tensor.arange = arange


def vae_in_torch(module: Any) -> None:
    """Have a pipeline decode with the VAE of diffusers: tt_dit's has no slices for pictures so small."""
    adapter = module.VAEDecoderAdapter
    module.VAEDecoderAdapter = lambda **options: adapter(**{**options, "use_torch": True})


def frequencies_in_bfloat16(transformer: Any) -> None:
    """Give diffusers' transformer the frequencies of timesteps that tt_dit has: rounded to bfloat16."""
    factor = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float32) / 128).bfloat16().float()

    class Projection(torch.nn.Module):
        def forward(self, timestep: torch.Tensor) -> torch.Tensor:
            angles = timestep.float()[:, None] * factor
            return torch.cat([angles.cos(), angles.sin()], -1)

    transformer.time_text_embed.time_proj = Projection()


def noted(owner: Any, name: str, seen: list[Any]) -> None:
    """Keep copies of the arguments and results of a method of a pipeline."""
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append((_copied(args), _copied(result)))
        return result

    setattr(owner, name, method)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float().clone()
    return tuple(map(_copied, value)) if isinstance(value, tuple | list) else value
