"""DFlash drafter: one pass proposes a whole block of tokens, whole on every device of the target's mesh.

    target's hidden states of the new rows, 5 layers side by side --fc--> rms norm --> context, the same for all layers
    [last token, MASK x 15] --target's embedding--> x
    layer:  x --rms norm--> attention to [cache; context; noise] --> + --> x
            x --rms norm--> down(silu(gate x) * (up x)) ---------> + --> x
    x --rms norm--> the target's head: rows 1..15 are the proposals, row 0 (the last token's) is not used

Positions are absolute: C new context rows end at start - 1, the noise stands at start .. start + 15.

The cache after a call, by mode; attention of the call itself always sees context and noise:

    context   rows 0 .. start-1, context only: the noise is cropped at once; grows by what was accepted. Equal to
              computing everything again
    noise     the noise rows of accepted tokens stay in the place of their context rows, which are never computed;
              another model: proposals get worse, tokens do not
    none      nothing: the whole context is handed in again at every call

No communication. Counterpart: z-lab's ``DFlashDraftModel``; transformers' ``MuseGlimmerAssistantModel``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.layers.kv_cache import KVCache
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import text_rotary
from refsim.models.dflash.attention import DFlashAttention
from refsim.models.dflash.config import DFlashConfig
from refsim.models.dflash.spec import CLASS_NAME
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


class DFlashDecoderLayer:
    """``layers.{index}``; (B, N, D) in and out."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: DFlashConfig) -> None:
        self._device = device
        d = config.hidden_size
        wide = config.intermediate_size
        norm = {"features": d, "eps": config.rms_norm_eps}
        self._norm1 = RMSNorm(weights, device, f"{prefix}.input_layernorm", **norm)
        self._norm2 = RMSNorm(weights, device, f"{prefix}.post_attention_layernorm", **norm)
        self._attention = DFlashAttention(weights, device, f"{prefix}.self_attn", config)
        self._gate, self._up = (weights.take(f"{prefix}.mlp.{n}_proj.weight", (wide, d)) for n in ("gate", "up"))
        self._down = weights.take(f"{prefix}.mlp.down_proj.weight", (d, wide))

    def __call__(self, x_BND: Tensor, context_BCD: Tensor, rotary: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        x_BND = x_BND + self._attention(self._norm1(x_BND), context_BCD, rotary, cache)
        normed = self._norm2(x_BND)
        with self._device.compute("linear", normed, self._gate, self._up):
            hidden = F.silu(F.linear(normed, self._gate)) * F.linear(normed, self._up)
        with self._device.compute("linear", hidden, self._down):
            return x_BND + F.linear(hidden, self._down)


class DFlashDraftModel:
    """Built from the drafter's folder; every key must be consumed. Embedding and head are the target's."""

    def __init__(self, weights: Weights, device: Device, config: DFlashConfig) -> None:
        self._device = device
        self.config = config
        d = config.hidden_size
        layers = len(config.target_layer_ids)
        self._fc = weights.take("fc.weight", (d, layers * d))
        norm = {"features": d, "eps": config.rms_norm_eps}
        self._context_norm, self._norm = (RMSNorm(weights, device, n, **norm) for n in ("hidden_norm", "norm"))
        self._layers = [
            DFlashDecoderLayer(weights, device, f"layers.{i}", config) for i in range(config.num_hidden_layers)
        ]
        weights.finish(CLASS_NAME)

    def new_cache(self) -> list[KVCache]:
        """Return one empty cache per layer."""
        return [KVCache() for _ in self._layers]

    def __call__(self, noise_BND: Tensor, states_BCF: Tensor, cache: list[KVCache], *, start: int) -> Tensor:
        """Map embedded block and the target's hidden states of the C new rows to (B, N, D) after the final norm.

        Context and noise rows join the cache; what is to stay there is for the caller to crop.

        Args:
            start: position of the first row of the block.

        Raises:
            ValueError: cached and new context rows together are more than there are positions before ``start``.
        """
        first = start - states_BCF.shape[1]
        if first < 0 or cache[0].length > start:
            raise ValueError(f"{cache[0].length} cached and {states_BCF.shape[1]} new rows do not end at {start}")
        with self._device.compute("linear", states_BCF, self._fc):
            context = self._context_norm(F.linear(states_BCF, self._fc))
        positions = torch.arange(first, start + noise_BND.shape[1])
        rotary = text_rotary(positions, self.config.head_dim, self.config.rope_theta)
        x = noise_BND
        for index, (layer, rows) in enumerate(zip(self._layers, cache, strict=True)):
            self._device.activity(Kind.DRAFTING, f"rows {start} to {start + noise_BND.shape[1] - 1}", block=index)
            x = layer(x, context, rotary, rows)
        return self._norm(x)


def check_pair(target, draft: DFlashConfig) -> None:
    """Raise ``UserError`` unless a drafter of this config belongs to a target of that one."""
    for name in ("hidden_size", "vocab_size"):
        mine = getattr(draft, name)
        theirs = getattr(target, name)
        if mine != theirs:
            raise UserError(f"the drafter has {name} {mine} but the target {theirs}; give the drafter of this target.")
    last = max(draft.target_layer_ids)
    if last >= target.num_hidden_layers:
        raise UserError(
            f"the drafter wants layer {last} of the target, which has layers 0 to {target.num_hidden_layers - 1}."
        )
