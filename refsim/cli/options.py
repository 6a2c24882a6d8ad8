"""Options that several commands have: name, help, panel in ``--help``, and what a shell completes.

A command takes one as the type of a parameter of the same name (``mesh: Mesh``). Options of one command alone stand in
its own signature, under one of the panels here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from refsim.base.config import ATTENTIONS
from refsim.base.errors import UserError
from refsim.base.mesh import MESHES, meshes
from refsim.base.options import DTYPES, NUMERICS, RING_ORDERS, WEIGHTS_DTYPES, RunOptions

scheme = partial(typer.Option, rich_help_panel="Mesh and scheme")
size = partial(typer.Option, rich_help_panel="Size")
precision = partial(typer.Option, rich_help_panel="Precision")
weights = partial(typer.Option, rich_help_panel="Weights and inputs")
check = partial(typer.Option, rich_help_panel="Checks")
output = partial(typer.Option, rich_help_panel="Output")


def complete(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what a shell calls for an option that takes one of some values."""

    def offer(incomplete: str) -> list[str]:
        return [value for value in values() if value.startswith(incomplete)]

    return offer


def among(kind: Any) -> Callable[[str], list[str]]:
    """Do what :func:`complete` does for the values of a ``Literal`` type."""
    return complete(lambda: get_args(kind))


def _published() -> Iterable[str]:
    from refsim.models.registry import published

    return published()


published_model = partial(typer.Argument, autocompletion=complete(_published))
PublishedModel = Annotated[str, published_model(help="A published model's name, or a folder saved by diffusers.")]

Mesh = Annotated[
    str,
    scheme(
        help=f"One of {', '.join(MESHES)}, or a package's own (see `refsim meshes`), or a file such as my_mesh.json.",
        autocompletion=complete(lambda: [mesh.name for mesh in meshes().all]),
    ),
]
Parallel = Annotated[str, scheme(help="Factors, e.g. cfg2_sp2_tp2 or sp2@0_tp4@1.")]
Attention = Annotated[str, scheme(help="ring, ulysses or usp.", autocompletion=complete(lambda: ATTENTIONS))]
Ring = Annotated[int | None, scheme("--ring", "--ring-degree", help="Ring factor of usp.")]
Ulysses = Annotated[int | None, scheme("--ulysses", "--ulysses-degree", help="Ulysses factor of usp.")]
RingOrder = Annotated[str, scheme(help="Overlap: gather, step or block.", autocompletion=complete(lambda: RING_ORDERS))]
Links = Annotated[int | None, scheme(help="At most so many links per hop.", min=1)]

Size = Annotated[
    str | None,
    size(
        help="A published size (1024, 480p, 720p ...), or pixels: HEIGHTxWIDTH, FRAMESxHEIGHTxWIDTH.",
        show_default="the largest",
    ),
]
Height = Annotated[int | None, size(help="Pixels, instead of --size.", min=1)]
Width = Annotated[int | None, size(help="Pixels, instead of --size.", min=1)]
Frames = Annotated[int | None, size(help="Of a video, with --height.", min=1)]

Dtype = Annotated[str, precision(help="Storage: fp32 or bf16.", autocompletion=complete(lambda: DTYPES))]
WeightsDtype = Annotated[
    str,
    precision(
        help="Matrices of linear layers: bf16, or bfp8_b and bfp4_b (not on cpu).",
        autocompletion=complete(lambda: WEIGHTS_DTYPES),
    ),
]
Numerics = Annotated[
    str,
    precision(
        help="Round the mock's values as kernels do: exact (bit for bit), fast (as much, in less time) or off.",
        autocompletion=complete(lambda: NUMERICS),
    ),
]
DeviceNumerics = Annotated[
    str,
    precision(
        help="Compute as device kernels do (cpu): fast or exact, or as in fast:weights=bfloat8_b,fidelity=LoFi.",
        show_default="off",
    ),
]

Variant = Annotated[
    str | None,
    weights(help="Which of several sets of weights, e.g. fp16 for diffusion_pytorch_model.fp16.safetensors."),
]
Seed = Annotated[int, weights(help="Of weights, inputs or noise.")]
Arch = Annotated[str | None, typer.Option(help="Of files that name no chip: wormhole_b0 or blackhole.")]
Calibration = Annotated[Path | None, typer.Option(help="What `refsim calibrate` wrote, of your own chips.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Longest wait for a peer, in seconds.")]

Trace = Annotated[
    Path | None,
    output(help="What every rank did. FILE.jsonl: one JSON object a line; else a trace for ui.perfetto.dev."),
]
Csv = Annotated[Path | None, output(help="Write the rows here, too, a line each.")]
AsJson = Annotated[bool, output("--json", help="Print JSON and nothing else on stdout.")]


def size_of(size: str | None, height: int | None, width: int | None, frames: int | None) -> str | None:
    """Return ``--size``, or what ``--height``, ``--width`` and ``--frames`` say instead of it."""
    if height is None and width is None and frames is None:
        return size
    if size is not None or height is None or width is None:
        raise UserError("a size is --size, or --height and --width (and --frames of a video).")
    return "x".join(str(n) for n in (frames, height, width) if n is not None)


def values_for(kind: type, context: typer.Context) -> dict[str, Any]:
    """Return the values of a command's options that are named as a dataclass's fields are, without those left out."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in context.params.items() if name in names and value is not None}


def run_options(context: typer.Context, **more: Any) -> RunOptions:
    """Return the options of a run, of a command's options of the same names.

    Args:
        more: fields of :class:`refsim.base.options.RunOptions` that the command has no options of, or others than its.
    """
    factors = {name: context.params[name] for name in ("attention", "ring", "ulysses") if name in context.params}
    return RunOptions.of(**values_for(RunOptions, context) | factors | more)


def library_layout(context: typer.Context, options: RunOptions, *, decoding: bool = False) -> Any:
    """Return how the library that ``--check-against`` names judges a run (``parity.cases.Layout``); None without it."""
    params = context.params
    if params["check_against"] is None:
        return None
    from parity.user.user_checkpoint import library_layout

    factors = {name: params[name] for name in ("attention", "ring", "ulysses") if name in params}
    return library_layout(
        params["check_against"], options, params["mesh"], params["parallel"], decoding=decoding, **factors
    )
