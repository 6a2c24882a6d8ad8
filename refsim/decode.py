"""Text from a decoder on a mesh: greedy, alone or with a drafter's help.

The launching process is the host: it turns text into ids and ids into text; target and drafter run on the devices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refsim import launch
from refsim.api import DTYPES, _as_file
from refsim.config import parse_parallel
from refsim.errors import UserError
from refsim.mesh import MeshSpec, get_mesh
from refsim.pipelines.request import load_tokenizer
from refsim.pipelines.speculative import MODES, Decoded, Step, load
from refsim.runtime.device import Device
from refsim.validate import check_options


@dataclass
class DecodeResult:
    """What a run gave.

    Attributes:
        texts: one per prompt.
        seconds: ``load`` and ``decode``, as rank 0 saw it.
        replicas_equal: every rank ended with the same tokens.
        block: tokens the target verifies in one pass; 1 without a drafter.
        same_as_target: the tokens are those of the target alone; None unless asked for.
    """

    texts: list[Decoded]
    seconds: dict[str, float]
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    wall_s: float
    block: int = 1
    same_as_target: bool | None = None

    @property
    def mean_accepted(self) -> float:
        """Tokens per pass of the target, over all prompts."""
        steps = [step.accepted for text in self.texts for step in text.steps]
        return sum(steps) / max(len(steps), 1)

    @property
    def margin(self) -> float:
        """The least difference of two logits that decided a token."""
        return min(min([text.prefill_margin, *(step.margin for step in text.steps)]) for text in self.texts)


def decode(
    target: str | Path,
    prompts: Sequence[Sequence[int]],
    *,
    draft: str | Path | None = None,
    mesh: str | MeshSpec,
    parallel: str = "sp1",
    dtype: str = "fp32",
    most: int = 128,
    stop: Sequence[int] = (),
    mode: str = "context",
    check: bool = False,
    timeout_s: float = launch.DEFAULT_TIMEOUT_S,
    fault: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> DecodeResult | None:
    """Greedy tokens after each prompt; None on torchrun's ranks above 0.

    Args:
        target: transformers folder of a Qwen3 mixture of experts.
        prompts: ids of each.
        draft: folder of its DFlash drafter; None for the target alone.
        mesh, parallel: see :func:`refsim.config.parse_parallel`; tp only.
        dtype: storage of weights and activations, ``fp32`` or ``bf16``.
        most: tokens to give per prompt.
        stop: ids that end a text.
        mode: what the drafter's cache keeps, one of ``MODES``.
        check: decode once more with the target alone and compare the tokens.
        timeout_s, fault, progress: see :func:`refsim.launch.execute`.

    Raises:
        UserError: anything that does not fit, found before a rank is started.
        RankFailure: a rank died, raised or hung.
    """
    spec = get_mesh(mesh)
    config = parse_parallel(parallel, spec)
    check_options("replicated", "step", 1, 1, timeout_s)
    if config.tp != spec.num_devices:
        raise UserError(f"decoding is tensor-parallel; --parallel tp{spec.num_devices} would work, not {config}.")
    if dtype not in DTYPES:
        raise UserError(f"dtype '{dtype}' is not supported; choose fp32 or bf16.")
    if mode not in MODES:
        raise UserError(f"cache '{mode}' does not exist; choose one of {', '.join(MODES)}.")
    if most < 1:
        raise UserError(f"--max-new-tokens is 1 or more, not {most}.")
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("every prompt needs at least one token.")
    if check and draft is None:
        raise UserError("--check compares with the target alone; give --draft DRAFT_DIR, or leave it out.")
    folder = None if draft is None else str(draft)
    model, _ = load(Device(spec, config, 0), str(target), folder, torch.float32, meta=True)
    words = model.config.vocab_size
    for token in (token for prompt in prompts for token in prompt):
        if not 0 <= token < words:
            raise UserError(f"the prompt holds the id {token}, but the target knows 0 to {words - 1}.")
    ids = torch.tensor([token for prompt in prompts for token in prompt])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    with _as_file({"ids": ids, "lengths": lengths}) as inputs:
        arguments = {
            "target": str(target),
            "draft": folder,
            "inputs": str(inputs),
            "dtype": str(DTYPES[dtype]).removeprefix("torch."),
            "mode": mode,
            "most": most,
            "stop": list(stop),
        }
        run = {"program": "refsim.pipelines.speculative:program", "mesh": spec, "config": config}
        result = launch.execute(**run, arguments=arguments, timeout_s=timeout_s, fault=fault, progress=progress)
        alone = None
        if check:
            alone = launch.execute(**run, arguments=arguments | {"draft": None}, timeout_s=timeout_s, progress=progress)
    if result is None:
        return None
    found = _texts(result)
    return DecodeResult(
        texts=found,
        seconds=result.value["seconds"],
        replicas_equal=len({value["digest"] for value in result.values}) == 1,
        hazards=[str(hazard) for hazard in result.hazards],
        bytes_by_collective=result.bytes_by_collective,
        wall_s=result.wall_s,
        block=result.value["block"],
        same_as_target=None if alone is None else [t.tokens for t in found] == [t.tokens for t in _texts(alone)],
    )


class Words:
    """The tokenizer of a target's folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        self.stop = _stop_ids(folder, self._tokenizer)

    def ids(self, prompt: str, *, chat: bool) -> list[int]:
        """Ids of a text; with ``chat``, of a user's message in the folder's chat template."""
        if not chat:
            return list(self._tokenizer(prompt).input_ids)
        if self._tokenizer.chat_template is None:
            raise UserError("the target's tokenizer has no chat template; leave out --chat.")
        message = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(text).input_ids)

    def text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _stop_ids(folder: Path, tokenizer: Any) -> list[int]:
    """``eos_token_id`` of generation_config.json and the tokenizer's own."""
    found = {tokenizer.eos_token_id} - {None}
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as e:
            raise UserError(f"'{path}' is not valid JSON ({e}).") from e
        found |= {token for token in (given if isinstance(given, list) else [given]) if type(token) is int}
    return sorted(found)


def _texts(result: launch.Result) -> list[Decoded]:
    return [
        Decoded(text["tokens"], [Step(**step) for step in text["steps"]], text["prefill_margin"])
        for text in result.value["texts"]
    ]
