"""A user's own folder and inputs as a case: judged as any case of its kind is, by the library's class that it names.

refsim run FOLDER --check-against diffusers     answer of the ranks, already computed
this module                                     the kind's own oracle, metrics, bounds and explanation
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity.cases import Case, Layout, ModelShape
from parity.cases.checkpoints import MODELS, RandomModel, register
from parity.cases.inputs import rounded
from parity.cases.pipelines import PIPELINES, PipelineSpec, register_pipeline
from parity.cases.store import CheckpointStore
from parity.explain import explanation
from parity.kinds import load
from parity.kinds.base import ModelKind
from parity.kinds.cpu.transformer import Answer
from parity.measure.records import Record
from parity.run.case import run_case
from parity.run.cpu import CpuRunner
from refsim import api
from refsim.api.images import Generated
from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint
from refsim.files.folder import ModelFolder
from refsim.files.keys import Measured, Sometimes
from refsim.files.tensor_file import TensorFile
from refsim.models.registry import look_at, spec_of_checkpoint
from refsim.pipelines.request import PipelineRequest, read_index
from refsim.runtime.launch import Result, under_torchrun
from refsim.runtime.watch import observe

_SMALL_BYTES = 64 << 20
"""A folder with less weights is judged layer by layer as well, which keeps what every layer took and gave."""


@dataclass(frozen=True)
class Bounded:
    """A metric and the most that it may be."""

    value: Measured
    bound: float


@dataclass(frozen=True)
class CheckAgainst:
    """The answer, judged by a library's own class.

    Attributes:
        explanation: Why it failed, as ``refsim parity explain`` says it.
    """

    KEYS = ("against", "passed", "reason", "metrics", "not_measured", "explanation", "step_rel_rmse")

    against: str
    dtype: str
    verdict: str
    reason: str
    metrics: dict[str, Bounded]
    not_measured: list[str]
    explanation: dict[str, Any] | None
    step_rel_rmse: Sometimes[list[Measured]] = None

    @classmethod
    def of(cls, record: Record, against: str, steps: list[float] | None = None) -> CheckAgainst:
        """Take from a record every bounded metric with its bound, and those that were not measured.

        What every layer gives is not measured in a large folder, and no metric of parts where there are none.
        """
        metrics = record.metrics
        bounds = record.thresholds
        known = {name: Bounded(metrics[name], bounds[name]) for name in bounds if metrics.get(name) is not None}
        missing = sorted(bounds.keys() - known.keys())
        why = record.extra.get("explanation")
        return cls(against, record.dtype, record.verdict, record.reason, known, missing, why, steps)

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    def text(self) -> str:
        """Write the same in lines."""
        lines = [f"check against {self.against}, {self.dtype}: {self.verdict}"]
        lines += [f"step {i:3d}  rel_rmse {error:.3e}" for i, error in enumerate(self.step_rel_rmse or ())]
        lines += [f"  {n:26} {float(m.value):9.2e}  at most {m.bound:.2e}" for n, m in self.metrics.items()]
        lines += [f"not measured: {', '.join(self.not_measured)}"] if self.not_measured else []
        lines += [self.reason] if self.reason else []
        if self.explanation:
            lines += filter(None, [explanation.text(self.explanation)])
        return "\n".join(lines)


def library_layout(
    name: str,
    options: RunOptions,
    mesh: str,
    parallel: str,
    *,
    attention: str = "ring",
    ring: int | None = None,
    ulysses: int | None = None,
    decoding: bool = False,
) -> Layout:
    """Return the layout of a run that a library is to judge, from its options and the words they were made of.

    Args:
        decoding: it is a text, judged by transformers in fp32.

    Raises:
        UserError: it is no library that could, or it is not installed, or these are not refsim's own ranks.
    """
    judged = "transformers" if decoding else "diffusers"
    whose = "where text is generated" if decoding else "(transformers judges its own classes)"
    for wrong, why in (
        (name != judged, f"is {judged} {whose}, not '{name}'."),
        (decoding and options.dtype != "fp32", "judges a text in fp32, where tokens are decided; leave out --dtype."),
        (options.backend != "cpu", "judges refsim's own ranks; leave out --backend, or --check-against."),
        (under_torchrun(), "runs in one process, which torchrun's ranks cannot; leave one of them out."),
        (bool(options.lora), "judges the folder's own weights; leave out --lora, or --check-against."),
    ):
        if wrong:
            raise UserError(f"--check-against {why}")
    for library in ("diffusers", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise UserError(
                f"--check-against {name} needs {library}, which is not installed; pip install 'refsim[oracle]'."
            )
    shared = {name: getattr(options, name) for name in ("prompt_layout", "ring_order", "math", "vae_parallel")}
    return Layout(mesh, parallel, attention, ring, ulysses, **shared)


def judge_model(
    checked: Path | ModelFolder, layout: Layout, *, inputs: Path, options: RunOptions, guidance: float | None, out: Path
) -> tuple[Result, CheckAgainst]:
    """Run one forward as :func:`refsim.run` does, and judge what it gave."""
    checked_folder = look_at(checked, options.variant)
    checkpoint = Checkpoint(checked_folder)
    folder = checked_folder.path
    kind = spec_of_checkpoint(checkpoint).kind
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    tensors = TensorFile(inputs).all()
    needs_gb = 0.0
    with scratch.Folder("layers") as around:
        looked_at = options
        if kind == "transformer" and size < _SMALL_BYTES:
            looked_at = options.but(observe=around)
        elif kind == "transformer":
            needs_gb = 4 * size / 2**30
        result = api.run(checked_folder, inputs=inputs, options=looked_at, guidance=guidance, out=out)
        assert result is not None  # only torchrun's ranks have none
        if kind == "transformer":
            layers = observe.read(around, len(result.values)) if looked_at.observe else None
            result = Answer(**vars(result), observed=layers)
    name = str(folder)
    register(name, RandomModel(checkpoint.config, class_name=checkpoint.class_name))
    case = Case(folder.name, kind, name, layout, _shape(tensors), options.dtype, guidance=guidance, needs_gb=needs_gb)
    try:
        record, _ = _judge(case, folder, result, tensors, options.variant)
    finally:
        del MODELS[name]
    library = "transformers" if "architectures" in checkpoint.config else "diffusers"
    return result, CheckAgainst.of(record, f"{checkpoint.class_name} of {library}")


def judge_pipeline(
    folder: Path, request: PipelineRequest, layout: Layout, options: RunOptions, generated: Generated
) -> CheckAgainst:
    """Judge what a pipeline gave, step by step."""
    name = str(folder)
    class_name = read_index(folder)["_class_name"]
    register_pipeline(name, PipelineSpec(class_name, {}, {}, ("", {}), request))
    case = Case(folder.name, "pipeline", name, layout, ModelShape(), options.dtype)
    try:
        record, kind = _judge(case, folder, generated, {}, options.variant)
        steps = None if record.error else kind.step_errors(case, 0, generated)
    finally:
        del PIPELINES[name]
    return CheckAgainst.of(record, f"{class_name} of diffusers", steps)


class _UserFolder:
    """Comes before a kind among a class's bases: inputs and answer are those of one run, made already."""

    answer: Any
    tensors: dict[str, Tensor]
    store: CheckpointStore

    def folder(self, case: Case, seed: int) -> Path:
        return self.store.folder(case.model, seed)  # as it is: no copy in another dtype

    def inputs(self, case: Case, seed: int) -> dict[str, Tensor]:
        return rounded(self.tensors, case.dtype, ModelKind.oracle(case).exact)

    def value_dtype(self, case: Case) -> str:
        return case.dtype

    def watching(self, case: Case, arithmetic: torch.dtype, model: Any) -> AbstractContextManager[Any]:
        return nullcontext() if case.needs_gb else super().watching(case, arithmetic, model)

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Any:
        return self.answer

    def noise(self, case: Case, seed: int) -> dict[str, float]:
        return {}  # one more run of the library


def _judge(
    case: Case, folder: Path, answer: Any, tensors: dict[str, Tensor], variant: str | None
) -> tuple[Record, Any]:
    store = CheckpointStore(_known={(case.model, 0, False): folder})
    attributes = {"answer": answer, "tensors": tensors, "variant": variant}
    kind = type("User", (_UserFolder, load(case.kind)), attributes)(store)
    with CpuRunner({case.kind: kind}) as runner:
        record = run_case(runner, case, "cpu", 0)
    if why := record.extra.get("explanation"):
        record = replace(record, extra=record.extra | {"explanation": why | {"again": ""}})
    return record, kind


def _shape(tensors: dict[str, Tensor]) -> ModelShape:
    """Return what a case says of inputs: the latent, the prompt's tokens and the batch."""
    prompt = next((tensors[n] for n in ("encoder_hidden_states", "input_ids") if n in tensors), None)
    latent = next((tensors[n] for n in ("hidden_states", "z") if n in tensors), None)
    batch = next(iter(x for x in (latent, prompt) if x is not None)).shape[0]
    return ModelShape(
        () if latent is None else tuple(latent.shape[2:]), 0 if prompt is None else prompt.shape[1], batch
    )
