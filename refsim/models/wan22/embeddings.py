"""What goes into Wan's blocks: video patches, rotary tables, the time step's modulation, prompt and image embedded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import Grid, TwoLinears, VideoPatches, timestep_embedding
from refsim.layers.linear import ColParallelLinear, RowParallelLinear
from refsim.layers.modulation import Modulation
from refsim.layers.norm import DistributedLayerNorm, LayerNorm
from refsim.layers.rope import rotary_angles, token_positions
from refsim.models.wan22.config import WanConfig
from refsim.parallel.sequence import TokenShards
from refsim.parallel.tensor import gather_features
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor


class WanPatches(VideoPatches):
    """Patches of a video that has no more along a side than the model knows positions."""

    def __init__(self, weights: Weights, device: Device, config: WanConfig) -> None:
        sizes = {"in_features": (config.in_channels, *config.patch_size), "features": config.features}
        super().__init__(weights, device, "patch_embedding", patch=config.patch_size, **sizes)
        self._most = config.rope_max_seq_len

    def grid(self, size: tuple[int, ...]) -> Grid:
        grid = super().grid(size)
        if max(grid) > self._most:
            raise UserError(
                f"a latent of {'x'.join(map(str, size))} (frames, height, width) needs {max(grid)} positions along one "
                f"side but the checkpoint has rope_max_seq_len {self._most}; use a smaller one."
            )
        return grid


def rotary_tables(config: WanConfig, grid: Grid, tokens: TokenShards, shard: int) -> tuple[Tensor, Tensor]:
    """Return (cos, sin) of this shard's tokens, (local N, E / 2) in fp32; zero in padded rows, which are no keys.

    A head of E features gives 2 * (E // 6) to height and to width each, the rest to time.
    """
    side = 2 * (config.attention_head_dim // 6)
    features = (config.attention_head_dim - 2 * side, side, side)
    span = tokens.tokens(shard)
    angles = rotary_angles(token_positions(grid, span), features)
    padding = (0, 0, 0, tokens.local_n - (span[1] - span[0]))
    return F.pad(angles.cos().float(), padding), F.pad(angles.sin().float(), padding)


class ConditionEmbedder:
    """``condition_embedder``: the time step, its six chunks per block cut over tp, and the prompt.

    The time step's first two linears are kept in fp32, as diffusers keeps them.
    """

    def __init__(self, weights: Weights, device: Device, config: WanConfig) -> None:
        self._device = device
        self._freq_dim = config.freq_dim
        d = config.features
        name = "condition_embedder"
        exact = weights.to(torch.float32)
        self._time = TwoLinears(exact, f"{name}.time_embedder", in_features=config.freq_dim, features=d)
        self._time_proj = Modulation(weights, device, f"{name}.time_proj", features=d, chunks=6)
        text = f"{name}.text_embedder"
        self._text_1 = ColParallelLinear(
            weights, device, f"{text}.linear_1", in_features=config.text_dim, out_features=d
        )
        self._text_2 = RowParallelLinear(weights, device, f"{text}.linear_2", in_features=d, out_features=d)

    def time(self, timestep: MeshTensor, dtype: torch.dtype) -> tuple[MeshTensor, list[MeshTensor]]:
        """Map (B,) in 0..1000 to (temb (B, D), tp=Replicate; six chunks (B, 1, local D), tp=Shard(-1)), in ``dtype``.

        (B, local N), a time step for every token, gives (B, local N, D) and (B, local N, local D), both sp=Shard(1).
        """

        def embed(t: Tensor) -> Tensor:
            return self._time(timestep_embedding(t, self._freq_dim)).to(dtype)

        temb = timestep.map("time_embedder", embed)
        return temb, self._time_proj(temb.map("silu", F.silu))

    def text(self, prompt_BLT: Tensor) -> MeshTensor:
        """Map (B, L, text_dim) on every device to (B, L, D), tp=Replicate with padded features, for all blocks."""
        hidden = self._text_1(MeshTensor(prompt_BLT)).map("gelu", lambda y: F.gelu(y, approximate="tanh"))
        return gather_features(self._device, self._text_2(hidden))


class ImageEmbedder:
    """``image_embedder`` of Wan2.1's image-to-video model: features of an image, normed, two linears, normed again.

    Both norms are kept in fp32, as diffusers keeps them; torch computes a norm in the dtype of its weights.
    """

    EPS = 1e-5

    def __init__(self, weights: Weights, device: Device, config: WanConfig, image_dim: int) -> None:
        self._device = device
        d = config.features
        self._name = "condition_embedder.image_embedder"
        name = "condition_embedder.image_embedder"
        exact = weights.to(torch.float32)
        self._norm1 = LayerNorm(device, features=image_dim, eps=self.EPS, affine=(exact, f"{name}.norm1"))
        of_image = {"in_features": image_dim}
        self._in = ColParallelLinear(weights, device, f"{name}.ff.net.0.proj", out_features=image_dim, **of_image)
        self._out = RowParallelLinear(weights, device, f"{name}.ff.net.2", out_features=d, **of_image)
        self._norm2 = DistributedLayerNorm(device, features=d, eps=self.EPS, affine=(exact, f"{name}.norm2"))

    @in_module
    def __call__(self, image_BMI: Tensor) -> MeshTensor:
        """Map (B, M, image_dim) on every device to (B, M, D), tp=Replicate with padded features, for all blocks."""
        hidden = self._out(self._in(MeshTensor(self._norm1(image_BMI))).map("gelu", F.gelu))
        normed = self._norm2(hidden.map("cast", Tensor.float)).map("cast", lambda y: y.to(image_BMI.dtype))
        return gather_features(self._device, normed)
