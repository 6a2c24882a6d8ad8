"""What ``refsim run`` is asked for of a pipeline; apart, because reading it loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from refsim.base.errors import UserError

_OF_A_PIPELINE = ("negative_prompt", "steps", "guidance_2", "height", "width", "frames", "max_text", "seed", "check")
"""Options of ``refsim run`` that mean nothing to a single model."""


@dataclass(frozen=True)
class Wanted:
    """A folder of pictures, prompts one by one, which checks, a summary in JSON."""

    out: Path
    interactive: bool
    check: bool
    against: Any  # parity.cases.Layout, or None
    as_json: bool


def refuse_of_a_pipeline(context: typer.Context, model: Path) -> None:
    """Raise ``UserError`` for an option that was given and that a single model has no use for."""
    for name in _OF_A_PIPELINE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--" + name.replace("_", "-")
            instead = "judge it with --check-against diffusers" if name == "check" else "leave it out"
            raise UserError(f"{flag} is an option of pipelines, and '{model}' is one model; {instead}.")
