"""``refsim generate``: text from a decoder, with a drafter's help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsim.cli import options as opt
from refsim.cli.answer import exit_code, say
from refsim.files import output
from refsim.files.keys import Document, Key, Measured

if TYPE_CHECKING:
    from refsim.api.text import TextResult
    from refsim.base.options import RunOptions


@dataclass
class Text(Document):
    """What a decoder went on with.

    Attributes:
        steps: Rounds of drafting and verifying: what was proposed and accepted, margins, rows of the caches, seconds.
    """

    mesh: str
    parallel: str
    dtype: str
    cache: str | None
    block: int | None
    prompt_tokens: int
    tokens: list[int]
    text: str
    steps: Annotated[list[Any], Key(form=list[dict[str, Any]])]
    mean_accepted: float | None
    smallest_margin: Measured
    same_as_target: bool | None
    accepted_as_target: bool | None
    check_against: Annotated[Any, Key(form="parity.user.user_text:TextCheck | None")]
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    seconds: dict[str, float]
    wall_s: float


Target = Annotated[Path, typer.Argument(help="transformers folder of a Qwen3 mixture of experts.")]
Factors = Annotated[str, opt.scheme(help="tp of all devices, such as tp4.")]
Draft = Annotated[Path | None, opt.weights(help="Folder of its DFlash drafter; none: the target alone.")]
Cache = Annotated[
    str, typer.Option(help="What the drafter's cache keeps: context, noise or none; paged: pages for the target's.")
]
CheckAgainst = Annotated[
    str | None, opt.check(help="transformers: judge the text by its own generate, which gives it once more.")
]


def generate(
    context: typer.Context,
    target_dir: Target,
    prompt: Annotated[str, opt.weights(help="The text to go on from.")],
    mesh: opt.Mesh = "n150",
    parallel: Factors = "sp1",
    dtype: opt.Dtype = "fp32",
    draft: Draft = None,
    variant: opt.Variant = None,
    chat: Annotated[bool, opt.weights("--chat", help="Put the prompt in the folder's chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to give.")] = 128,
    cache: Cache = "context",
    timeout_s: opt.Timeout = 300.0,
    check: Annotated[bool, opt.check("--check", help="Decode with the target alone too, and compare.")] = False,
    check_against: CheckAgainst = None,
    as_json: opt.AsJson = False,
) -> None:
    """Generate text with a decoder on a mesh, greedily, speculatively with a drafter; every device is a process."""
    from refsim.cli.progress import StepProgress
    from refsim.models.registry import look_at
    from refsim.runtime import launch

    target = look_at(target_dir, variant, "causal_lm")
    drafter = None if draft is None else look_at(draft, variant, "drafter", part=True)
    options = opt.run_options(context)
    against = opt.library_layout(context, options, decoding=True)
    launch.warm_up()
    from refsim.api.text import TextRequest, Tokenizer, generate_text

    tokenizer = Tokenizer(target_dir)
    ids = tokenizer.ids(prompt, chat=chat)
    request = TextRequest(drafter, cache, max_new_tokens, tokenizer.stop, contexts=against is not None)
    title = f"{target_dir.name} on {options.mesh}, {parallel}"
    then = "check with the target alone" if check else ""
    with StepProgress(title, then=then, quiet=as_json) as progress:
        result = generate_text(target, [ids], request, options=options, check=check, progress=progress)
    if result is None:
        return
    judged = None
    if against is not None:
        from parity.user.user_text import judge_text

        judged = judge_text(target_dir, ids, result, request, against, options)
    summary = _summary(context, options, result, ids, tokenizer.text, judged)
    if as_json:
        typer.echo(output.document(summary))
    else:
        _print(summary, draft)
        if judged is not None:
            say(judged.text(tokenizer.text))
    as_target = result.same_as_target is not False and result.accepted_as_target is not False
    passed = result.replicas_equal and as_target and (judged is None or judged.passed)
    raise typer.Exit(exit_code(result.hazards, passed=passed))


def _summary(
    context: typer.Context,
    options: RunOptions,
    result: TextResult,
    ids: list[int],
    as_text: Callable[[list[int]], str],
    judged: Any,
) -> Text:
    """Return the result of one prompt, of tokens ``ids``; ``judged`` is what a library made of it, or None."""
    (text,) = result.texts
    drafted = context.params["draft"] is not None
    return Text(
        mesh=options.mesh.name,
        parallel=context.params["parallel"],
        dtype=options.dtype,
        cache=context.params["cache"] if drafted else None,
        block=result.block,
        prompt_tokens=len(ids),
        tokens=text.tokens,
        text=as_text(text.tokens),
        steps=text.steps,
        mean_accepted=round(result.mean_accepted, 3) if drafted else None,
        smallest_margin=result.margin,
        same_as_target=result.same_as_target,
        accepted_as_target=result.accepted_as_target,
        check_against=judged,
        replicas_equal=result.replicas_equal,
        hazards=result.hazards,
        bytes_by_collective=result.bytes_by_collective,
        seconds=result.seconds,
        wall_s=round(result.wall_s, 3),
    )


def _print(summary: Text, draft: Path | None) -> None:
    typer.echo(summary.text)
    total = 0
    for number, step in enumerate(summary.steps if draft else (), 1):
        total += step.accepted
        average = f"acc={step.accepted}/{summary.block} avg={total / number:.1f}"
        say(f"step {number}: {average} {step.seconds:.2f} s gen={total}")
    count = len(summary.tokens)
    seconds = summary.seconds["decode"]
    passes = len(summary.steps) + bool(draft)  # the first token is the prompt's own pass
    same = {None: "", True: ", the target alone says the same", False: ", THE TARGET ALONE SAYS SOMETHING ELSE"}
    if summary.accepted_as_target is False:
        say("A ROUND WENT ON BY MORE OR FEWER TOKENS than the prefix of its proposals that the target alone says")
    agree = "all ranks agree" if summary.replicas_equal else "RANKS DISAGREE"
    average = f", {summary.mean_accepted:.2f} tokens a step" if draft else ""
    say(
        f"{count} tokens in {passes} passes of the target{average}, {seconds:.2f} s "
        f"({agree}, smallest margin {summary.smallest_margin:.2g}{same[summary.same_as_target]})"
    )
