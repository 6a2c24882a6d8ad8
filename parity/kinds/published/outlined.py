"""An outline that predictions read, run on the weights of diffusers' classes, judged by these.

What an outline leaves out is taken out of the class as well, so that both compute one formula: pooled prompts give
nothing, all tokens stand at position 0, ungated feed-forwards have an exact gelu and no biases into them, gated ones no
activation; Mochi's norms are layer norms, its gates have no tanh, its scales (which an outline takes for shifts, too)
are 0; Qwen-Image's prompt is not normed. Motif, which no library has, is SD3's class with wider linears of the time
step. The outlines are those that predictions make of a config.json. The case's ``model`` is a name in ``OUTLINED``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from parity.cases import Case, Layout
from parity.cases.inputs import generator
from parity.cases.oracles.library import library_class
from parity.kinds.base import CpuKind, Metrics, distinct_replicas, is_refused
from parity.kinds.published.outlines import INPUTS
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, REPLICAS, Threshold
from refsim.api.inputs import as_file
from refsim.files.checkpoint import ShapeWeights
from refsim.models import registry
from refsim.models.flux2.config import Flux2Config
from refsim.models.mochi.config import MochiConfig
from refsim.models.motif.config import MotifConfig
from refsim.models.outline import TIME, Outline, OutlinedTransformer
from refsim.models.qwenimage.config import QwenImageConfig
from refsim.models.spec import ModelSpec
from refsim.parallel.padding import TILE, round_up
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.launch import Result

Tensors = dict[str, Tensor]
HEADS, HEAD_DIM, TEXT, PROMPT, ROWS, COLUMNS = 3, 8, 16, 5, 3, 4
"""Heads, features of a head and of the prompt, tokens of the prompt, patches of the picture down and across."""
WIDTH, CHANNELS, INNER = HEADS * HEAD_DIM, 4, 12


@dataclass(frozen=True)
class Outlined:
    """An outline and the class it stands for.

    Attributes:
        class_name, config: of the class.
        outline: makes the sizes of the outline.
        names: of the weights, of the outline's from those of the class.
        inputs: arguments of the class beyond tokens, prompt and time step, given these.
        change: what is taken out of the class.
        pictures: it takes a picture (1) or a video (2) in place of its patches.
        times: what it multiplies time steps by.
        own_tokens: that the model has before those of a picture, and the class not.
    """

    class_name: str
    config: dict[str, Any]
    outline: Callable[[], Outline]
    names: Callable[[Tensors], Tensors]
    inputs: Callable[[], dict[str, Any]]
    change: Callable[[Any], None]
    pictures: int = 0
    times: float = 1.0
    own_tokens: int = 0


class OutlinedModel(CpuKind):
    """Tokens in, tokens out."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold("rel_rmse", 5e-6, "as close as one forward of a transformer of two blocks"),
            Threshold("wrong_weights", 0, "an outline asks for as many numbers as the class has, or it does not"),
            Threshold("wide_weights", 0, "a device holds its part of a weight, padded to whole tiles, and no more"),
            Threshold("wrong_tokens", 0, "a picture has the patches that the class cuts it into, and a model's own"),
            Threshold("runnable", 0, "an outline gives no picture and is run for none"),
            REPLICAS,
            FINITE,
        )
    }

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        known = OUTLINED[case.model]
        inputs = dict(zip(OutlinedTransformer.input_shapes(known.outline()), _inputs(known, seed), strict=True))
        tensors = known.names(_model(known, seed).state_dict()) | {INPUTS + name: x for name, x in inputs.items()}
        with as_file({name: x.contiguous() for name, x in tensors.items()}) as file:
            arguments = {"file": str(file), "outline": asdict(known.outline())}
            result = launch.execute(
                "parity.kinds.published.outlines:program", layout.options("fp32", **more), arguments
            )
        assert result is not None  # None on torchrun's ranks
        return result

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        known, answer = OUTLINED[case.model], result.tensors["sample"]
        right = _answer(known, seed)
        inputs = OutlinedTransformer.input_shapes(known.outline())
        digests = [value["digest"] for value in result.values]
        wrong = [name for name, x in zip(inputs, _inputs(known, seed), strict=True) if not _fits(x, inputs[name])]
        return {
            "rel_rmse": m.rel_rmse(answer, right),
            "wrong_weights": len(result.value["left"]) + len(wrong),
            "wide_weights": len(_wide(case, known)),
            "wrong_tokens": abs(_tokens(case, known) - ROWS * COLUMNS - known.own_tokens),
            "runnable": int(any(map(_is_run, _outlines_of(case)))),
            "distinct_replicas": distinct_replicas(case, digests, result.tensors),
            "non_finite": m.non_finite(answer),
        }

    @classmethod
    def tables(cls, case: Case) -> tuple[str, ...]:
        spec = _spec(case)
        return f"refsim.models.{spec.name}.spec", spec.config.partition(":")[0]


