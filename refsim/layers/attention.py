"""Joint attention of image and prompt, heads cut over tp, tokens over sp.

image  --fused QKV--> q k v --RMSNorm per head--.                                  .--> out row-parallel
prompt --fused QKV--> q k v --RMSNorm per head--+--> joint attention over sp ------+--> out row-parallel
"""

from __future__ import annotations

from torch import Tensor

from refsim.checkpoint import Weights
from refsim.layers.linear import ColParallelQKV, RowParallelLinear
from refsim.layers.norm import RMSNorm
from refsim.parallel.padding import padded_heads
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, Shard

_EPS = 1e-6
QKV = tuple[Tensor, Tensor, Tensor]


class _Projection:
    """q, k, v of one stream, (B, local heads, rows, E), queries and keys normalised per head."""

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        names: tuple[str, str, str],
        norms: tuple[str, str] | None,
        *,
        features: int,
        num_heads: int,
        head_dim: int,
    ) -> None:
        q, k, v = (f"{prefix}.{n}" for n in names)
        self._qkv = ColParallelQKV(
            weights, device, (q, k, v), in_features=features, num_heads=num_heads, head_dim=head_dim
        )
        self._norms = [RMSNorm(weights, device, f"{prefix}.{n}", features=head_dim, eps=_EPS) for n in norms or ()]

    def __call__(self, x: MeshTensor) -> QKV:
        q, k, v = self._qkv(x)
        if self._norms:
            q, k = self._norms[0](q), self._norms[1](k)
        return q, k, v


class JointAttention:
    """Attention of the image tokens, and of the prompt with them where ``prompt`` is set.

    Args:
        prompt: the prompt takes part (``add_q_proj`` and so on); else image tokens attend to themselves only.
        prompt_out: the prompt's result is projected (``to_add_out``); off in a last block, which drops it. Its
            queries are projected all the same (they are part of the fused weight) but ask nothing.
        qk_norm: queries and keys are normalised per head.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        *,
        features: int,
        num_heads: int,
        head_dim: int,
        prompt: bool,
        prompt_out: bool,
        qk_norm: bool,
    ) -> None:
        self._device = device
        sizes = {"features": features, "num_heads": num_heads, "head_dim": head_dim}
        self._spatial = _Projection(
            weights,
            device,
            prefix,
            ("to_q", "to_k", "to_v"),
            ("norm_q", "norm_k") if qk_norm else None,
            **sizes,
        )
        self._prompt = self._prompt_out = None
        if prompt:
            self._prompt = _Projection(
                weights,
                device,
                prefix,
                ("add_q_proj", "add_k_proj", "add_v_proj"),
                ("norm_added_q", "norm_added_k") if qk_norm else None,
                **sizes,
            )

        def out(name: str) -> RowParallelLinear:
            padded = padded_heads(num_heads, device.groups["tp"].size) * head_dim
            return RowParallelLinear(
                weights,
                device,
                f"{prefix}.{name}",
                in_features=num_heads * head_dim,
                out_features=features,
                in_padded=padded,
            )

        self._out = out("to_out.0")
        if prompt_out:
            self._prompt_out = out("to_add_out")

    def __call__(
        self,
        spatial: MeshTensor,
        prompt: MeshTensor | None,
        *,
        tokens: TokenShards,
        prompt_tokens: TokenShards | None,
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Inputs tp=Replicate (gathered); results tp=Shard(-1); tokens over sp as they came in.

        Args:
            prompt_tokens: how the prompt is cut over sp, None if it is replicated.
        """
        qkv = self._spatial(spatial)
        prompt_qkv = None
        if self._prompt is not None:
            q, k, v = self._prompt(prompt)
            prompt_qkv = (q if self._prompt_out is not None else q[:, :, :0], k, v)
        out, prompt_out, _ = joint_attention(
            self._device,
            qkv,
            prompt_qkv,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
        )
        spatial = self._out(self._concat_heads(spatial, out))
        if self._prompt_out is None:
            return spatial, None
        return spatial, self._prompt_out(self._concat_heads(prompt, prompt_out))

    def _concat_heads(self, like: MeshTensor, x_BHNE: Tensor) -> MeshTensor:
        cut = {"tp": Shard(2) if self._device.groups["tp"].size > 1 else Replicate()}
        return like.with_local(x_BHNE.transpose(1, 2).flatten(2), **cut)
