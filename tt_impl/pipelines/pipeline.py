"""What a pipeline says for itself on devices; what all share is in :mod:`tt_impl.pipelines.denoise`.

Counterpart of ``refsim.pipelines.pipeline``: a pipeline is a subclass of its host (:mod:`refsim.pipelines.hosts`),
shared by both implementations, and of :class:`Pipeline`; the spec of its transformer names it (``ttnn_pipeline``). What
a part of the folder is in TTNN is asked of the part's own spec.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.lora import by_part
from refsim.models.inputs import by_name, named_sizes
from refsim.models.registry import by_pipeline, spec_of_checkpoint
from refsim.models.spec import ModelSpec, resolve
from refsim.pipelines.hosts.base import PipelineHost
from refsim.pipelines.request import PipelineRequest, read_index
from tt_impl.parallel.cfg import guide
from tt_impl.parallel.context import Context


@dataclass(frozen=True)
class Part:
    """A part of the folder, built on one submesh; its weights stay there as long as it is held.

    Attributes:
        model: ``Model(weights, ctx, config)`` in TTNN.
        spec: what its folder says of it.
        raw: its ``config.json``.
    """

    model: Any
    spec: ModelSpec
    raw: dict[str, Any] = field(repr=False)

    def sizes(self, **inputs: torch.Tensor) -> dict[str, int]:
        """Return the sizes of the named dims of the model's inputs, which its ``read`` takes."""
        dims = self.spec.inputs(self.raw)
        shapes = {name: tuple(x.shape) for name, x in inputs.items() if name in dims}
        return named_sizes({name: dims[name] for name in shapes}, shapes)


@dataclass(frozen=True)
class Run:
    """One run of a pipeline folder on one cfg group.

    Attributes:
        device: the group's submesh.
        tensors: what the host prepared.
        samples: those of the batch of prompts, negative first, that belong to this group.
    """

    device: ttnn.MeshDevice
    options: RunOptions
    root: Path
    request: PipelineRequest
    tensors: dict[str, torch.Tensor] = field(repr=False)
    samples: slice

    @property
    def storage(self) -> torch.dtype:
        return self.options.storage

    def load(self, name: str, ctx: Context | None = None) -> Part:
        """Build a part of the folder on this submesh; ``ctx``: with the buffers of a former part."""
        lora = by_part(self.options.lora).get(name, ())
        checkpoint = Checkpoint(self.root / name, self.options.variant, part=True, lora=lora)
        spec = spec_of_checkpoint(checkpoint)
        ctx = ctx or Context(self.device, self.options)
        config = checkpoint.as_config(spec.config_class)
        model = _counterpart(self.root, name, spec, checkpoint)(Weights(checkpoint, self.storage), ctx, config)
        return Part(model, spec, checkpoint.config)

    def answer(self, part: str, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """See :meth:`refsim.pipelines.hosts.base.HostRun.answer`."""
        loaded = self.load(part)
        return by_name(loaded.model.read(loaded.model(**inputs), loaded.sizes(**inputs)))


class Pipeline(PipelineHost):
    """A pipeline: which parts it has in TTNN; the rest is its host's."""

    @abstractmethod
    def parts(self, root: Path) -> tuple[str, ...]:
        """List the folders of all models of the pipeline, in the order they run."""

    def guided(self, sample: ttnn.Tensor, scale: float) -> ttnn.Tensor:
        """Return the prediction that a batch [negative, positive] of predictions comes to."""
        return guide(sample, scale)

    def check(self, root: Path) -> None:
        """``UserError`` if a part has no counterpart in TTNN."""
        for name in self.parts(root):
            checkpoint = Checkpoint(root / name)
            _counterpart(root, name, spec_of_checkpoint(checkpoint), checkpoint)


def _counterpart(root: Path, name: str, spec: ModelSpec, checkpoint: Checkpoint) -> Any:
    if spec.ttnn is None:
        raise UserError(
            f"pipeline '{root}' has a {checkpoint.class_name} as {name}, which has no counterpart in TTNN; "
            "run it on backend cpu."
        )
    return resolve(spec.ttnn)


def find_pipeline(root: Path) -> Pipeline:
    """Return the pipeline that a folder's ``model_index.json`` names; ``UserError`` if there is none in TTNN."""
    name = read_index(root).get("_class_name")
    spec = by_pipeline(name) if isinstance(name, str) else None
    if spec is None or spec.ttnn_pipeline is None:
        raise UserError(f"pipeline '{root}' is a {name}, which has no counterpart in TTNN; run it on backend cpu.")
    return resolve(spec.ttnn_pipeline)()
