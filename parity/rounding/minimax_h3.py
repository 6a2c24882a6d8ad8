"""MiniMax-H3 as a device computes it, for figures published of it: diffusers' class, its ops by the rules of the ranks.

Every width is a seventh of the published one, heads have their 128 features. How weights and inputs are drawn was
settled before any result was seen:

* a block is drawn as torch initialises the class, and gets a stream of standard normal values, as a test of one module
  does; such a block writes a few per cent of the stream;
* layers of real weights are drawn as parity draws every model: each layer writes as much as the stream holds.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from parity.cases.checkpoints import RandomModel
from parity.cases.inputs import generator
from parity.rounding.errors import Error
from refsim.base.device_numerics import DeviceNumerics
from refsim.runtime.rounding import as_device

NUMERICS = "fast:k_chunk=512"
"""As tt_dit configures H3: HiFi2, sums in 32 bits, attention in 16 by chunks of 512 keys."""
ARCH = "wormhole_b0"
ROWS = 1024
TEXT = 128
AUDIO = 64
_WIDTHS = {"hidden_size": 768, "ffn_dim": 2048, "time_embed_dim": 384}
_HEADS = {"num_attention_heads": 8, "attention_head_dim": 128}
_EPS = {"norm_eps": 1e-5, "qk_norm_eps": 1e-5}
_TEXT_DIM = 720
_TIMESTEPS = torch.tensor([0.7])


def one_block() -> Error:
    """Compare one block, freshly initialised, with the exact one."""
    from diffusers.models.transformers import transformer_minimax_h3 as h3

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        block = h3.MiniMaxH3TransformerBlock(**_WIDTHS, **_HEADS, **_EPS)
    g = generator("published", "h3")
    stream = torch.randn(1, ROWS, _WIDTHS["hidden_size"], generator=g).bfloat16().float()
    embedded = torch.randn(1, _WIDTHS["time_embed_dim"], generator=g)
    angles = h3.MiniMaxH3RotaryPosEmbed()(_places(ROWS))
    tags = torch.zeros(ROWS, dtype=torch.long)
    return _compare(block, [(stream, True), (embedded, False), (tags, False), (angles, False)])


def two_layers() -> Error:
    """Compare the video that a model of two layers gives with the exact one."""
    from diffusers import MiniMaxH3Transformer3DModel

    config = {"num_layers": 2, "text_dim": _TEXT_DIM, "time_embed_hidden_dim": 768, **_WIDTHS, **_HEADS, **_EPS}
    model = MiniMaxH3Transformer3DModel(**config)
    drawn = RandomModel(config, class_name=type(model).__name__)
    g = generator("published", "h3", "layers")
    for name, parameter in model.named_parameters():
        parameter.data = drawn.random(name, parameter.shape, g)
    video, audio, text = (
        torch.randn(1, rows, width, generator=g).bfloat16().float()
        for rows, width in ((ROWS, 96), (AUDIO, 32), (TEXT, _TEXT_DIM))
    )
    counts = torch.tensor([TEXT, AUDIO, ROWS])
    tags = torch.tensor([1, 2, 0]).repeat_interleave(counts)
    packed = [torch.nonzero(tags == tag).flatten() for tag in (0, 2, 1)]
    layout = [_TIMESTEPS, torch.zeros_like(tags), tags, _places(len(tags)), *packed]
    streams = [(video, False), (audio, False), (text, True)]
    return _compare(model, [*streams, *((each, False) for each in layout)])


def _places(rows: int) -> Tensor:
    """Return (t, h, w) of ``rows`` places of a video, (rows, 3), 16 by 16 of them a frame."""
    place = torch.arange(rows)
    return torch.stack([place // 256, place // 16 % 16, place % 16], 1)


def _compare(module: nn.Module, arguments: list[tuple[Any, bool]]) -> Error:
    """Run a module in fp32 and as a device does.

    Args:
        module: its weights become numbers that bf16 has.
        arguments: of its forward, and whether a device holds them in bf16.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16().float()
    ours = copy.deepcopy(module).bfloat16()
    for name in getattr(module, "_keep_in_fp32_modules", ()):
        ours.get_submodule(name).float()
    with torch.no_grad():
        exact = _first(module(*(value for value, _ in arguments)))
        with as_device(DeviceNumerics.parse(NUMERICS), "bf16", ARCH) as without_rule:
            answer = _first(ours(*(value.bfloat16() if narrow else value for value, narrow in arguments)))
    if without_rule:
        raise AssertionError(f"rounded once: {dict(without_rule)}")
    return Error.of([answer.float()], [exact])


def _first(answer: Any) -> Tensor:
    return answer if isinstance(answer, Tensor) else answer[0]
