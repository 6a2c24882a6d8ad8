"""A mixture of experts, every expert's hidden features cut over tp.

    x, replicated --gate, replicated--> softmax over all experts --> the best k, their weights made to sum to 1
    expert e:  the tokens that chose it --> silu(gate_e x) * (up_e x)  [I/tp features] --> down_e, Partial("sum")
    all terms of a token added up with their weights --> reduce_scatter, once for all experts

The router is computed on every device from the same bits, so all agree on the choice and nothing is sent for it.
Weights that are not made to sum to 1, or a softmax over the chosen few only, are silent errors.

Bytes: one reduce_scatter of (B, N, D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import reduce_scatter_features, shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Partial, Replicate


class Qwen3MoeSparseMoeBlock:
    """``model.layers.{index}.mlp``. Input (B, N, D) tp=Replicate, output tp=Shard(-1)."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: Qwen3MoeConfig) -> None:
        self._device = device
        self._config = config
        tp = device.groups["tp"]
        d = config.hidden_size
        hidden = config.moe_intermediate_size
        features = (0, padded_features(d, tp.size))
        mine = shard_range(padded_features(hidden, tp.size), tp)
        self.gate = weights.take(f"{prefix}.gate.weight", (config.num_experts, d), None, features)
        self._experts = []
        for index in range(config.num_experts):
            name = f"{prefix}.experts.{index}"
            gate, up = (
                weights.take(f"{name}.{n}.weight", (hidden, d), mine, features) for n in ("gate_proj", "up_proj")
            )
            down = weights.take(f"{name}.down_proj.weight", (d, hidden), features, mine)
            self._experts.append((gate, up, down))

    def __call__(self, x: MeshTensor) -> MeshTensor:
        x.require("experts", tp=Replicate())
        tokens_TD = x.local.flatten(0, -2)
        weight_TK, expert_TK = self.route(tokens_TD)
        out_TD = torch.zeros_like(tokens_TD)
        for index in expert_TK.unique().tolist():
            token, slot = torch.where(expert_TK == index)
            term = self._expert(index, tokens_TD[token]) * weight_TK[token, slot].unsqueeze(-1)
            out_TD.index_add_(0, token, term)
        partial = x.with_local(out_TD.view_as(x.local), tp=Partial("sum"))
        return reduce_scatter_features(self._device, partial)

    def route(self, tokens_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (in the tokens' dtype) and numbers of the chosen experts, each (T, k), the best first."""
        with self._device.compute("linear", tokens_TD, self.gate):
            logits = F.linear(tokens_TD, self.gate)
        weight, expert = logits.softmax(-1, dtype=torch.float32).topk(self._config.num_experts_per_tok, -1)
        if self._config.norm_topk_prob:
            weight = weight / weight.sum(-1, keepdim=True)
        return weight.to(tokens_TD.dtype), expert

    def _expert(self, index: int, tokens: Tensor) -> Tensor:
        gate, up, down = self._experts[index]
        with self._device.compute("linear", tokens, gate, up):
            hidden = F.silu(F.linear(tokens, gate)) * F.linear(tokens, up)
        with self._device.compute("linear", hidden, down):
            return F.linear(hidden, down)
