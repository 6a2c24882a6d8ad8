"""Torch modules beside TTNN programs with and without mistakes: what ``compare`` says of each, as JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MISTAKES = ("", "epsilon", "bias", "activation", "order", "all_reduce", "scale")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.act = nn.GELU()
        self.down = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


@dataclass
class Program:
    """Two blocks on a 2x4 mesh: rows over axis 0, hidden features over axis 1; ``mistake`` is made in the second."""

    module: nn.Sequential
    mesh: Any
    mistake: str = ""
    fused: bool = False

    def put(self, value: Tensor, dims: tuple[int | None, int | None] = (None, None)) -> Any:
        import ttnn

        mapper = ttnn.ShardTensor2dMesh(self.mesh, mesh_shape=(2, 4), dims=dims)
        kinds = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": self.mesh}
        return ttnn.from_torch(value.detach(), mesh_mapper=mapper, **kinds)

    def __call__(self, x: Tensor) -> Any:
        h = self.put(x[None], (2, None))
        for i, block in enumerate(self.module):
            h = self.block(h, block, self.mistake if i == 1 else "")
        return h

    def block(self, x: Any, block: Block, mistake: str) -> Any:
        import ttnn

        epsilon = 1.0 if mistake == "epsilon" else 1e-5
        h = ttnn.layer_norm(
            x, weight=self.put(block.norm.weight[None]), bias=self.put(block.norm.bias[None]), epsilon=epsilon
        )
        bias = None if mistake == "bias" else self.put(block.up.bias[None], (None, 1))
        h = ttnn.linear(h, self.put(block.up.weight.T, (None, 1)), bias=bias, activation="gelu" if self.fused else None)
        if not self.fused:
            h = ttnn.relu(h) if mistake == "activation" else ttnn.gelu(h)
        weight = block.down.weight.T
        h = ttnn.linear(h, self.put(weight.flip(0) if mistake == "order" else weight, (None, 0)))
        if mistake != "all_reduce":
            h = ttnn.all_reduce(h, cluster_axis=1, topology=ttnn.Topology.Linear)
        h = ttnn.add(h, self.put(block.down.bias[None]))
        if mistake == "scale":
            h = ttnn.multiply(h, 2.0)
        return ttnn.add(x, h)


def main() -> None:
    from tt_impl.harness import compare
    from tt_impl.mock import ttnn_mock

    torch.manual_seed(0)
    module = nn.Sequential(Block(), Block())
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            nn.init.normal_(part.bias)
    x = torch.randn(2, 64, 64)
    found: dict[str, Any] = {}
    with ttnn_mock("t3k") as mesh:
        import ttnn

        cases = {
            m: Program(module, mesh, m) for m in ("", "epsilon", "bias", "activation", "order", "all_reduce", "scale")
        }
        cases["fused"] = Program(module, mesh, fused=True)
        for name, program in cases.items():
            found[name] = summary(compare(module, program, x, show=None))
        tapped = compare(module, cases[""], (x,), taps={"0.act": "gelu", "1.norm": "layer_norm"}, show=None)
        found["tapped"] = summary(tapped)
        wrong = compare(module, cases[""], x, taps={"1.up": "gelu"}, show=None)
        found["wrong tap"] = summary(wrong)
        composer = ttnn.ConcatMesh2dToTensor(mesh, mesh_shape=(2, 4), dims=(2, 0))

        def whole(x: Tensor) -> Tensor:
            return ttnn.to_torch(cases[""](x), mesh_composer=composer)[:1]

        found["returned"] = summary(compare(module, whole, x, show=None))
        found["returned twice as large"] = summary(compare(module, lambda x: whole(x) * 2, x, show=None))
        found["a part returned"] = summary(compare(module, lambda x: whole(x)[..., :32], x, show=None))
        found["another shape"] = summary(compare(module, lambda x: ttnn.neg(cases[""].put(x[..., :48])), x, show=None))
        print(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)


def summary(comparison: Any) -> dict[str, Any]:
    rows = [[r.layer, r.state, r.result.op if r.result else None, r.pcc, r.error, r.how] for r in comparison.rows]
    first = comparison.first
    return {
        "rows": rows,
        "first": first.layer if first else None,
        "place": first.place if first else None,
        "text": comparison.text(),
    }


if __name__ == "__main__":
    main()
