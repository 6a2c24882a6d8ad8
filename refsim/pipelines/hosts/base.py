"""What a pipeline asks of its host, whatever the devices are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.models.inputs import SAMPLE
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.schedule import Schedule
from refsim.pipelines.request import PipelineRequest


@dataclass(frozen=True)
class Sizes:
    """What a request comes to.

    Attributes:
        latents: shape of the noise, (1, ...).
        height, width, frames: pixels and frames of what is written.
        tokens: rows that the longest text encoder is given.
    """

    latents: tuple[int, ...]
    height: int
    width: int
    frames: int
    tokens: int

    @classmethod
    def of_picture(
        cls, request: PipelineRequest, vae: VAEConfig, *, patch: int, side: int, text: int, longest_text: int
    ) -> Sizes:
        """Return the sizes of a picture; ``patch`` and the usual ``side`` are in latent rows.

        Raises:
            UserError: more than one frame, a size that does not fit patches, or more than ``longest_text`` tokens.
        """
        if request.frames not in (None, 1):
            raise UserError(f"a picture has one frame, not {request.frames}; leave out --frames.")
        step = vae.scale * patch
        height, width = request.size(vae.scale * side, vae.scale * side, (step, step))
        tokens = request.max_text or text
        if tokens > longest_text:
            raise UserError(f"--max-text is at most {longest_text} for this pipeline, not {tokens}.")
        return cls((1, vae.latent_channels, height // vae.scale, width // vae.scale), height, width, 1, tokens)

    def least_bytes(self, steps: int, ranks: int, itemsize: int) -> dict[str, int]:
        """Return the memory that a run cannot do without, by what it holds: all of it is whole on every rank.

        Args:
            ranks: that share the memory.
            itemsize: bytes of a number in the storage dtype.
        """
        return {
            "latents of every step": 4 * steps * math.prod(self.latents) * ranks,
            "pixels": 3 * itemsize * self.frames * self.height * self.width * ranks,
            "attention of the prompt": 4 * self.tokens**2 * ranks,
        }


class HostRun(Protocol):
    """What a host asks of a run of its pipeline, be it one rank or the devices of one cfg group.

    Attributes:
        tensors: what :meth:`PipelineHost.prepare` gave.
        samples: those of the batch of prompts, negative first, that run here.
        storage: the dtype of activations.
    """

    @property
    def root(self) -> Path: ...
    @property
    def request(self) -> PipelineRequest: ...
    @property
    def tensors(self) -> dict[str, Tensor]: ...
    @property
    def samples(self) -> slice: ...
    @property
    def storage(self) -> torch.dtype: ...

    def answer(self, part: str, **inputs: Tensor) -> dict[str, Tensor]:
        """Load a part of the folder, run it once and let go of it; its results by name, whole on the host."""
        ...


class PipelineHost(ABC):
    """What the host prepares and hands from part to part, which expert runs when, and the scheduler.

    Attributes:
        fps: frames per second of what it writes; 1 for pictures.
        classifier_free: with guidance above 1 it runs a negative and a positive prompt. A pipeline whose guidance is
            an input of the transformer says False, and always runs one sample.
        guidance_dtype: what a prediction is converted to before guidance; None leaves it in storage dtype.
    """

    fps: ClassVar[int] = 1
    classifier_free: ClassVar[bool] = True
    guidance_dtype: ClassVar[torch.dtype | None] = None

    @abstractmethod
    def sizes(self, root: Path, request: PipelineRequest) -> Sizes:
        """Return how large what :meth:`prepare` makes will be; nothing of it is made.

        Raises:
            UserError: a size that does not fit patches and autoencoder.
        """

    @abstractmethod
    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Do the host's part, once: tokens of the prompts, and the noise as ``latents`` (1, ...) in fp32.

        Raises:
            UserError: a size that does not fit patches and autoencoder, or a folder that lacks something.
        """

    @abstractmethod
    def encode(self, run: HostRun) -> dict[str, Tensor]:
        """Return the arguments of the transformer that stay the same over the steps, ``encoder_hidden_states`` (B,
        L, D) among them, for ``run.samples``; the encoders run one after the other.
        """

    @abstractmethod
    def decoder_input(self, run: HostRun, latents: Tensor) -> Tensor:
        """Return what the decoder takes of the last latents: scaled as its config.json says, in the storage dtype."""

    def decode(self, run: HostRun, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames (1, 3, F, H, W) in about -1..1 of the last latents, and what the decoder was given."""
        z = self.decoder_input(run, latents)
        frames = run.answer("vae", z=z)[SAMPLE]
        return frames if frames.ndim == 5 else frames.unsqueeze(2), z

    def experts(self, root: Path) -> tuple[tuple[str, float], ...]:
        """Return the parts that take turns as the transformer, each with the share of the schedule it runs down to."""
        return (("transformer", 0.0),)

    def scheduler(self, root: Path, request: PipelineRequest, tensors: dict[str, Tensor]) -> Schedule:
        """Return the folder's scheduler with its time steps set; ``tensors`` are what :meth:`prepare` gave."""
        return Schedule(root / "scheduler", request.steps)

    def edits(self, root: Path) -> bool:
        """Whether the pipeline of a folder starts from pictures. Their tokens, as ``condition`` (1, M, C) among what
        :meth:`prepare` gives, stand behind the latents' in every step.
        """
        return False

    def timestep(self, t: Tensor) -> Tensor:
        """Return what the transformer takes for a time step of the scheduler (float64, no dims)."""
        return t.float()

    def batch(self, request: PipelineRequest) -> int:
        """Return how many samples run: 2 (negative, positive) with classifier-free guidance, otherwise 1."""
        return 2 if self.classifier_free and request.guided else 1

    def texts(self, request: PipelineRequest) -> list[str]:
        """Return the prompts of the batch, negative first."""
        return [request.negative_prompt, request.prompt][-self.batch(request) :]


def with_condition(latents: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Return what a step starts from: the latents, and the tokens of pictures to edit behind them, if there are any."""
    condition = tensors.get("condition")
    return latents if condition is None else torch.cat([latents, condition.to(latents)], 1)


def without_condition(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Return the latents' part of what came of :func:`with_condition`."""
    return x if "condition" not in tensors else x[:, : tensors["latents"].shape[1]]


def expert_of(experts: tuple[tuple[str, float], ...], t: float, num_train_timesteps: int) -> str:
    """Return the name of the expert that runs time step ``t``: the first whose share of the schedule reaches it."""
    return next(name for name, until in experts if t >= until * num_train_timesteps)
