"""An outline that predictions read, run on the weights of diffusers' classes, judged by these.

What an outline leaves out is taken out of the class as well, so that both compute one formula, see
:mod:`parity.kinds.published.outlined_classes`. The outlines are those that predictions make of a config.json. The
case's ``model`` is a name in ``OUTLINED``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
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
from parity.kinds.published.outlined_classes import COLUMNS, OUTLINED, PROMPT, ROWS, TEXT, Outlined
from parity.kinds.published.outlines import INPUTS
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, REPLICAS, Threshold
from refsim.api.inputs import as_file
from refsim.files.checkpoint import ShapeWeights
from refsim.models import registry
from refsim.models.outline import OutlinedTransformer
from refsim.models.spec import ModelSpec
from refsim.parallel.padding import TILE, round_up
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.launch import Result


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
        inputs = dict(zip(OutlinedTransformer.input_shapes(known.outline), _inputs(known, seed), strict=True))
        tensors = known.names(_model(known, seed).state_dict()) | {INPUTS + name: x for name, x in inputs.items()}
        with as_file({name: x.contiguous() for name, x in tensors.items()}) as file:
            arguments = {"file": str(file), "outline": asdict(known.outline)}
            result = launch.execute(
                "parity.kinds.published.outlines:program", layout.options("fp32", **more), arguments
            )
        assert result is not None  # None on torchrun's ranks
        return result

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        known = OUTLINED[case.model]
        answer = result.tensors["sample"]
        right = _answer(known, seed)
        inputs = OutlinedTransformer.input_shapes(known.outline)
        digests = [value["digest"] for value in result.values]
        wrong = [name for name, x in zip(inputs, _inputs(known, seed), strict=True) if not _fits(x, inputs[name])]
        return {
            "rel_rmse": m.rel_rmse(answer, right),
            "wrong_weights": len(result.value["left"]) + len(wrong),
            "wide_weights": len(_wide(case, known)),
            "wrong_tokens": abs(_tokens(case, known) - ROWS * COLUMNS - known.own_tokens),
            "runnable": int(not all(is_refused(partial(registry.refuse_timing_only, n)) for n in _outlines_of(case))),
            "distinct_replicas": distinct_replicas(case, digests, result.tensors),
            "non_finite": m.non_finite(answer),
        }

    @classmethod
    def tables(cls, case: Case) -> tuple[str, ...]:
        spec = _spec(case)
        return f"refsim.models.{spec.name}.spec", spec.config.partition(":")[0]


def _wide(case: Case, known: Outlined) -> list[str]:
    """Return the weights of which a device holds more lanes of a dim than all members' whole tiles."""
    weights = ShapeWeights(torch.float32)
    options = case.layout.options("fp32")
    OutlinedTransformer(weights, Device(options), known.outline)
    rounded = TILE * options.parallel.tp
    most = {name: math.prod(round_up(n, rounded) for n in shape) for name, shape in weights.shapes.items()}
    return [name for name, bytes_ in weights.bytes_of.items() if bytes_ > 4 * most[name]]


def _spec(case: Case) -> ModelSpec:
    return registry.get(case.model.removeprefix("outlined_"))


def _tokens(case: Case, known: Outlined) -> int:
    """Count tokens of a picture of ``ROWS`` x ``COLUMNS`` patches as the model's spec does."""
    config = {"patch_size": 2, "register_token_num": known.own_tokens}
    size = (2 * ROWS, 2 * COLUMNS)
    return _spec(case).more_dims(config, (1, *size) if known.pictures == 2 else size)["image tokens"]


def _outlines_of(case: Case) -> Iterator[str]:
    """Yield the case's class and published models, if predictions alone know them."""
    if (spec := _spec(case)).model_class is OutlinedTransformer:
        yield from (*spec.class_names, *(published.name for published in spec.published))


def _fits(x: Tensor, dims: tuple[str | int, ...]) -> bool:
    return x.ndim == len(dims) and all(isinstance(d, str) or d == n for d, n in zip(dims, x.shape, strict=True))


def _inputs(known: Outlined, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens, prompt and time step."""
    g = generator(seed, "outlined")
    tokens = torch.randn(2, ROWS * COLUMNS, known.outline.token_features, generator=g)
    prompt = torch.randn(2, PROMPT, TEXT, generator=g)
    return tokens, prompt, torch.tensor([3.0, 717.0]) * (1000 / 1024)  # a class is given whole 1024ths of it


def _model(known: Outlined, seed: int) -> nn.Module:
    """Make diffusers' model with random weights, those that an outline lacks taken out."""
    model = library_class(known.class_name)(**known.config)
    g = generator(seed, "outlined weights")
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
    """Return what diffusers' last linear gives: tokens, before they are put together to a picture."""
    model = _model(known, seed)
    tokens, prompt, at = _inputs(known, seed)
    outputs: list[Tensor] = []
    model.proj_out.register_forward_hook(lambda _, inputs, out: outputs.append(out))
    if known.pictures:
        tokens = _picture(tokens, known.pictures)
    with torch.inference_mode(), _NoTanh():
        arguments = {"hidden_states": tokens, "encoder_hidden_states": prompt, "timestep": at / known.times}
        model(**arguments, **known.inputs, return_dict=False)
    return outputs[0]


def _picture(tokens: Tensor, kind: int) -> Tensor:
    """Put tokens of 2 x 2 patches, a channel's values side by side, into a picture or a video of one frame."""
    x = F.fold(tokens.transpose(1, 2), (2 * ROWS, 2 * COLUMNS), 2, stride=2)
    return x if kind == 1 else x.unsqueeze(2)
