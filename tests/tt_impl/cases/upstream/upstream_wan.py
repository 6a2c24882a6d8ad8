"""Wan's attention at the sizes of upstream's own test (models/tt_dit/tests/models/wan2_2/test_attention_wan.py).

Published width, random weights. Self-attention goes around the ring, cross-attention is over a prompt of 26 or 126
tokens. Linears, norms and rotation are computed for all tokens, attention for a sample of query rows per device, on
which each device is judged against torch.

Legend: N tokens, D features of the stream, H heads, E features of a head.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.cases.upstream.upstream_ring import _rows
from tests.tt_impl.cases.values.norm import _rotated
from tests.tt_impl.env import Env

if TYPE_CHECKING:
    from refsim.models.wan22.config import WanConfig

MESHES = ("t3k", "bh-galaxy")
GRIDS = {"wan_5b_720p": (31, 20, 40), "wan_14b_480p": (21, 30, 52), "wan_14b_720p": (21, 45, 80)}
"""Frames, rows and columns of tokens."""
HEADS = 40
NARROW = ((3, 13, 19), 8)
"""A grid and heads of which every run takes a few seconds, so that the large cases do not fall behind the model."""
PROMPTS = (None, 26, 126)
LEAST_PCC = 0.9995

Grid = tuple[int, int, int]


def run(t: Env, grid: Grid, prompt_rows: int | None, heads: int) -> None:
    from refsim.base.options import RunOptions
    from refsim.files.checkpoint import Checkpoint, Weights
    from refsim.models.wan22.config import WanConfig
    from tests.tt_impl.only_rows import only_rows
    from tt_impl.models.wan22.attention import CrossAttention, SelfAttention
    from tt_impl.models.wan22.embeddings import rotary_tables
    from tt_impl.parallel.context import Context

    config, n = WanConfig(num_attention_heads=heads), math.prod(grid)
    parallel = "sp2_tp4" if t.n == 8 else "sp8_tp4"
    ctx = Context(t.device, RunOptions.of(mesh=t.mesh.spec, parallel=parallel, backend="ttnn-mock"))
    x, weights = t.rand(1, 1, n, config.features), _weights(t, config.features)
    filled = F.pad(x, (0, 0, 0, -n % (32 * ctx.sp)))
    held = ctx.put(filled, sp_dim=2, tp_dim=3)
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_file({f"a.{k}": v for k, v in weights.items()}, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text(json.dumps({}), encoding="utf-8")
        taken = Weights(Checkpoint(folder), torch.bfloat16)
        attention: Any = (SelfAttention if prompt_rows is None else CrossAttention)(taken, ctx, "a", config)
    prompt = None if prompt_rows is None else t.rand(1, 1, prompt_rows, config.features)
    beside = (rotary_tables(ctx, config, grid), n) if prompt is None else (ctx.put(prompt),)
    with only_rows(_rows):
        out = attention(held, *beside)
    angles = _angles(grid, config.attention_head_dim) if prompt is None else None
    keys = _keys(x if prompt is None else prompt, weights, config, angles)
    values = t.shadow.values(out)
    local, width = values[0].shape[2], values[0].shape[3]
    for device, found in enumerate(values):
        place = dict(zip((ctx.tp_axis, 1 - ctx.tp_axis), ("tp", "sp"), strict=True))
        at = {place[axis]: index for axis, index in enumerate(divmod(device, t.shape[1]))}
        rows = _rows(local)
        rows = rows[rows + at["sp"] * local < n]
        wanted = _attended(x[:, :, rows + at["sp"] * local], rows + at["sp"] * local, keys, weights, config, angles)
        mine = wanted[..., at["tp"] * width : (at["tp"] + 1) * width]
        pcc = torch.corrcoef(torch.stack([found[:, :, rows].flatten(), mine.flatten()]).double())[0, 1].item()
        assert pcc >= LEAST_PCC, f"device {device}: PCC {pcc}"


def _weights(t: Env, d: int) -> dict[str, Tensor]:
    weights = {f"norm_{name}.weight": 1 + t.rand(d, scale=0.1) for name in "qk"}
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        weights |= {f"{name}.weight": t.rand(d, d, scale=d**-0.5), f"{name}.bias": t.rand(d, scale=0.1)}
    return weights


def _angles(grid: Grid, size: int) -> Tensor:
    """[N, E/2]: a head gives 2 * (E // 6) features to rows and to columns each, the rest to frames."""
    side = 2 * (size // 6)
    at = torch.cartesian_prod(*(torch.arange(count) for count in grid)).double()
    parts = [
        torch.outer(at[:, axis], 10000.0 ** (-torch.arange(0, features, 2).double() / features))
        for axis, features in enumerate((size - 2 * side, side, side))
    ]
    return torch.cat(parts, -1)


def _projected(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _heads(x: Tensor, size: int, angles: Tensor | None = None) -> Tensor:
    """[1, 1, N, D] -> [1, H, N, E], turned."""
    heads = x.reshape(1, x.shape[2], -1, size).transpose(1, 2)
    if angles is None:
        return heads
    pairs = angles.repeat_interleave(2, -1)
    return _rotated(heads, pairs.cos().float(), pairs.sin().float())


def _keys(x: Tensor, weights: dict[str, Tensor], config: WanConfig, angles: Tensor | None) -> tuple[Tensor, Tensor]:
    size = config.attention_head_dim
    k = F.rms_norm(_projected(x, weights, "to_k"), x.shape[-1:], weights["norm_k.weight"], config.eps)
    return _heads(k, size, angles), _heads(_projected(x, weights, "to_v"), size)


def _attended(
    x: Tensor,
    rows: Tensor,
    keys: tuple[Tensor, Tensor],
    weights: dict[str, Tensor],
    config: WanConfig,
    angles: Tensor | None,
) -> Tensor:
    q = F.rms_norm(_projected(x, weights, "to_q"), x.shape[-1:], weights["norm_q.weight"], config.eps)
    q = _heads(q, config.attention_head_dim, None if angles is None else angles[rows])
    out = F.scaled_dot_product_attention(q, *keys)
    return _projected(out.transpose(1, 2).flatten(2).unsqueeze(1), weights, "to_out.0")


def _case(grid: Grid, prompt_rows: int | None, heads: int) -> Callable[[Env], None]:
    return lambda t: run(t, grid, prompt_rows, heads)


CASES = {
    f"{name}_{'self' if rows is None else f'prompt_{rows}'}_{mesh}": _case(grid, rows, heads)
    for name, (grid, heads) in ({"narrow": NARROW} | {name: (grid, HEADS) for name, grid in GRIDS.items()}).items()
    for rows in PROMPTS
    for mesh in MESHES
}
