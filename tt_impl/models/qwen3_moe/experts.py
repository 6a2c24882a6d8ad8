"""Mixture of experts, every expert's hidden dim cut over tp, all experts computed and weighted by the router.

    x, whole --> router --softmax--> best k of E, divided by their sum --> (N, E), zero for the others --.
             --> silu(gate) * up of all E experts, side by side --* weight of the column's expert <------'
                                                                --> down --reduce_scatter--> cut over tp

One matmul over all experts does E / k times the arithmetic of the chosen ones and needs no tokens moved, as
Tenstorrent's port of the model does it. A matmul with ones spreads the (N, E) weights over the experts' columns.

Counterpart: ``refsim.models.qwen3_moe.experts``, which computes the chosen experts only.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from tt_impl.layers.linear import pad_to
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import reduce_scatter_features


class Qwen3MoeSparseMoeBlock:
    """``model.layers.{index}.mlp``; (1, 1, N, D), whole in, cut over tp out."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: Qwen3MoeConfig) -> None:
        self._ctx = ctx
        self._config = config
        d = config.hidden_size
        hidden = config.moe_intermediate_size
        experts = config.num_experts
        local = padded_features(hidden, ctx.tp) // ctx.tp
        self._router = ctx.put(weights.take(f"{prefix}.gate.weight", (experts, d)).t()[None, None])

        def whole(name: str, shape: tuple[int, int]) -> list[torch.Tensor]:
            return [weights.take(f"{prefix}.experts.{i}.{name}_proj.weight", shape) for i in range(experts)]

        def columns(name: str) -> ttnn.Tensor:
            """(1, 1, D, tp * E * local): device by device, on it expert by expert."""
            stacked = torch.stack([pad_to(w, local * ctx.tp, d) for w in whole(name, (hidden, d))])
            dealt = stacked.unflatten(1, (ctx.tp, local)).transpose(0, 1).flatten(0, 2)
            return ctx.put(dealt.t()[None, None], tp_dim=3)

        self._gate = columns("gate")
        self._up = columns("up")
        down = torch.stack([pad_to(w, d, local * ctx.tp) for w in whole("down", (d, hidden))])
        rows = down.unflatten(2, (ctx.tp, local)).permute(2, 0, 3, 1).flatten(0, 2)
        self._down = ctx.put(rows[None, None], tp_dim=2)
        self._spread = ctx.put(torch.eye(experts).repeat_interleave(local, 1)[None, None])

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        config = {"compute_kernel_config": self._ctx.linear_config}
        gate = ttnn.linear(x, self._gate, **config)
        up = ttnn.linear(x, self._up, **config)
        hidden = ttnn.multiply(gate, up, input_tensor_a_activations=[ttnn.UnaryOpType.SILU])
        weight = ttnn.linear(self.route(x), self._spread, **config)
        partial = ttnn.linear(ttnn.multiply(hidden, weight), self._down, **config)
        return reduce_scatter_features(self._ctx, partial)

    def route(self, tokens_TD: ttnn.Tensor) -> ttnn.Tensor:
        """Weights of all experts (1, 1, T, E) for tokens (1, 1, T, D), zero for those not chosen."""
        logits = ttnn.linear(tokens_TD, self._router, compute_kernel_config=self._ctx.norm_config)
        every = ttnn.softmax(logits, dim=3, numeric_stable=True, compute_kernel_config=self._ctx.norm_config)
        weight, expert = ttnn.topk(every, self._config.num_experts_per_tok, dim=3)
        if self._config.norm_topk_prob:
            weight = ttnn.div(weight, ttnn.sum(weight, dim=3, keepdim=True))
        # the op takes fp32 by rows only
        none, weight, expert = (
            ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT) for x in (ttnn.zeros_like(every), weight, expert)
        )
        return ttnn.to_layout(ttnn.scatter(none, 3, expert, weight), ttnn.TILE_LAYOUT)
