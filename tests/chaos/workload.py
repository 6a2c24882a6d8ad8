"""The runs that are disturbed: a tiny SD3.5 and one attention, on 4, 8 and 32 ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from refsim.base.options import RunOptions
from refsim.runtime.launch import Result, execute
from tests.refsim.helpers import attention_inputs
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

MODEL = "refsim.pipelines.transformer:program"
ATTENTION = "refsim.pipelines.attention:program"


@dataclass
class Workload:
    """One program on one mesh; ``events`` (per rank) and ``tensors`` are those of an undisturbed run."""

    mesh: str
    parallel: str
    options: dict[str, Any]
    program: str
    arguments: dict[str, Any]
    events: list[int] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self, kind: str, rank: int, event: int, note: Path, number: int, timeout_s: float) -> Result:
        options = RunOptions.of(mesh=self.mesh, parallel=self.parallel, timeout_s=timeout_s, **self.options)
        arguments = {"program": self.program, "arguments": self.arguments, "note": str(note)}
        return execute(
            "tests.chaos.programs:disturbed",
            options,
            {**arguments, "kind": kind, "rank": rank, "event": event, "number": number},
        )

    def measure(self, note: Path) -> Workload:
        """Run it undisturbed, once, for what it says and answers."""
        if not self.events:
            result = self.run("none", 0, 0, note, 0, 120.0)
            self.events = [value["events"] for value in result.values]
            self.tensors = result.tensors
        return self


MESHES = {4: ("bh-qb", "sp2_tp2"), 8: ("t3k", "cfg2_sp2_tp2"), 32: ("galaxy", "sp8_tp4")}
"""Where the command runs the model."""


class Files:
    """A checkpoint folder and inputs, and the workloads on them, whose ranks are connected by ``transport``."""

    def __init__(self, folder: Path, transport: str = "auto") -> None:
        self.transport = transport
        self.checkpoint = save(make_model(), folder / "checkpoint")
        self.inputs = folder / "in.safetensors"
        save_file(make_inputs(), self.inputs)
        qkv = folder / "qkv.safetensors"
        save_file(attention_inputs(heads=8, n=256, prompt=40), qkv)
        model = {"checkpoint": str(self.checkpoint), "inputs": str(self.inputs), "guidance": None}
        attention = {"inputs": str(qkv), "logical_n": 256}
        self.workloads = {
            4: [
                Workload(*MESHES[4], {}, MODEL, model),
                Workload("bh-qb-1x4", "sp4", {"attention": "ring"}, ATTENTION, attention),
            ],
            8: [
                Workload(*MESHES[8], {}, MODEL, model),
                Workload("t3k-1x8", "sp8", {"attention": "ring"}, ATTENTION, attention),
            ],
            32: [
                Workload("galaxy", "sp32", {"attention": "usp", "ring": 4, "ulysses": 8}, ATTENTION, attention),
                Workload("galaxy", "sp8_tp4", {"attention": "ring"}, ATTENTION, attention),
            ],
        }
        for workload in chain(*self.workloads.values()):
            workload.options["transport"] = transport
