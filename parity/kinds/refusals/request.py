"""What a request comes to before any model runs, judged by diffusers' own pipeline with transformers that answer zeros.

    request --host--> tokens of every encoder, noise, time steps, which expert runs when, shape of the picture
    request --diffusers--> the same, seen where its encoders, its transformers and its decoder are called

Nothing runs on ranks. The case's ``model`` is a tiny pipeline, which is asked in several ways: as its own cases ask,
without any size, without guidance in another shape, and with keys of its scheduler and masks of its tokenizers missing.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parity.cases import Case
from parity.cases.linked import linked, rewrite
from parity.cases.oracles import oracle_of
from parity.cases.oracles.requests import ratios
from parity.cases.pipelines import PIPELINES, quietly
from parity.kinds.base import HostKind, Metrics
from parity.kinds.cpu.pipeline import arguments_of, load_pipeline
from parity.measure.thresholds import Threshold
from refsim.pipelines.hosts.base import expert_of
from refsim.pipelines.pipeline import find_pipeline
from refsim.pipelines.request import PipelineRequest, is_pipeline
from refsim.runtime.launch import Result

Facts = dict[str, Any]
STEPS = 3
RANKS = 2
_TEXTS = ("a cat   runs &amp; runs over the hills", "")
_SHIFT_KEYS = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift", "shift", "num_train_timesteps")


@dataclass(frozen=True)
class Way:
    """A way to ask: what is asked otherwise than in the pipeline's own cases, and keys its scheduler's file lacks."""

    changes: dict[str, Any]
    lacking: tuple[str, ...] = ()


WAYS = {
    "as its cases": Way({}),
    "of no size": Way(
        {"height": None, "width": None, "frames": None, "max_text": None, "guidance_2": None, "seed": 2**64 - 1}
    ),
    "unguided, of another shape": Way(
        {"prompt": _TEXTS[0], "negative_prompt": _TEXTS[1], "guidance": 1.0, "height": 64, "width": 32, "max_text": 5}
    ),
    "of the longest prompt, barely guided": Way({"max_text": 512, "guidance": 1.01, "seed": -(2**63)}),
    "by a scheduler that says less": Way({"height": 32, "width": 96}, _SHIFT_KEYS),
}


class Requests(HostKind):
    """A folder and requests in, what they come to out."""

    thresholds: ClassVar = {
        "fp32": (Threshold("unlike_diffusers", 0, "tokens, noise, time steps and sizes are diffusers' own or not"),)
    }

    def look(self, case: Case, seed: int) -> dict[str, Any]:
        folder = self.store.folder(case.model, seed)
        facts = {}
        for name, way in WAYS.items():
            with _lacking(folder, way.lacking) as root:
                facts[name] = ours(root, asked(case.model, way))
        return facts

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        folder = self.store.folder(case.model, seed)
        unlike = []
        with quietly():
            pipe = load_pipeline(case.model, folder)
        for name, way in WAYS.items():
            with _lacking(folder, way.lacking) as root:
                with quietly():
                    asker = load_pipeline(case.model, root, models_of=pipe) if way.lacking else pipe
                right = theirs(asker, root, asked(case.model, way))
            facts = result.value[name]
            unlike += [f"{name}: {key}" for key in right.keys() | facts.keys() if not _same(right, facts, key)]
        result.value["complaints"] = {"unlike": sorted(unlike)}
        return {"unlike_diffusers": len(unlike)}


def asked(name: str, way: Way) -> PipelineRequest:
    """Return the request of a pipeline's own cases, changed."""
    request = replace(PIPELINES[name].request, steps=STEPS)
    changes = dict(way.changes)
    if not request.negative_prompt:
        changes.pop("negative_prompt", None)
    return replace(request, **changes)


@contextmanager
def _lacking(folder: Path, keys: tuple[str, ...]) -> Iterator[Path]:
    """Give the folder, or one like it whose scheduler's file lacks keys and whose tokenizers give no mask unasked."""
    if not keys:
        yield folder
        return
    with linked(folder) as root:
        file = root / "scheduler" / "scheduler_config.json"
        written = json.loads(file.read_text())
        rewrite(file, {key: value for key, value in written.items() if key not in keys})
        for file in root.glob("tokenizer*/tokenizer_config.json"):
            rewrite(file, json.loads(file.read_text()) | {"model_input_names": ["input_ids"]})
        yield root


