"""Constants of layers, on numbers where they count: epsilons beside values as faint, GELU where its two kinds part."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect

FAINT = 1e-3
"""Its square is the epsilon of the norms."""
TAIL = -3.9
"""Where GELU by tanh is 40 % less than the exact one."""


class _Weights:
    """Random ones of whatever is asked for, or those that are ``given`` by the end of their name."""

    def __init__(self, t: Env, **given: Tensor) -> None:
        self._t, self.known = t, given

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.known.setdefault(name.removeprefix("a."), self._t.rand(*shape, scale=shape[-1] ** -0.5))
        assert tuple(found.shape) == shape
        return found

    def to(self, dtype: torch.dtype) -> _Weights:
        return self


def _context(t: Env, parallel: str = "tp2", **more: Any) -> Any:
    from tt_impl.parallel.context import Context

    return Context(t.device, RunOptions.of(mesh=t.mesh.spec, parallel=parallel, backend="ttnn-mock", **more))


def _near(found: Tensor, wanted: Tensor, bound: float = 0.02) -> None:
    assert found.shape == wanted.shape
    error = float((found.double() - wanted).square().mean().sqrt() / wanted.double().square().mean().sqrt())
    assert error < bound, f"relative RMSE {error:.2g}"


def group_norm_of_a_faint_picture(t: Env) -> None:
    """Statistics of a picture's parts."""
    from tt_impl.layers.group_norm import GroupNorm
    from tt_impl.parallel.halo import ImageShards, cut_image, read_image, to_image, to_rows

    ctx, x = _context(t, "sp2"), t.rand(1, 24, 6, 8, scale=FAINT)
    weights, shards = _Weights(t, weight=t.rand(24), bias=t.rand(24)), ImageShards.of(ctx, 6, 8)
    out = GroupNorm(weights, ctx, "a", channels=24, groups=8)(to_rows(cut_image(ctx, x, shards), 1), shards)
    wanted = F.group_norm(x.double(), 8, *(p.double() for p in weights.known.values()), 1e-6)
    _near(read_image(ctx, to_image(out, shards), shards), wanted)


def group_norm_of_whole_faint_pictures(t: Env) -> None:
    """Channels cut: ttnn's own op."""
    from tt_impl.layers.group_norm import GroupNorm
    from tt_impl.parallel.halo import ImageShards

    ctx, x = _context(t), t.rand(1, 128, 64, scale=FAINT)
    weights, shards = _Weights(t, weight=t.rand(128), bias=t.rand(128)), ImageShards.of(ctx, 8, 8, whole_rows=True)
    norm = GroupNorm(weights, ctx, "a", channels=128, groups=8, cut=True)
    out = norm(ctx.put(x.mT[None], tp_dim=3), shards)
    wanted = F.group_norm(x.double(), 8, *(p.double() for p in weights.known.values()), 1e-6)
    _near(ctx.get(out, sp_dim=2, tp_dim=3)[0].mT, wanted)


def channel_norm_of_a_faint_video(t: Env) -> None:
    """Wan's norm divides by the length of what is there, however short."""
    from tt_impl.models.vae_wan.layers import ChannelNorm

    ctx, weights, x = _context(t), _Weights(t), t.rand(1, 1, 40, 64, scale=1e-5)
    norm = ChannelNorm(weights, ctx, "a", channels=64, dims=3)
    gamma = weights.known["gamma"].flatten()
    for silu in (False, True):
        wanted = F.normalize(x.double(), dim=-1) * 8.0 * gamma
        _near(ctx.get_equal(norm(ctx.put(x), silu=silu)), F.silu(wanted) if silu else wanted)


def modulated_samples(t: Env) -> None:
    """Two samples, each with a weight and a bias of its own, of tokens as faint as epsilon."""
    from tt_impl.layers.norm import LayerNorm

    ctx, x = _context(t), t.rand(2, 1, 40, 96, scale=FAINT)
    weight, bias = t.rand(2, 1, 1, 96), t.rand(2, 1, 1, 96)
    out = LayerNorm(ctx, features=96, eps=1e-6).modulated(ctx.put(x), ctx.put(weight), ctx.put(bias))
    _near(ctx.get_equal(out), F.layer_norm(x.double(), (96,), eps=1e-6) * weight + bias)


