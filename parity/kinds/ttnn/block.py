"""One block in TTNN against refsim: a whole transformer hides a wrong block behind its residual stream and its
output projection, so here a block is judged by what it adds, output minus input.

Metrics of a stream after the block are named as everywhere; those of what the block added to it begin with ``added_``.

Legend: B batch, N image tokens, L prompt tokens, D features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from parity.cases import BlockShape, Case
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import generator, rounded
from parity.cases.oracles import oracle_of
from parity.cases.telling import FAINT, FAINT_TOKENS
from parity.kinds.base import Metrics, TTNNKind, token_shards
from parity.kinds.ttnn.transformer import WHOLE, compare_communication
from parity.measure import metrics as m
from parity.measure.thresholds import Threshold, pcc
from refsim.models.registry import get
from refsim.runtime import launch
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome

STREAMS = ("spatial", "prompt")
_ADDED = "PCC 0.9995 of what the block itself adds, its residual taken away, between two bf16 programs"

_WEIGHTS_IN_BFP8 = (
    "bfp8_b gives 16 weights the step of their largest, 1/64 or 1/32 of their spread, which rounds off 0.7 %; five "
    "matmuls in a row make 1.6 %, which is 1 - PCC 1.2e-4, and bf16 adds 3e-5; two and a half times both"
)


class TTNNBlock(TTNNKind):
    """The image's and the prompt's stream in, both out."""

    program = "tt_impl.pipelines.block:program"
    thresholds: ClassVar = {
        "bf16": (
            *WHOLE,
            *(replace(t, metric=f"added_{t.metric}") for t in pcc(5e-4, _ADDED)),
            Threshold(
                "added_rel_rmse",
                3.2e-2,
                "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that a factor on what the block adds counts",
            ),
        ),
        "bfp8_b": (
            *WHOLE,
            *(replace(t, metric=f"added_{t.metric}") for t in pcc(4e-4, _WEIGHTS_IN_BFP8)),
            Threshold("added_rel_rmse", 2.8e-2, "the error that the PCC above stands for, sqrt(2 * 4e-4)"),
        ),
    }

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        model = MODELS[case.model]
        features = get(model.class_name).config_class.from_dict(model.config).features
        further = oracle_of(model.class_name).further_block_inputs(model.config, case.shape)
        return block_inputs(case.shape, features, seed, model.config.get("time_embed_dim")) | further

    def arguments(self, case: Case, seed: int) -> dict[str, Any]:
        return super().arguments(case, seed) | {"index": MODELS[case.model].block}

    def reference(self, case: Case, seed: int, inputs: Path) -> Result:
        arguments = self.arguments(case, seed) | {"inputs": str(inputs)}
        return launch.execute("refsim.pipelines.block:program", case.layout.options(case.dtype), arguments)

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        shards = token_shards(case.layout, case.shape.n, case.shape.n)
        found, streams = compare(self.inputs(case, seed), outcome.tensors, reference.tensors, shards)
        counted, extra = compare_communication(outcome, reference)
        return found | counted, {"streams": streams} | extra


def block_inputs(shape: BlockShape, features: int, seed: int, time_features: int | None = None) -> dict[str, Tensor]:
    """``spatial`` (B, N, D), ``prompt`` (B, L, D), ``time`` (B, D) with silu applied; fp32 that bf16 can hold.

    ``time_features``: of a time step that is not as wide as the streams.
    Tokens have means that differ from 0 and from one another, so that a norm's mean and variance both matter; one of
    eight is so faint that the norm's epsilon does.
    """
    g = generator(seed, "block")
    sizes = {"spatial": (shape.batch, shape.n, features), "prompt": (shape.batch, shape.text, features)}
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
    """The worst of every metric over the streams, and all metrics by stream; ``shards`` are the image's."""
    by_stream = {}
    for name in (stream for stream in STREAMS if stream in ref):
        a, b, before = (x[name].float() for x in (ours, ref, inputs))
        cut = shards if name == "spatial" else [(0, b.shape[1])]
        added = m.compare(a - before, b - before, cut)
        del added["non_finite"]
        by_stream[name] = m.compare(a, b, cut) | {f"added_{metric}": value for metric, value in added.items()}
    names = by_stream["spatial"]
    measured = {metric: [s[metric] for s in by_stream.values() if s[metric] is not None] for metric in names}
    worst = {metric: m.worst(values) if values else None for metric, values in measured.items()}
    return worst | {"non_finite": sum(s["non_finite"] for s in by_stream.values())}, by_stream