def ours(root: Path, request: PipelineRequest) -> Facts:
    """Return what refsim makes of a request."""
    pipeline = find_pipeline(root)
    tensors = pipeline.prepare(root, request)
    sizes = pipeline.sizes(root, request)
    schedule = pipeline.scheduler(root, request, tensors)
    names = ("input_ids", "clip", "text_encoder", "text_encoder_2", "t5", "text_encoder_3")
    experts = pipeline.experts(root)
    times = schedule.timesteps
    return {
        "ids": [tensors[name] for name in names if name in tensors],
        "mask": tensors.get("attention_mask"),
        "noise": tensors["latents"],
        "samples": pipeline.batch(request),
        "times": torch.stack([pipeline.timestep(t) for t in times]),
        "experts": [expert_of(experts, float(t), schedule.num_train_timesteps) for t in times],
        "rows": sizes.tokens,
        "picture": (sizes.frames, sizes.height, sizes.width),
        "pipelines": [is_pipeline(folder) for folder in _folders(root)],
        "bytes": list(sizes.least_bytes(STEPS, RANKS, torch.float32.itemsize).values()),
    }


def _folders(root: Path) -> list[Path]:
    """List a pipeline, what is in its folder, and a name that no folder has."""
    return [root, *sorted(root.iterdir()), Path("half\0")]


def _bytes(latents: Tensor, picture: tuple[int, int, int], rows: int) -> list[int]:
    """Return what the latents of every step, the pixels and one head's scores of the prompt take on all ranks."""
    pixels = torch.empty(1, 3, *picture)
    scores = torch.empty(rows, rows)
    return [RANKS * n for n in (STEPS * latents.nbytes, pixels.nbytes, scores.nbytes)]


@dataclass
class _Seen:
    """What diffusers handed its parts."""

    ids: dict[str, list[Tensor]] = field(default_factory=dict)
    masks: list[Tensor] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def encoder(self, name: str) -> Any:
        def see(module: nn.Module, args: tuple[Any, ...], more: dict[str, Any]) -> None:
            self.ids.setdefault(name, []).append(args[0] if args else more["input_ids"])
            mask = args[1] if len(args) > 1 else more.get("attention_mask")
            self.masks += [] if mask is None else [mask]

        return see

    def transformer(self, name: str, module: nn.Module) -> Any:
        known = inspect.signature(type(module).forward)

        def zeros(*args: Any, **more: Any) -> tuple[Tensor]:
            self.calls.append((name, dict(known.bind(module, *args, **more).arguments)))
            return (torch.zeros_like(self.calls[-1][1]["hidden_states"]),)

        return zeros


def theirs(pipe: Any, root: Path, request: PipelineRequest) -> Facts:
    """Return what diffusers makes of a request."""
    seen = _Seen()
    facts = {}
    with quietly(), ExitStack() as hooks:
        for part, module in pipe.components.items():
            if part.startswith("text_encoder") and module is not None:
                hooks.enter_context(module.register_forward_pre_hook(seen.encoder(part), with_kwargs=True))
            elif part.startswith("transformer") and module is not None:
                module.forward = seen.transformer(part, module)
        pipe.vae.decode = _keep(pipe, facts)
        try:
            pipe(request.prompt, output_type="np", **arguments_of(request))
        except _Enough:
            pass
    ids = [torch.cat(calls[::-1]) for _, calls in sorted(seen.ids.items())]
    steps = _steps(seen)
    first = steps[0][0][1]
    before = ids[0].shape[1] if oracle_of(type(pipe.transformer).__name__).clip_in_rows else 0
    rows = first["encoder_hidden_states"].shape[1] - before
    return {
        "ids": ids,
        "mask": torch.cat(seen.masks[::-1]) if seen.masks else None,
        "noise": first["hidden_states"][:1],
        "samples": sum(call["hidden_states"].shape[0] for _, call in steps[0]),
        "times": torch.stack([calls[0][1]["timestep"][0].float() for calls in steps]),
        "experts": [calls[0][0] for calls in steps],
        "rows": rows,
        "picture": facts["picture"],
        "pipelines": [os.path.isfile(folder / type(pipe).config_name) for folder in _folders(root)],
        "bytes": _bytes(first["hidden_states"][:1], facts["picture"], rows),
    }


class _Enough(Exception):
    """The decoder has been called: nothing that follows is looked at."""


def _keep(pipe: Any, facts: Facts) -> Any:
    """Make what stands for the decoder: it keeps the shape of its picture and ends the run."""
    frames, rows = ratios(pipe)

    def decode(z: Tensor, *args: Any, **more: Any) -> Any:
        latent = z.shape[2:] if z.ndim == 5 else (1, *z.shape[2:])
        facts["picture"] = ((latent[0] - 1) * frames + 1, latent[1] * rows, latent[2] * rows)
        raise _Enough

    return decode


def _steps(seen: _Seen) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the calls of every step: pipelines call a transformer once, or once for every prompt."""
    steps: list[list[tuple[str, dict[str, Any]]]] = []
    for call in seen.calls:
        if not steps or not torch.equal(steps[-1][0][1]["timestep"][0], call[1]["timestep"][0]):
            steps.append([])
        steps[-1].append(call)
    return steps


def _same(right: Facts, facts: Facts, key: str) -> bool:
    a = right.get(key)
    b = facts.get(key)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return _equal(a, b)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a.double(), b.double())
    return bool(a == b) if not isinstance(a, Tensor) and not isinstance(b, Tensor) else False
