"""Text from a decoder on a mesh: greedy, alone or with a drafter's help.

The launching process is the host: it turns text into ids and ids into text; target and drafter run on the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from refsim.api.inputs import as_file, asked_variant
from refsim.api.refuse_nan import origin
from refsim.api.validate import check_weights_fit
from refsim.base.access import refuse_unreadable
from refsim.base.errors import NotFiniteError, UserError, first_line
from refsim.base.options import RunOptions, as_options
from refsim.base.schema import Count, check, read_object, short
from refsim.files.checkpoint import Checkpoint, Weights
from refsim.files.folder import ModelFolder
from refsim.models.registry import look_at
from refsim.pipelines.request import check_text, is_whole, load_tokenizer
from refsim.pipelines.speculative import CACHES, Decoded, Step, build
from refsim.pipelines.transformer import digest
from refsim.runtime import launch
from refsim.runtime.device import Device


@dataclass(frozen=True)
class TextRequest:
    """What is asked of a target.

    Attributes:
        draft: folder of the target's DFlash drafter; None for the target alone.
        cache: what the drafter's cache keeps, one of ``CACHES``.
        max_new_tokens: tokens to give per prompt, at most.
        stop: ids that end a text.
        contexts: give what the drafter reads of every prompt as well.
    """

    draft: str | Path | ModelFolder | None = None
    cache: str = "context"
    max_new_tokens: int = 128
    stop: Sequence[int] = ()
    contexts: bool = False


@dataclass
class TextResult:
    """What a run gave.

    Attributes:
        texts: one per prompt.
        seconds: ``load`` and ``decode``, as rank 0 saw it.
        collectives: those rank 0 took part in, in order: name, mesh axis, bytes it brought, group.
        replicas_equal: every rank ended with these tokens.
        block: tokens the target verifies in one pass; 1 without a drafter.
        pages: of the target's cache that the texts took, of each layer; 0 where it has none.
        same_as_target: the tokens are those of the target alone; None unless asked for.
        accepted_as_target: every round went on by the longest prefix of its proposals that the target alone says, and
            one token; None unless asked for, and without a drafter.
        contexts: the target's hidden states that the drafter read of all prompts, (tokens, layers x D); None unless
            asked for.
    """

    texts: list[Decoded]
    seconds: dict[str, float]
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    wall_s: float
    block: int = 1
    pages: int = 0
    collectives: list[dict[str, Any]] = field(default_factory=list)
    same_as_target: bool | None = None
    accepted_as_target: bool | None = None
    contexts: torch.Tensor | None = None

    @property
    def mean_accepted(self) -> float:
        """Return the tokens per pass of the target, over all prompts."""
        steps = [step.accepted for text in self.texts for step in text.steps]
        return sum(steps) / max(len(steps), 1)

    @property
    def margin(self) -> float:
        """Return the least difference of two logits that decided a token."""
        return min(min([text.prefill_margin, *(step.margin for step in text.steps)]) for text in self.texts)


def generate_text(
    target: str | Path | ModelFolder,
    prompts: Sequence[Sequence[int]],
    request: TextRequest,
    *,
    options: RunOptions | None = None,
    check: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> TextResult | None:
    """Decode greedily after each prompt; None on torchrun's ranks above 0.

    Args:
        target: transformers folder of a Qwen3 mixture of experts, or what :func:`refsim.models.registry.look_at` found
            there; so may be the drafter's.
        prompts: ids of each.
        request: the drafter and its cache, how many tokens, and where a text ends.
        options: where and how it runs; tensor parallelism only.
        check: decode once more with the target alone and compare the tokens, and how many of them every round gave.
        progress: called now and then with the number of steps that are done and of all of them.
        settings: instead of ``options``: ``mesh``, ``parallel`` and any other keyword of
            :meth:`refsim.base.options.RunOptions.of`.

    Raises:
        UserError: anything that does not fit, found before a rank is started.
        NotFiniteError: logits that decided a token were not finite numbers.
        RankFailure: a rank died, raised or hung.
    """
    variant = asked_variant(options, settings)
    target = look_at(target, variant, "causal_lm")
    draft = None if request.draft is None else look_at(request.draft, variant, "drafter", part=True)
    options = as_options(options, settings)
    _check_request(prompts, request, options, check=check)
    weights = Weights(Checkpoint(target), options.storage, meta=True)
    drafter = None if draft is None else Weights(Checkpoint(draft), options.storage, meta=True)
    model, _ = build(Device(options), weights, drafter)
    check_weights_fit("decoding", options, weights, *([drafter] if drafter else []))
    vocab_size = model.config.vocab_size
    if unknown := [token for prompt in prompts for token in prompt if not 0 <= token < vocab_size]:
        raise UserError(f"the prompt holds the id {unknown[0]}, but the target knows 0 to {vocab_size - 1}.")
    with as_file(_packed(prompts)) as inputs:
        arguments = {
            "target": str(target.path),
            "draft": None if draft is None else str(draft.path),
            "inputs": str(inputs),
            "cache": request.cache,
            "max_new_tokens": request.max_new_tokens,
            "stop": list(request.stop),
            "contexts": request.contexts and draft is not None,
        }
        program = "refsim.pipelines.speculative:program"
        result = launch.execute(program, options, arguments, progress=progress)
        _check_margins(result, options, drafted=draft is not None)
        alone = None
        if check:
            plain = options.but(fault="", delay=None)
            alone = launch.execute(program, plain, arguments | {"draft": None, "contexts": False}, progress=progress)
            _check_margins(alone, plain, drafted=False)
    return None if result is None else _result(result, alone)


def _result(result: launch.Result, alone: launch.Result | None) -> TextResult:
    texts = _texts(result)
    by_itself = None if alone is None else [text.tokens for text in _texts(alone)]
    drafted = result.value["block"] > 1
    return TextResult(
        texts=texts,
        seconds=result.value["seconds"],
        replicas_equal={value["digest"] for value in result.values} == {digest(result.tensors["tokens"])},
        hazards=[str(hazard) for hazard in result.hazards],
        bytes_by_collective=result.bytes_by_collective,
        wall_s=result.wall_s,
        block=result.value["block"],
        pages=result.value["pages"],
        collectives=result.collectives,
        same_as_target=None if by_itself is None else [text.tokens for text in texts] == by_itself,
        accepted_as_target=None
        if by_itself is None or not drafted
        else all(map(accepts_what_it_may, texts, by_itself)),
        contexts=result.tensors.get("contexts"),
    )


def accepts_what_it_may(text: Decoded, tokens: Sequence[int]) -> bool:
    """Return whether every round gave the longest prefix of its proposals that stands in ``tokens``, and one more.

    Rounds say nothing from the first on that reaches the end of ``tokens``, which may have been cut.
    """
    start = 1
    for step in text.steps:
        pairs = zip(step.proposed, tokens[start:], strict=False)
        matched = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if start + matched >= len(tokens):
            break
        if step.accepted != matched + 1:
            return False
        start += step.accepted
    return True


def _check_margins(result: launch.Result | None, options: RunOptions, *, drafted: bool) -> None:
    """Raise ``NotFiniteError`` if a token was picked among logits that are not finite: ids cannot show it.

    As for tensors (:func:`refsim.api.refuse_nan.check_answer`) not where a mistake was planted.
    """
    if result is None or options.fault:
        return
    for number, text in enumerate(_texts(result)):
        first = [text.prefill_margin] if drafted else []  # without a drafter it is a step like any other
        for index, margin in enumerate([*first, *(step.margin for step in text.steps)]):
            if not isfinite(margin):
                raise NotFiniteError(
                    f"the token(s) of pass {index} after prompt {number} were picked among logits that are not finite; "
                    f"{origin(result)}; look at the weights there, or run in fp32."
                )


def _packed(prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return all ids one after the other, and how many belong to each prompt."""
    ids = torch.tensor([token for prompt in prompts for token in prompt])
    return {"ids": ids, "lengths": torch.tensor([len(prompt) for prompt in prompts])}


