"""A tiny pipeline and a request, spoiled in one way after the other: each is refused in a sentence before it runs.

What each way means judges: of the folders diffusers itself can make no pipeline or no picture, of the requests there is
none that a picture could be right for. The case's ``model`` is a pipeline of :data:`parity.cases.pipelines.PIPELINES`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.cases import Case
from parity.cases.linked import linked, rewrite
from parity.cases.oracles import oracle_of
from parity.cases.oracles.requests import ratios
from parity.cases.pipelines import PIPELINES, quietly
from parity.kinds.base import HostKind, Metrics, is_refused
from parity.kinds.cpu.pipeline import load_pipeline
from parity.measure.thresholds import Threshold
from refsim.api.images import generate_images
from refsim.base.options import RunOptions
from refsim.pipelines.pipeline import find_pipeline
from refsim.pipelines.request import PipelineRequest, is_pipeline
from refsim.runtime.device import Device
from refsim.runtime.launch import Result

Spoil = Callable[[Path], Any]
"""Changes a folder in place; False of one that it cannot be done to."""


class PipelineRefusals(HostKind):
    """A folder and requests in, the ways that were not refused out."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold("accepted", 0, "what cannot be right is refused, or it is not"),
            Threshold("weights_read", 0, "a folder is checked by its headers, whatever numbers its weights are"),
            Threshold("code_ran", 0, "a folder is data, whatever Python lies in it"),
        )
    }

    def look(self, case: Case, seed: int) -> dict[str, Any]:
        root = self.store.folder(case.model, seed)
        request = PIPELINES[case.model].request
        options = case.layout.options("fp32")
        accepted = []
        wrong = [(name, key, value, (key, str(value))) for name, keys in REQUESTS.items() for key, value in keys]
        wrong += [("as its class has it", *each) for each in self._of_its_class(case, seed)]
        for name, key, value, named in wrong:
            ask = partial(_generate, root, request, options, key, value)
            if not is_refused(ask, *named):
                accepted.append(f"{name}: {key} {value!r}")
        for name, (spoil, named) in FOLDERS.items():
            with _spoiled(root, spoil) as folder:
                if folder and not is_refused(lambda at=folder: generate_images(at, request, options=options), named):
                    accepted.append(name)
        with _spoiled(root, _circle) as folder:
            if folder and not is_refused(lambda: is_pipeline(folder), "cannot be read"):
                accepted.append("a model_index.json that leads to itself")
        code_ran = _runs_code(root, lambda folder: generate_images(folder, request, options=options))
        reads = _reads_weights(root, Device(options))
        return {"complaints": {"accepted": accepted}, "weights_read": reads, "code_ran": code_ran}

    def _of_its_class(self, case: Case, seed: int) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return requests for a picture with a row or a column of latents that is half a patch, sizes that diffusers
        has, and for a prompt that is longer than the longest; and what a refusal has to name.
        """
        with quietly():
            pipe = load_pipeline(case.model, self.store.folder(case.model, seed))
        row = ratios(pipe)[1]
        longest = oracle_of(type(pipe.transformer).__name__).longest_prompt
        patch = (f"{2 * row}x{2 * row} pixels",)
        sides: list[tuple[str, int, tuple[str, ...]]] = [("height", 3 * row, patch), ("width", 5 * row, patch)]
        return sides if longest is None else [*sides, ("max_text", longest + 1, ("max_text",))]

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        metrics = {name: int(result.value[name]) for name in ("weights_read", "code_ran")}
        return super().measure(case, seed, result) | metrics


def _generate(root: Path, request: PipelineRequest, options: RunOptions, key: str, value: Any) -> None:
    """Ask a pipeline what its own cases ask it, but for one thing."""
    generate_images(root, replace(request, **{key: value}), options=options)


@contextmanager
def _spoiled(root: Path, spoil: Spoil) -> Iterator[Path | None]:
    """Make a folder like ``root`` but for what ``spoil`` does to it; None if that cannot be done."""
    with linked(root) as folder:
        yield None if spoil(folder) is False else folder


def _reads_weights(root: Path, device: Device) -> bool:
    """Whether a folder of weights that are not numbers is refused when its parts are checked."""

    def no_numbers(folder: Path) -> None:
        _reweigh(folder, "*/*.safetensors", lambda name, x: torch.full_like(x, torch.nan))

    with _spoiled(root, no_numbers) as folder:
        assert folder is not None
        return is_refused(lambda: find_pipeline(folder).check(folder, device))


def _runs_code(root: Path, generate: Callable[[Path], Any]) -> bool:
    """Whether a class that a tokenizer brings itself is imported, or such a folder is taken for a right one."""

    def with_code(folder: Path) -> None:
        mark = str(folder / "ran")
        (folder / "tokenizer" / "own.py").write_text(f"import pathlib\npathlib.Path({mark!r}).touch()\n")
        config = {"auto_map": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]}, "tokenizer_class": "Tokenizer"}
        _with("tokenizer/tokenizer_config.json", **config)(folder)

    with _spoiled(root, with_code) as folder:
        assert folder is not None
        return not is_refused(lambda: generate(folder)) or (folder / "ran").exists()


_HALF = "\ud800"
"""Half of a character, as the shell leaves what it cannot decode."""
REQUESTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "no text": (("prompt", None), ("prompt", _HALF), ("negative_prompt", _HALF)),
    "no number of steps": (("steps", 0), ("steps", 2.5), ("steps", True)),
    "no size": (("height", 0), ("width", "64"), ("frames", 0), ("max_text", 0)),
    "no scale": (("guidance", float("nan")), ("guidance_2", float("inf"))),
    "no seed": (("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.0)),
    "a picture of no whole pixels of a latent": (("height", 41), ("width", 57)),
    "frames of no whole latent ones": (("frames", 6),),
}
"""What nobody can be given a picture for; a refusal names the key or the value."""


def _edited(file: str, change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Change what a JSON file says; ``change`` may return False."""

    def spoil(folder: Path) -> Any:
        path = folder / file
        if not path.is_file():
            return False
        written = json.loads(path.read_text())
        if change(written) is False:
            return False
        rewrite(path, written)
        return True

    return spoil


