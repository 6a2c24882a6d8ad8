"""One block of a transformer on given streams, judged by diffusers' block in fp32, also by what it adds to them.

It is run by the program that is the reference for the blocks of the device programs (kind ``ttnn_block``), on the same
inputs, so that this reference is judged by itself too, and not only as a part of whole transformers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.checkpoints import MODELS
from parity.cases.folders import load_block
from parity.cases.oracles import oracle_of
from parity.cases.store import CheckpointStore
from parity.kinds.base import CpuKind, Metrics, token_shards
from parity.kinds.ttnn.block import STREAMS, TTNNBlock, compare
from parity.measure.thresholds import FINITE, Threshold, pcc
from refsim.base import scratch
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

_GIVEN = (*STREAMS, "time")
"""Inputs of every block."""


class Block(CpuKind):
    """The image's and the prompt's stream in, both out."""

    thresholds: ClassVar = {"fp32": (*_BOUNDS, *(replace(t, metric=f"added_{t.metric}") for t in _BOUNDS), FINITE)}

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store)
        self._counterpart = TTNNBlock(store)

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        """What both kinds of block cases are run on."""
        return self._counterpart.inputs(case, seed)

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        with scratch.Folder("block") as folder:
            path = Path(folder) / "inputs.safetensors"
            # in float64, which no rank stores: the program brings them to its storage dtype itself
            save_file({name: x.double() if name in _GIVEN else x for name, x in self.inputs(case, seed).items()}, path)
            arguments = self._counterpart.arguments(case, seed) | {"inputs": str(path)}
            return launch.execute("refsim.pipelines.block:program", layout.options(case.dtype, **more), arguments)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        shards = token_shards(case.layout, case.shape.n, case.shape.n)
        return compare(self.inputs(case, seed), result.tensors, self.reference(case, seed), shards)[0]

    def reference(self, case: Case, seed: int) -> dict[str, Tensor]:
        """Both streams after diffusers' block; one that it drops or only reads is not among them."""
        model, oracle = MODELS[case.model], oracle_of(MODELS[case.model].class_name)
        whole, block = load_block(self.store.folder(case.model, seed), model.block or 0)
        for part in block.modules():
            if hasattr(part, "silu"):
                part.silu = torch.nn.Identity()  # the time step comes with silu applied
        with torch.inference_mode():
            out = block(**oracle.block_arguments(whole, self.inputs(case, seed)))
        found = zip(STREAMS, oracle.block_streams(out), strict=True)
        return {name: x for name, x in found if x is not None}
