"""What options choose from, for ``--help`` and for the shell's completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refsim.base.errors import UserError
from refsim.base.mesh import MESHES

MESH = f"One of {', '.join(MESHES)}, or a package's own; see `refsim meshes`."
"""Help of ``--mesh``."""
VARIANT = "Which of several sets of weights, e.g. fp16 for diffusion_pytorch_model.fp16.safetensors."
TRACE = "What every rank did. FILE.jsonl: one JSON object a line; else a trace for ui.perfetto.dev."
CSV = "Write the rows here, too, a line each."
SIZE = "A published size (1024, 480p, 720p ...), or pixels: HEIGHTxWIDTH, FRAMESxHEIGHTxWIDTH."
HEIGHT, WIDTH, FRAMES = "Pixels, instead of --size.", "Pixels, instead of --size.", "Of a video, with --height."


def size_of(size: str | None, height: int | None, width: int | None, frames: int | None) -> str | None:
    """Return ``--size``, or what ``--height``, ``--width`` and ``--frames`` say instead of it."""
    if height is None and width is None and frames is None:
        return size
    if size is not None or height is None or width is None:
        raise UserError("a size is --size, or --height and --width (and --frames of a video).")
    return "x".join(str(n) for n in (frames, height, width) if n is not None)


def complete(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell offers for an option that takes one of some values."""

    def offer(incomplete: str) -> list[str]:
        return [value for value in values() if value.startswith(incomplete)]

    return offer


def mesh_names() -> list[str]:
    """Names of all meshes, those that packages register included."""
    from refsim.base.mesh import meshes

    return [mesh.name for mesh in meshes().all]


MESHES_OFFERED = complete(mesh_names)
ATTENTION_OFFERED = complete(lambda: ("ring", "ulysses", "usp"))
DTYPE_OFFERED = complete(lambda: ("fp32", "bf16"))
RING_ORDER_OFFERED = complete(lambda: ("gather", "step", "block"))