def _with(file: str, **values: Any) -> Spoil:
    return _edited(file, lambda written: written.update(values))


def _other(file: str, **values: Any) -> Spoil:
    """Write other values of keys that the file has; False if it has none of them."""
    return _edited(file, lambda written: (values.keys() & written.keys()) == values.keys() and written.update(values))


def _circle(folder: Path) -> None:
    """Make the index a link that no system follows: it is there, and cannot be read."""
    path = folder / "model_index.json"
    path.unlink()
    path.symlink_to(path.name)


def _broken_tokenizer(folder: Path) -> None:
    for path in (folder / "tokenizer").glob("*.json"):
        path.unlink()
        path.write_text("{")


def _long_tokenizer(folder: Path) -> Any:
    """Let a CLIP's tokenizer pad to more rows than the encoder has positions."""
    config = json.loads((folder / "text_encoder" / "config.json").read_text())
    if "max_position_embeddings" not in config:
        return False
    longer = config["max_position_embeddings"] + 1
    return _with("tokenizer/tokenizer_config.json", model_max_length=longer)(folder)


def _wider_decoder(folder: Path) -> None:
    """Make the decoder take another number of channels, its weights with it."""
    config = folder / "vae" / "config.json"
    written = json.loads(config.read_text())
    key = "z_dim" if "z_dim" in written else "latent_channels"
    before = written[key]
    for name in ("latents_mean", "latents_std"):
        written |= {name: [1.0] * (before + 4)} if written.get(name) else {}
    rewrite(config, written | {key: before + 4})
    _reweigh(folder, "vae/*.safetensors", lambda name, x: _wider(x, before) if name.endswith(_FIRST) else x)


_FIRST = ("decoder.conv_in.weight", "decoder.conv_in.conv.weight", "post_quant_conv.weight", "post_quant_conv.bias")
_FIRST += ("conv_y.conv.weight", "conv_b.conv.weight")  # CogVideoX's norms take the latent again