def _in_the_tail(t: Env, *shape: int) -> tuple[Tensor, Tensor]:
    """A weight (features, in) and inputs (rows, in) whose product lies around ``TAIL``."""
    weight = t.rand(*shape, scale=0.05 * shape[1] ** -0.5)
    weight[:, 0] = TAIL
    x = t.rand(40, shape[1])
    x[:, 0] = 1.0
    return weight.bfloat16().float(), x


def gated_gelu(t: Env) -> None:
    """T5's is that of tanh."""
    from refsim.models.t5.config import T5Config
    from tt_impl.models.t5.encoder import GateAndUp

    ctx, config = _context(t), T5Config(d_model=128, d_ff=112)
    gate, x = _in_the_tail(t, 112, 128)
    up = t.rand(112, 128, scale=128**-0.5)
    gated = GateAndUp(_Weights(t, **{"wi_0.weight": gate, "wi_1.weight": up}), ctx, "a", config)
    out = ctx.get(gated(ctx.put(x[None, None])), sp_dim=2, tp_dim=3)[:1]
    wanted = F.gelu(x.double() @ gate.T.double(), approximate="tanh") * (x.double() @ up.T.double())
    _near(out[0, 0, :, :112], wanted, 0.05)
    assert not out[..., 112:].any()


def text_of_wan(t: Env) -> None:
    """Its GELU is that of tanh, too."""
    from refsim.models.wan22.config import WanConfig
    from tt_impl.models.wan22.embeddings import ConditionEmbedder

    config = WanConfig.from_dict(_wan())
    first, x = _in_the_tail(t, config.features, config.text_dim)
    name = "condition_embedder.text_embedder.linear_1"
    given = {f"{name}.weight": first, f"{name}.bias": torch.zeros(config.features)}
    ctx, weights = _context(t), _Weights(t, **given)
    embed = ConditionEmbedder(weights, ctx, config)
    second, bias = (weights.known[f"{name[:-1]}2.{part}"] for part in ("weight", "bias"))
    bias.zero_()
    embed = ConditionEmbedder(weights, ctx, config)
    hidden = F.gelu(x.double() @ first.T.double(), approximate="tanh")
    out = ctx.get_equal(embed.text(ctx.put(x[None, None])))[0, 0]
    _near(out[:, : config.features], hidden @ second.T.double(), 0.05)


def _wan() -> dict[str, Any]:
    from parity.cases.checkpoints import MODELS

    return MODELS["wan22_tiny64"].config


def clip_activations(t: Env) -> None:
    """The exact GELU, and the quick one."""
    from tt_impl.models.clip.encoder import CLIPBlock

    x = t.rand(1, 1, 40, 64, scale=0.05) + TAIL
    x = x.bfloat16().float()
    for name, wanted in (("gelu", F.gelu(x.double())), ("quick_gelu", x.double() * torch.sigmoid(1.702 * x.double()))):
        block = object.__new__(CLIPBlock)
        block._act = name
        _near(t.shadow.values(block._activate(t.put(x)))[0], wanted)


def crop_of_the_positional_table(t: Env) -> None:
    """5 x 11 patches in the middle of 24 x 24 positions: both margins are odd, and the smaller half comes first."""
    from diffusers.models.embeddings import PatchEmbed as Oracle

    from tt_impl.layers.embeddings import PatchEmbed

    oracle = Oracle(22, 22, 2, 16, 64, pos_embed_max_size=24).requires_grad_(False)
    oracle.pos_embed.copy_(t.rand(1, 576, 64))
    weights, x = _Weights(t), t.rand(1, 16, 10, 22)
    weights.known |= {name: value.bfloat16().float() for name, value in oracle.state_dict().items()}
    oracle.load_state_dict(weights.known)
    sizes = {"patch": 2, "in_channels": 16, "features": 64, "table_size": 24}
    ctx = _context(t)
    out = ctx.get(PatchEmbed(weights, ctx, "a", **sizes)(x), sp_dim=2, tp_dim=3)[:1]
    _near(out[:, 0], oracle(x))


def words_of_one_device(t: Env) -> None:
    """A vocabulary that is not cut needs no collective; of equal words the smallest."""
    from tt_impl.parallel.vocab import VocabArgmax

    ctx = _context(t, "sp2", dtype="fp32")
    logits = t.rand(5, 40)
    logits[1, [7, 33]] = 9.0
    found = ctx.get_equal(VocabArgmax(ctx, 40)(ctx.put(logits[None, None])))[0, 0, :, 0]
    assert found.tolist() == [7.0 if row == 1 else float(logits[row].argmax()) for row in range(5)]


CASES = collect(globals())