def _wide(case: Case, known: Outlined) -> list[str]:
    """The weights of which a device holds more lanes of a dim than all that are padded to whole tiles a member."""
    weights, options = ShapeWeights(torch.float32), case.layout.options("fp32")
    OutlinedTransformer(weights, Device(options), known.outline())
    rounded = TILE * options.parallel.tp
    most = {name: math.prod(round_up(n, rounded) for n in shape) for name, shape in weights.shapes.items()}
    return [name for name, bytes_ in weights.bytes_of.items() if bytes_ > 4 * most[name]]


def _spec(case: Case) -> ModelSpec:
    return registry.get(case.model.removeprefix("outlined_"))


def _tokens(case: Case, known: Outlined) -> int:
    """Tokens of a picture of ``ROWS`` x ``COLUMNS`` patches as the model's spec counts them."""
    config = {"patch_size": 2, "register_token_num": known.own_tokens}
    size = (2 * ROWS, 2 * COLUMNS)
    return _spec(case).more_dims(config, (1, *size) if known.pictures == 2 else size)["image tokens"]


def _outlines_of(case: Case) -> Iterator[str]:
    """The case's class and published models, if predictions alone know them."""
    if (spec := _spec(case)).model_class is OutlinedTransformer:
        yield from (*spec.class_names, *(published.name for published in spec.published))


def _is_run(name: str) -> bool:
    return not is_refused(partial(registry.refuse_timing_only, name))


def _fits(x: Tensor, dims: tuple[str | int, ...]) -> bool:
    return x.ndim == len(dims) and all(isinstance(d, str) or d == n for d, n in zip(dims, x.shape, strict=True))