_INPUTS = {
    "joint_attention_dim": ("context_embedder.weight",),
    "text_dim": ("condition_embedder.text_embedder.linear_1.weight",),
    "text_embed_dim": ("patch_embed.text_proj.weight",),
    "pooled_projection_dim": ("time_text_embed.text_embedder.linear_1.weight",),
}


def _wider_transformer(*keys: str) -> Spoil:
    """Make the transformer take rows of four numbers more, its weights with it."""

    def spoil(folder: Path) -> Any:
        changed = False
        for part in ("transformer", "transformer_2"):
            written = json.loads((folder / part / "config.json").read_text()) if (folder / part).is_dir() else {}
            for key in keys & written.keys():
                changed = True
                before = written[key]
                inputs = _INPUTS[key]
                _with(f"{part}/config.json", **{key: before + 4})(folder)
                _reweigh(
                    folder,
                    f"{part}/*.safetensors",
                    lambda name, x, n=before, names=inputs: _wider(x, n) if name in names else x,
                )
        return changed

    return spoil


def _reweigh(folder: Path, files: str, change: Callable[[str, Tensor], Tensor]) -> None:
    """Write other weights in the place of links."""
    for path in folder.glob(files):
        tensors = {name: change(name, x) for name, x in load_file(path).items()}
        path.unlink()
        save_file(tensors, path, metadata={"format": "pt"})


def _wider(x: Tensor, before: int) -> Tensor:
    return x.new_zeros([n + 4 if n == before else n for n in x.shape])


SCHEDULER = "scheduler/scheduler_config.json"
FOLDERS: dict[str, tuple[Spoil, str]] = {
    "an index that is none": (lambda folder: (folder / "model_index.json").unlink(), "model_index.json"),
    "an index that leads to itself": (_circle, "model_index.json' cannot be read"),
    "a pipeline that nobody has": (_with("model_index.json", _class_name="NoPipeline"), "is a NoPipeline"),
    "a part that is a number": (_with("model_index.json", vae=3), "vae = 3"),
    "a boundary above 1": (_with("model_index.json", boundary_ratio=1.5), "boundary_ratio = 1.5"),
    "a time step per token": (_with("model_index.json", expand_timesteps="yes"), "expand_timesteps = 'yes'"),
    "no tokenizer": (lambda folder: shutil.rmtree(folder / "tokenizer"), "lacks its tokenizer"),
    "a tokenizer that is none": (_broken_tokenizer, "no tokenizer"),
    "a tokenizer of more rows than there are": (_long_tokenizer, "model_max_length"),
    "a decoder of other latents": (_wider_decoder, "of vae is"),
    "a transformer of other rows": (_wider_transformer("joint_attention_dim", "text_dim", "text_embed_dim"), "d_model"),
    "a transformer of other pooled rows": (_wider_transformer("pooled_projection_dim"), "pooled_projection_dim"),
    "a scheduler that nobody has": (_with(SCHEDULER, _class_name="NoScheduler"), "'NoScheduler'"),
    "a scheduler of no steps": (_with(SCHEDULER, num_train_timesteps=0), "num_train_timesteps = 0"),
    "a scheduler of half a step": (_with(SCHEDULER, num_train_timesteps=1000.5), "num_train_timesteps = 1000.5"),
    "a shift backwards": (_other(SCHEDULER, shift=-1.0), "shift = -1.0"),
    "a shift in words": (_other(SCHEDULER, shift="3"), "shift = '3'"),
    "a switch in words": (_other(SCHEDULER, use_karras_sigmas="no"), "use_karras_sigmas = 'no'"),
    "a line of no length": (_other(SCHEDULER, use_dynamic_shifting=True, base_image_seq_len=4096), "scheduler"),
    "a shift of another kind": (_other(SCHEDULER, time_shift_type="cubic"), "time_shift_type = 'cubic'"),
}
"""Ways to spoil a folder, and what a refusal names."""
