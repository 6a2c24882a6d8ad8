"""What a pipeline of diffusers says for itself; everything that pipelines share is in :mod:`refsim.pipelines.denoise`.

A new pipeline is a host in :mod:`refsim.pipelines.hosts`, and a file with a subclass of it and of :class:`Pipeline`,
named in the spec of its transformer (``pipeline``).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.lora import by_part
from refsim.models.inputs import by_name
from refsim.models.registry import PipelineFolder, find_model, pipeline_of
from refsim.models.spec import resolve
from refsim.parallel.cfg import guide
from refsim.pipelines.host import HostScheduler
from refsim.pipelines.hosts.base import PipelineHost
from refsim.pipelines.request import PipelineRequest, read_index
from refsim.runtime.device import Device


@dataclass(frozen=True)
class Run:
    """One run of a pipeline folder on one device.

    Attributes:
        tensors: what :meth:`Pipeline.prepare` gave.
        samples: those of the batch of prompts, negative first, that belong to this device's cfg group.
    """

    device: Device
    root: Path
    request: PipelineRequest
    tensors: dict[str, Tensor]
    samples: slice

    @property
    def storage(self) -> torch.dtype:
        return self.device.options.storage

    def load(self, name: str, kind: type = object) -> Any:
        """Load a part of the folder with this device's weights; see :func:`load_part`."""
        return load_part(self.device, self.root, name, kind)[0]

    def answer(self, part: str, **inputs: Tensor) -> dict[str, Tensor]:
        """See :meth:`refsim.pipelines.hosts.base.HostRun.answer`; every rank has the whole of it."""
        return by_name(self.load(part)(**inputs))


class Pipeline(PipelineHost):
    """A pipeline: what its parts are on refsim's ranks; the rest is its host's.

    The loop hands the transformer, at every step, ``hidden_states`` (the latents, once per sample of this cfg group),
    ``timestep`` (B,) and what :meth:`encode` gave.

    Attributes:
        transformer: the class of its transformer.
    """

    transformer: ClassVar[type]

    @abstractmethod
    def check(self, root: Path, device: Device) -> None:
        """Read headers only; ``UserError`` if a part is missing, damaged or does not fit the others."""

    def guided(self, sample: Tensor, scale: float) -> Tensor:
        """Return the prediction that a batch [negative, positive] of predictions comes to."""
        return guide(sample, scale)

    def schedule(self, run: Run) -> HostScheduler:
        """Return the scheduler with its time steps set."""
        return HostScheduler(run.device, lambda: self.scheduler(run.root, run.request, run.tensors))


def find_pipeline(root: Path | PipelineFolder) -> Pipeline:
    """Return the pipeline that a folder's ``model_index.json`` names; ``UserError`` if there is none of that name."""
    return resolve(root.pipeline if isinstance(root, PipelineFolder) else pipeline_of(root, read_index(root)))()


def check_part(device: Device, root: Path, name: str, kind: type) -> Any:
    """Return the config of the model in ``root / name``, whose headers are read; see :func:`load_part`."""
    return load_part(device, root, name, kind, meta=True)[1]


def load_part(device: Device, root: Path, name: str, kind: type = object, *, meta: bool = False) -> tuple[Any, Any]:
    """Return the model in ``root / name`` with this device's weights, and its config.

    Args:
        kind: the class that the pipeline needs there; any will do where the launcher has checked.
        meta: read headers only, to check the folder.

    Raises:
        UserError: the part is missing, damaged or of another class.
    """
    options = device.options
    checkpoint = Checkpoint(root / name, options.variant, part=True, lora=by_part(options.lora).get(name, ()))
    model, config = find_model(checkpoint)
    if not issubclass(model, kind):
        raise UserError(f"pipeline '{root}' has a {checkpoint.class_name} as {name}; it needs a {kind.__name__}.")
    if not meta:
        device.loading(name)
    weights = Weights(checkpoint, options.storage, meta=meta, replica=device.replica)
    return model(weights, device, config), config


def check_fit(root: Path, part: str, pairs: list[tuple[str, int, str, int]]) -> None:
    """Raise ``UserError`` for the first (key of ``part``, its value, what it must equal, that value) that differs."""
    for key, value, other, wanted in pairs:
        if value != wanted:
            raise UserError(f"pipeline '{root}' has {key} {value} in {part} but {other} is {wanted}.")
