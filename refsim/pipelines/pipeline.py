"""What a pipeline of diffusers says for itself; everything that pipelines share is in :mod:`refsim.pipelines.denoise`.

A new pipeline is a host in :mod:`refsim.pipelines.hosts`, and a file with a subclass of it and of :class:`Pipeline`,
named in the spec of its transformer (``pipeline``).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.lora import by_part
from refsim.models.registry import find_model, pipeline_of
from refsim.models.spec import resolve
from refsim.pipelines.host import HostScheduler
from refsim.pipelines.hosts.base import PipelineHost
from refsim.pipelines.request import PipelineRequest, read_index
from refsim.runtime.device import Device

Model = TypeVar("Model")


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

    def load(self, name: str, kind: type[Model]) -> tuple[Model, Any]:
        """Load a part of the folder with this device's weights, and its config; see :func:`load_part`."""
        return load_part(self.device, self.root, name, kind)


class Pipeline(PipelineHost):
    """A pipeline: how prompts are encoded and latents decoded on refsim's ranks; the rest is its host's.

    The loop hands the transformer, at every step, ``hidden_states`` (the latents, once per sample of this cfg group),
    ``timestep`` (B,) and what :meth:`encode` gave.

    Attributes:
        transformer: the class of its transformer.
        decoder: the class of its autoencoder's decoder.
    """

    transformer: ClassVar[type]
    decoder: ClassVar[type]

    @abstractmethod
    def check(self, root: Path, device: Device) -> None:
        """Read headers only; ``UserError`` if a part is missing, damaged or does not fit the others."""

    @abstractmethod
    def encode(self, run: Run) -> dict[str, Tensor]:
        """Return the arguments of the transformer that stay the same over the steps, ``encoder_hidden_states`` (B,
        L, D) among them, for ``run.samples``.
        """

    @abstractmethod
    def decoder_input(self, run: Run, latents: Tensor, config: Any) -> Tensor:
        """Return what the decoder takes, in the storage dtype, of the latents after the last step.

        Args:
            config: the autoencoder's, which says how its latents are scaled.
        """

    def decode(self, run: Run, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames (1, 3, F, H, W) in about -1..1 of the latents after the last step, and what the decoder
        was given.
        """
        decoder: Any
        decoder, config = run.load("vae", self.decoder)
        given = self.decoder_input(run, latents, config)
        frames = decoder(z=given)
        return frames if frames.ndim == 5 else frames.unsqueeze(2), given

    def schedule(self, run: Run) -> HostScheduler:
        """Return the scheduler with its time steps set."""
        return HostScheduler(run.device, lambda: self.scheduler(run.root, run.request, run.tensors))


def find_pipeline(root: Path) -> Pipeline:
    """Return the pipeline that a folder's ``model_index.json`` names; ``UserError`` if there is none of that name."""
    return resolve(pipeline_of(root, read_index(root)))()


def load_part(device: Device, root: Path, name: str, kind: type[Model], *, meta: bool = False) -> tuple[Model, Any]:
    """Return the model in ``root / name`` with this device's weights, and its config.

    Args:
        kind: the class that the pipeline needs there.
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
