"""One block of a transformer on given streams, judged by diffusers' block in fp32, also by what it adds to them.

It is run by the program that is the reference for the blocks of the device programs (kind ``ttnn_block``), on the same
inputs, so that this reference is judged by itself too, and not only as a part of whole transformers.

Legend: B batch, N image tokens, L prompt tokens, D features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity.cases import BlockShape, Case, Layout
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import generator, rounded
from parity.cases.model_folders import load_block
from parity.cases.oracles import oracle_of
from parity.cases.sensitive_block import FAINT, FAINT_TOKENS
from parity.kinds.base import CpuKind, Metrics, token_shards
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, Threshold, pcc
from refsim.base import scratch
from refsim.models.registry import get
from refsim.runtime import launch
from refsim.runtime.launch import Result

_BOUNDS = (
    Threshold(
        "rel_rmse",
        4e-4,
        "eight times the distance of diffusers' own fp32 block from float64, which was 3.2e-5 to 5.3e-5 in what these "
        "blocks add, over 24 seeds: an eighth of their hidden features lie in GELU's tail, where 1 + tanh cancels to a "
        "thousandth of its terms, and weigh the more on the way out",
    ),
    *pcc(8e-8, "half the square of the relative RMSE allowed, 4e-4"),
)

PROGRAM = "refsim.pipelines.block:program"
STREAMS = ("spatial", "prompt")
_COMMON = (*STREAMS, "time")
"""Inputs of every block."""


class Block(CpuKind):
    """The image's and the prompt's stream in, both out."""

    thresholds: ClassVar = {"fp32": (*_BOUNDS, *(replace(t, metric=f"added_{t.metric}") for t in _BOUNDS), FINITE)}

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        with scratch.Folder("block") as folder:
            path = Path(folder) / "inputs.safetensors"
            # in float64, which no rank stores: the program brings them to its storage dtype itself
            save_file({name: x.double() if name in _COMMON else x for name, x in inputs_of(case, seed).items()}, path)
            arguments = {"checkpoint": str(self.store.folder(case.model, seed)), "index": MODELS[case.model].block}
            return launch.execute(PROGRAM, layout.options(case.dtype, **more), arguments | {"inputs": str(path)})

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        shards = token_shards(case.layout, case.shape.n, case.shape.n)
        return compare(inputs_of(case, seed), result.tensors, self.reference(case, seed), shards)[0]

    def reference(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Return both streams after diffusers' block; one that it drops or only reads is not among them."""
        model = MODELS[case.model]
        oracle = oracle_of(MODELS[case.model].class_name)
        whole, block = load_block(self.store.folder(case.model, seed), model.block or 0)
        for part in block.modules():
            if hasattr(part, "silu"):
                part.silu = torch.nn.Identity()  # the time step comes with silu applied
        with torch.inference_mode():
            out = block(**oracle.block_arguments(whole, inputs_of(case, seed)))
        streams = zip(STREAMS, oracle.block_streams(out), strict=True)
        return {name: x for name, x in streams if x is not None}


def inputs_of(case: Case, seed: int) -> dict[str, Tensor]:
    """Return what a case's block is run on in either backend: :func:`block_inputs` and what its class takes besides."""
    model = MODELS[case.model]
    features = get(model.class_name).config_class.from_dict(model.config).features
    oracle = oracle_of(model.class_name)
    widths = oracle.block_features(model.config, features)
    return block_inputs(case.shape, features, seed, *widths) | oracle.further_block_inputs(model.config, case.shape)


def block_inputs(
    shape: BlockShape, features: int, seed: int, prompt_features: int = 0, time_features: int = 0
) -> dict[str, Tensor]:
    """Draw ``spatial`` (B, N, D), ``prompt`` (B, L, D), ``time`` (B, D) with silu applied; fp32 that bf16 can hold.

    ``prompt_features``, ``time_features``: of a prompt and a time step that are not as wide as the image's stream.
    Tokens have means that differ from 0 and from one another, so that a norm's mean and variance both matter; one of
    eight is so faint that the norm's epsilon does.
    """
    g = generator(seed, "block")
    sizes = {
        "spatial": (shape.batch, shape.n, features),
        "prompt": (shape.batch, shape.text, prompt_features or features),
    }
    drawn = {
        name: torch.randn(size, generator=g) * 0.8 + 0.5 * torch.randn(*size[:2], 1, generator=g)
        for name, size in sizes.items()
    }
    for x in drawn.values():
        faint = x[:, FAINT_TOKENS]
        faint.copy_(torch.randn(faint.shape, generator=g) * FAINT)
    drawn["time"] = torch.nn.functional.silu(torch.randn(shape.batch, time_features or features, generator=g) * 2.0)
    return rounded(drawn, "bf16")


def compare(
    inputs: dict[str, Tensor], ours: dict[str, Tensor], ref: dict[str, Tensor], shards: list[m.Range]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the worst of every metric over the streams, and all metrics by stream; ``shards`` are the image's."""
    by_stream = {}
    for name in (stream for stream in STREAMS if stream in ref):
        a, b, before = (x[name].float() for x in (ours, ref, inputs))
        cut = shards if name == "spatial" else [(0, b.shape[1])]
        added = m.compare(a - before, b - before, cut)
        del added["non_finite"]
        by_stream[name] = m.compare(a, b, cut) | {f"added_{metric}": value for metric, value in added.items()}
    return m.worst_of(by_stream.values()), by_stream
