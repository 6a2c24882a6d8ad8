"""What the scripts that drive published programs share: what is asked for, what is replaced, what is compared."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import ttnn

SIZE = 128
"""Pixels of a side of a picture."""
PROMPT = "a red fox in snow"
NEGATIVE = "a dog"


def checkpoint() -> str:
    """Return the folder that the campaign made."""
    return sys.argv[1]


def reference(pipeline: Any) -> Any:
    """Return a pipeline of diffusers of the same checkpoint, in float32."""
    return pipeline.from_pretrained(checkpoint(), trust_remote_code=False)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the noise that a pipeline of tt_dit begins with, seed 0."""
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype).float()


def pcc(a: Any, b: Any) -> float:
    """Return Pearson's correlation of all values."""
    both = torch.stack([torch.as_tensor(value).flatten().float() for value in (a, b)])
    return torch.corrcoef(both)[0, 1].item()


def check(what: str, value: Any) -> None:
    """Print a comparison as :mod:`benchmarks.programs.campaign` reads it."""
    print(f"check: {what}: {value:.5f}" if isinstance(value, float) else f"check: {what}: {value}", flush=True)


def check_picture(decoded: list[Any], expected: torch.Tensor, vae: Any) -> None:
    """Compare what a pipeline gave its VAE, latents [B, H, W, C], and what came of it, with latents [B, C, H, W]."""
    (((latents,), picture),) = decoded
    check("latents PCC", pcc(latents.permute(0, 3, 1, 2), expected))
    scale = vae.config.scaling_factor
    check("picture PCC", pcc(picture, vae.decode(expected / scale + vae.config.shift_factor).sample.detach()))


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


def frequencies_in_bfloat16(embedding: Any, scale: float = 1.0) -> None:
    """Give a reference's embedding of timesteps the frequencies that tt_dit has: rounded to bfloat16."""
    factor = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float32) / 128).bfloat16().float()

    class Projection(torch.nn.Module):
        def forward(self, timestep: torch.Tensor) -> torch.Tensor:
            angles = scale * timestep.float()[:, None] * factor
            return torch.cat([angles.cos(), angles.sin()], -1)

    embedding.time_proj = Projection()


def noted(owner: Any, name: str) -> list[Any]:
    """Return a list to which every call of a method of a pipeline adds copies of its arguments and its result."""
    original = getattr(owner, name)
    seen: list[Any] = []

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append((_copied(args), _copied(result)))
        return result

    setattr(owner, name, method)
    return seen


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float().clone()
    return tuple(map(_copied, value)) if isinstance(value, tuple | list) else value