def _check_request(prompts: Sequence[Sequence[int]], request: TextRequest, options: RunOptions, *, check: bool) -> None:
    devices = options.mesh.num_devices
    if options.lora:
        raise UserError("decoding takes no LoRA; leave out --lora.")
    if options.parallel.tp != devices:
        raise UserError(f"decoding is tensor-parallel; --parallel tp{devices} would work, not {options.parallel}.")
    if request.cache not in CACHES:
        raise UserError(f"--cache '{request.cache}' does not exist; choose one of {', '.join(CACHES)}.")
    if not is_whole(request.max_new_tokens) or request.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens is 1 or more, not {short(request.max_new_tokens)}.")
    if not prompts or not all(isinstance(prompt, Sequence) and len(prompt) for prompt in prompts):
        raise UserError("every prompt needs at least one token.")
    if wrong := [token for tokens in (*prompts, request.stop) for token in tokens if not is_whole(token)]:
        raise UserError(f"a prompt and the tokens to stop at are made of ids, whole numbers, not {short(wrong[0])}.")
    if check and request.draft is None:
        raise UserError("--check compares with the target alone; give --draft DRAFT_DIR, or leave it out.")


class Tokenizer:
    """The tokenizer of a target's folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        self.stop = _stop_ids(folder, self._tokenizer)

    def ids(self, prompt: str, *, chat: bool) -> list[int]:
        """Return the ids of a text; with ``chat``, of a user's message in the folder's chat template.

        The template is a stranger's program. transformers runs it in jinja's sandbox, which is what refuses it the rest
        of Python; ``UserError`` if it asks for that, or fails.
        """
        check_text(prompt, "--prompt")
        if not chat:
            return list(self._tokenizer(prompt).input_ids)
        if self._tokenizer.chat_template is None:
            raise UserError("the target's tokenizer has no chat template; leave out --chat.")
        message = [{"role": "user", "content": prompt}]
        try:
            text = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # whatever a template does wrong: jinja passes on what its expressions raise
            raise UserError(f"the target's chat template cannot be used ({first_line(e)}); leave out --chat.") from e
        return list(self._tokenizer(text).input_ids)

    def text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _stop_ids(folder: Path, tokenizer: Any) -> list[int]:
    """Return ``eos_token_id`` of generation_config.json and the tokenizer's own."""
    ids = {tokenizer.eos_token_id} - {None}
    path = folder / "generation_config.json"
    refuse_unreadable(path, "the target's file")
    if path.is_file():
        kind = Count | tuple[Count, ...] | None
        value = check(kind, read_object(path).get("eos_token_id"), "eos_token_id", f"'{path}'")
        ids |= set(value if isinstance(value, tuple) else () if value is None else (value,))
    return sorted(ids)


def _texts(result: launch.Result) -> list[Decoded]:
    return [
        Decoded(text["tokens"], [Step(**step) for step in text["steps"]], text["prefill_margin"])
        for text in result.value["texts"]
    ]
