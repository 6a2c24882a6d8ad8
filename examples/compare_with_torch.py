"""Your own torch module beside your own TTNN program, layer by layer, on a mesh you do not have.

    python examples/compare_with_torch.py          # every layer in line
    python examples/compare_with_torch.py --bug    # names the layer that goes wrong, with operation and line

Needs ttnn (``pip install '.[ttnn]'``, Python 3.10 or 3.12 on Linux) and no hardware.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from tt_impl.harness import compare
from tt_impl.mock import ttnn_mock


class FeedForward(nn.Module):
    """norm, up, gelu, down and the residual."""

    def __init__(self, width: int = 128, hidden: int = 512) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class TtFeedForward:
    """The same in TTNN: rows cut over mesh axis 0, hidden features over axis 1, partial sums added up at the end."""

    def __init__(self, module: FeedForward, mesh_device, bug: bool = False) -> None:
        import ttnn

        self.ttnn = ttnn
        self.mesh = mesh_device
        self.bug = bug
        self.norm_weight = self.put(module.norm.weight[None], (None, None))
        self.norm_bias = self.put(module.norm.bias[None], (None, None))
        self.up_weight = self.put(module.up.weight.T, (None, 1))
        self.up_bias = self.put(module.up.bias[None], (None, 1))
        self.down_weight = self.put(module.down.weight.T, (None, 0))
        self.down_bias = self.put(module.down.bias[None], (None, None))

    def put(self, value: torch.Tensor, dims: tuple[int | None, int | None]):
        ttnn = self.ttnn
        mapper = ttnn.ShardTensor2dMesh(self.mesh, mesh_shape=tuple(self.mesh.shape), dims=dims)
        return ttnn.from_torch(
            value.detach(), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=self.mesh, mesh_mapper=mapper
        )

    def __call__(self, x: torch.Tensor):
        ttnn = self.ttnn
        residual = self.put(x[None], (2, None))
        h = ttnn.layer_norm(residual, weight=self.norm_weight, bias=self.norm_bias, epsilon=1e-5)
        h = ttnn.linear(h, self.up_weight, bias=self.up_bias)
        h = ttnn.relu(h) if self.bug else ttnn.gelu(h)
        h = ttnn.linear(h, self.down_weight)
        h = ttnn.all_reduce(h, cluster_axis=1, topology=ttnn.Topology.Linear)
        h = ttnn.add(h, self.down_bias)
        return ttnn.add(residual, h)


def main(bug: bool) -> int:
    torch.manual_seed(0)
    module = FeedForward()
    x = torch.randn(1, 64, 128)
    with ttnn_mock("t3k") as mesh_device:
        return 0 if compare(module, TtFeedForward(module, mesh_device, bug), x).ok else 1


if __name__ == "__main__":
    sys.exit(main("--bug" in sys.argv[1:]))
