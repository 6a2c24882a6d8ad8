"""Parts of text encoders on four devices in a row, against transformers' own code and torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.models.t5.config import T5Config
from tests.tt_impl.env import Env, collect

TP, HEADS = 4, 6


class _Weights:
    """Random ones of whatever is asked for, which bf16 can hold."""

    def __init__(self, t: Env) -> None:
        self._t, self.known = t, {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.known.setdefault(name, self._t.rand(*shape))


def _context(t: Env) -> Any:
    from tt_impl.parallel.context import Context

    return Context(t.device, RunOptions.of(mesh=t.mesh.spec, parallel="tp4", backend="ttnn-mock", dtype="bf16"))


def _bias(t: Env, length: int) -> tuple[Any, Tensor]:
    """On the devices, and the table that it is made of."""
    from tt_impl.models.t5.encoder import RelativeBias, bucket_ids

    ctx, config, weights = _context(t), T5Config(num_heads=HEADS), _Weights(t)
    bias = RelativeBias(weights, ctx, "table", config)
    ids = bucket_ids(config, length).to(torch.int32)
    return bias(length, ctx.put_rows(ids, t.ttnn.uint32)), weights.known["table.weight"]


def relative_bias_is_that_of_transformers(t: Env) -> None:
    """Distances beyond the last bucket too; six heads over four devices are eight, of which two are padding."""
    from transformers.models.t5.modeling_t5 import T5Attention

    length = 150
    found, table = _bias(t, length)
    position = torch.arange(length)
    buckets = T5Attention._relative_position_bucket(position[None, :] - position[:, None], bidirectional=True)
    wanted = F.pad(table[buckets].permute(2, 0, 1)[None], (0, 0, 0, 0, 0, 2))
    t.check(found, list(wanted.chunk(TP, 1)))


def hidden_keys(t: Env) -> None:
    """A mask hides keys of one sample; bias and mask are one addition, also where the last tile is not full."""
    from tt_impl.models.t5.encoder import T5Encoder

    bias, mask = t.rand(1, 2, 40, 40), torch.zeros(2, 1, 1, 40)
    mask[1, ..., 30:] = -1e9
    found = T5Encoder._masked(t.put(bias), t.put(mask))
    wanted = (bias + mask.bfloat16().float()).bfloat16().float()
    for value in t.shadow.values(found):
        torch.testing.assert_close(value.float(), wanted, rtol=2**-7, atol=0.0)


def token_rows(t: Env) -> None:
    """Of a batch; an id that is not in the table, which a device would look up beyond it, is refused."""
    from tt_impl.layers.embeddings import TokenEmbedding

    weights = _Weights(t)
    embed = TokenEmbedding(weights, _context(t), "words", vocab_size=11, features=64)
    ids = torch.tensor([[3, 10, 0], [7, 3, 3]])
    t.check(embed(ids), weights.known["words.weight"][ids][:, None])
    for wrong in (-1, 11):
        try:
            embed(torch.tensor([[0, wrong]]))
        except UserError as error:
            assert "outside 0 to 10" in str(error)
        else:
            raise AssertionError(f"id {wrong} was looked up")


def padded_lanes_stay_zero(t: Env) -> None:
    from tt_impl.layers.norm import RMSNorm, over_real_features

    weights, x = _Weights(t), t.rand(2, 1, 7, 96)
    norm = RMSNorm(weights, _context(t), "norm", features=96, eps=1e-6)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    wanted = F.pad(x * scale * weights.known["norm.weight"], (0, 32))
    t.check(over_real_features(norm, t.put(F.pad(x, (0, 32))), 96), wanted, ulps=2)


CASES = collect(globals())