def _inputs(known: Outlined, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, prompt and time step."""
    g = generator(seed, "outlined")
    tokens = torch.randn(2, ROWS * COLUMNS, known.outline().token_features, generator=g)
    return (
        tokens,
        torch.randn(2, PROMPT, TEXT, generator=g),
        torch.tensor([3.0, 717.0]) * (1000 / 1024),
    )  # of which a class is given whole 1024ths


def _model(known: Outlined, seed: int) -> nn.Module:
    """diffusers' model with random weights, those that an outline lacks taken out."""
    model, g = library_class(known.class_name)(**known.config), generator(seed, "outlined weights")
    with torch.no_grad():
        for x in model.state_dict().values():
            x.copy_(torch.randn(x.shape, generator=g) * (0.3 if x.ndim < 2 else x[0].numel() ** -0.5))
    with torch.no_grad():
        known.change(model)
    return model.eval()


class _NoTanh(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if function is torch.tanh else function(*args, **(kwargs or {}))


def _answer(known: Outlined, seed: int) -> Tensor:
    """What diffusers' last linear gives: tokens, before they are put together to a picture."""
    model, (tokens, prompt, at) = _model(known, seed), _inputs(known, seed)
    found: list[Tensor] = []
    model.proj_out.register_forward_hook(lambda _, given, out: found.append(out))
    if known.pictures:
        tokens = _picture(tokens, known.pictures)
    with torch.inference_mode(), _NoTanh():
        given = {"hidden_states": tokens, "encoder_hidden_states": prompt, "timestep": at / known.times}
        model(**given, **known.inputs(), return_dict=False)
    return found[0]


def _picture(tokens: Tensor, kind: int) -> Tensor:
    """Tokens of 2 x 2 patches, a channel's values side by side, as a picture or as a video of one frame."""
    x = F.fold(tokens.transpose(1, 2), (2 * ROWS, 2 * COLUMNS), 2, stride=2)
    return x if kind == 1 else x.unsqueeze(2)


def _zero(model: nn.Module, *endings: str) -> None:
    for name, x in model.state_dict().items():
        if name.endswith(endings):
            x.zero_()


def _exact(model: Any) -> None:
    """No pooled prompt, exact gelu, no biases where an outline's fused linears have none."""
    _zero(model, "text_embedder.linear_2.weight", "text_embedder.linear_2.bias", ".proj.bias", "proj_mlp.bias")
    for module in model.modules():
        if getattr(module, "approximate", None) == "tanh":
            module.approximate = "none"


def _sd35(model: Any) -> None:
    bias = model.pos_embed.proj.bias.clone()
    _exact(model)
    model.pos_embed.proj.bias.copy_(bias)
    model.pos_embed.pos_embed.zero_()


def _motif(model: Any) -> None:
    """SD3 whose time step goes through linears as wide as Motif's: 256 -> 1024 -> the stream's width."""
    _sd35(model)
    embedder, g = model.time_text_embed.timestep_embedder, generator(0, "outlined time")
    for name, a, b in (("linear_1", TIME, 4 * TIME), ("linear_2", 4 * TIME, WIDTH)):
        wide = nn.Linear(a, b)
        wide.weight.copy_(torch.randn(b, a, generator=g) * a**-0.5)
        wide.bias.copy_(torch.randn(b, generator=g) * 0.3)
        setattr(embedder, name, wide)


def _qwenimage(model: Any) -> None:
    _zero(model, "mlp.net.0.proj.bias")
    _exact(model)
    model.txt_norm, model.pos_embed = nn.Identity(), _Unturned()


class _Unturned(nn.Module):
    """Rotations of Qwen-Image's tokens and of its prompt's, by nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        image, prompt = (torch.ones(rows, HEAD_DIM // 2, dtype=torch.complex64) for rows in (ROWS * COLUMNS, PROMPT))
        return image, prompt


def _flux1(model: Any) -> None:
    _exact(model)
    for block in model.single_transformer_blocks:
        for each in (block.attn.to_q, block.attn.to_k, block.attn.to_v):
            each.bias.zero_()


def _flux2(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "gate_fn"):
            module.gate_fn = nn.Identity()


def _mochi(model: Any) -> None:
    _zero(model, "pooler.to_out.weight", "pooler.to_out.bias", "pos_frequencies", "norm1_context.linear_1.weight")
    _zero(model, "norm1_context.linear_1.bias")
    for block in model.transformer_blocks:
        for norm in (block.norm1, block.norm1_context):
            if hasattr(norm, "linear"):  # scale, gate, scale, gate
                for x in (norm.linear.weight, norm.linear.bias):
                    for scale in x.chunk(4)[::2]:
                        scale.zero_()
    for module in model.modules():
        if type(module).__name__ in ("MochiRMSNormZero", "MochiModulatedRMSNorm", "MochiLayerNormContinuous"):
            module.norm = _Centred()
        if type(module).__name__ == "SwiGLU":
            module.activation = nn.Identity()


class _Centred(nn.Module):
    """A layer norm; where it is given a scale, the scale is multiplied."""

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        out = F.layer_norm(x, x.shape[-1:], eps=1e-6)
        return out if scale is None else out * scale


def _renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    """Tensors whose name begins with a key, by what stands for it."""
    found: Tensors = {}
    for name, x in tensors.items():
        for start, other in names.items():
            if name.startswith(start):
                found[other + name.removeprefix(start)] = x
                break
    return found


def _stream(block: str, name: str, index: int, *, prompt: bool) -> dict[str, str]:
    """Names of a stream's weights in a double block."""
    theirs = [f"add_{n}_proj" for n in "qkv"] if prompt else [f"to_{n}" for n in "qkv"]
    added, context, ours = "added_" if prompt else "", "_context" if prompt else "", "prompt" if prompt else "spatial"
    at, to = f"{block}.{index}.", f"blocks.{index}.{ours}."
    attention = "attn1" if name == "mochi" else "attn"
    return {
        f"{at}norm1{context}.linear.": f"{to}mod.",
        f"{at}norm1{context}.linear_1.": f"{to}mod.",
        **{f"{at}{attention}.{theirs_n}.": f"{to}to_{n}." for theirs_n, n in zip(theirs, "qkv", strict=True)},
        **{f"{at}{attention}.norm_{added}{n}.": f"{to}norm_{n}." for n in "qk"},
        f"{at}{attention}.{'to_add_out' if prompt else 'to_out.0'}.": f"{to}out.",
        f"{at}ff{context}.net.2.": f"{to}ff.out.",
        f"{at}ff{context}.linear_out.": f"{to}ff.out.",
        f"{at}ff{context}.net.0.proj.weight": f"{to}ff.in",
        f"{at}ff{context}.linear_in.weight": f"{to}ff.in",
    }


def _common(embedder: str, time: str, name: str = "") -> dict[str, str]:
    found = {f"{embedder}.": "x_embedder.", f"{time}.timestep_embedder.linear_1.": "time.0."}
    found |= {f"{time}.timestep_embedder.linear_2.": "time.1.", "context_embedder.": "context_embedder."}
    found |= {"norm_out.linear.": "mod_out.", "proj_out.": "proj_out.", f"{time}.caption_proj.": "context_embedder."}
    for index in range(2):
        for prompt in (False, True):
            found |= _stream("transformer_blocks", name, index, prompt=prompt)
    return found


def _cut(tensors: Tensors, ending: str, parts: int) -> Tensors:
    """Fused weights by their parts: ``ff.in`` as ``ff.in.0`` and, where it is gated, ``ff.in.1``."""
    found: Tensors = {}
    for name, x in tensors.items():
        if name.endswith(ending):
            found |= {f"{name}.{i}": part for i, part in enumerate(x.chunk(parts))}
        else:
            found[name] = x
    return found


def _of_sd35(tensors: Tensors) -> Tensors:
    found = _cut(_renamed(tensors, _common("pos_embed.proj", "time_text_embed")), ".ff.in", 1)
    found["x_embedder.weight"] = found["x_embedder.weight"].flatten(1)
    for kind in ("weight", "bias"):  # diffusers' last prompt has scale before shift
        name = f"blocks.1.prompt.mod.{kind}"
        found[name] = torch.cat(found[name].chunk(2)[::-1])
    return found


def _of_qwenimage(tensors: Tensors) -> Tensors:
    names = _common("img_in", "time_text_embed") | {"txt_in.": "context_embedder."}
    for index in range(2):
        for ours, theirs in (("spatial", "img"), ("prompt", "txt")):
            at, to = f"transformer_blocks.{index}.{theirs}_", f"blocks.{index}.{ours}."
            names |= {f"{at}mod.1.": f"{to}mod.", f"{at}mlp.net.2.": f"{to}ff.out."}
            names |= {f"{at}mlp.net.0.proj.weight": f"{to}ff.in"}
    return _cut(_renamed(tensors, names), ".ff.in", 1)


def _of_flux1(tensors: Tensors) -> Tensors:
    names, at, to = _common("x_embedder", "time_text_embed"), "single_transformer_blocks.0.", "single_blocks.0."
    names |= {f"{at}norm.linear.": f"{to}mod.", f"{at}proj_out.": f"{to}down.", f"{at}proj_mlp.weight": f"{to}in.3"}
    names |= {f"{at}attn.to_{n}.weight": f"{to}in.{i}" for i, n in enumerate("qkv")}
    names |= {f"{at}attn.norm_{n}.": f"{to}norm_{n}." for n in "qk"}
    return _cut(_renamed(tensors, names), ".ff.in", 1)


def _of_flux2(tensors: Tensors) -> Tensors:
    names, at, to = _common("x_embedder", "time_guidance_embed"), "single_transformer_blocks.0.", "single_blocks.0."
    names |= {f"double_stream_modulation_{n}.linear.": f"shared.{i}.mod." for i, n in enumerate(("img", "txt"))}
    names |= {"single_stream_modulation.linear.": "shared.2.mod.", f"{at}attn.to_out.": f"{to}down."}
    names |= {f"{at}attn.norm_{n}.": f"{to}norm_{n}." for n in "qk"}
    found = _cut(_renamed(tensors, names), ".ff.in", 2)
    fused = tensors[f"{at}attn.to_qkv_mlp_proj.weight"].split([WIDTH] * 3 + [3 * WIDTH] * 2)
    return found | {f"{to}in.{i}": part for i, part in enumerate(fused)}


def _of_mochi(tensors: Tensors) -> Tensors:
    found = _cut(_renamed(tensors, _common("patch_embed.proj", "time_embed", "mochi")), ".ff.in", 2)
    found["x_embedder.weight"] = found["x_embedder.weight"].flatten(1)
    return found


def _ids() -> dict[str, Any]:
    return {"img_ids": torch.zeros(ROWS * COLUMNS, 3), "txt_ids": torch.zeros(PROMPT, 3)}


_SIZES: dict[str, Any] = {"num_layers": 2, "num_attention_heads": HEADS, "attention_head_dim": HEAD_DIM}
_MOCHI = {**_SIZES, "pooled_projection_dim": INNER, "in_channels": CHANNELS, "text_embed_dim": TEXT, "patch_size": 2}
_FLUX = {**_SIZES, "num_single_layers": 1, "in_channels": INNER, "joint_attention_dim": TEXT}
_QWEN_IMAGE = {**_SIZES, "in_channels": INNER, "out_channels": 5, "joint_attention_dim": TEXT, "patch_size": 2}
OUTLINED = {
    "outlined_motif": Outlined(
        "SD3Transformer2DModel",
        {**_SIZES, "sample_size": 2 * COLUMNS, "caption_projection_dim": WIDTH, "in_channels": CHANNELS,
         "joint_attention_dim": TEXT, "pooled_projection_dim": 6, "pos_embed_max_size": COLUMNS,
         "qk_norm": "rms_norm", "out_channels": CHANNELS},
        lambda: MotifConfig.from_dict({**_SIZES, "modulation_dim": WIDTH, "time_embed_dim": TIME, "patch_size": 2,
                                       "in_channels": CHANNELS, "text_dim": TEXT}),
        _of_sd35, lambda: {"pooled_projections": torch.zeros(2, 6)}, _motif, pictures=1, own_tokens=4,
    ),
    "outlined_flux1": Outlined(
        "FluxTransformer2DModel",
        {**_FLUX, "pooled_projection_dim": 6, "axes_dims_rope": (2, 2, 4)},
        lambda: Outline(**_SIZES, num_single_layers=1, token_features=INNER, out_features=INNER, hidden=4 * WIDTH,
                        prompt_hidden=4 * WIDTH, text_features=TEXT, time=(TIME, WIDTH, WIDTH), prompt_features=WIDTH),
        _of_flux1, lambda: _ids() | {"pooled_projections": torch.zeros(2, 6)}, _flux1, times=1000.0,
    ),
    "outlined_flux2": Outlined(
        "Flux2Transformer2DModel",
        {**_FLUX, "axes_dims_rope": (2, 2, 2, 2), "guidance_embeds": False},
        lambda: Flux2Config.from_dict({**_FLUX, "mlp_ratio": 3.0}),
        _of_flux2, lambda: {name: F.pad(x, (0, 1)) for name, x in _ids().items()}, _flux2, times=1000.0,
    ),
    "outlined_mochi": Outlined(
        "MochiTransformer3DModel", {**_MOCHI, "time_embed_dim": 256},
        lambda: MochiConfig.from_dict(_MOCHI), _of_mochi,
        lambda: {"encoder_attention_mask": torch.ones(2, PROMPT, dtype=torch.bool)}, _mochi, pictures=2,
    ),
    "outlined_qwenimage": Outlined(
        "QwenImageTransformer2DModel", {**_QWEN_IMAGE, "axes_dims_rope": (2, 2, 4)},
        lambda: QwenImageConfig.from_dict(_QWEN_IMAGE), _of_qwenimage,
        lambda: {"img_shapes": [[(1, ROWS, COLUMNS)]] * 2}, _qwenimage, times=1000.0,
    ),
}  # fmt: skip
