"""What a user asks a pipeline for, and the index of its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsim.base.access import refuse_unreadable
from refsim.base.errors import UserError, first_line
from refsim.base.schema import Flag, Fraction, Real, Size, Text, check, is_a, read_object, short

_PART = tuple[Text | None, Text | None] | None
"""Library and class of a part; null for one that the pipeline does without."""
_PARTS = (
    "scheduler",
    "tokenizer",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "transformer",
    "transformer_2",
    "vae",
)
_INDEX = {"_class_name": Text | None, "boundary_ratio": Fraction | None, "expand_timesteps": Flag | None}


@dataclass(frozen=True)
class PipelineRequest:
    """Prompt, size and schedule; sizes of None are the pipeline's own.

    Attributes:
        guidance: scale of classifier-free guidance; 1 or less is none.
        guidance_2: of the second expert, where there is one; None for the same.
        height, width: pixels.
        frames: of a video.
        seed: of the initial noise, drawn in fp32 on the host as diffusers draws it.
        max_text: tokens the prompt is padded or cut to.
        images: paths of the pictures that it starts from, of a pipeline that edits.
    """

    prompt: str
    negative_prompt: str = ""
    steps: int = field(kw_only=True)
    guidance: float = 5.0
    guidance_2: float | None = None
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    seed: int = 0
    max_text: int | None = None
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", tuple(map(str, self.images)))
        for name in ("prompt", "negative_prompt"):
            check_text(getattr(self, name), f"--{name.replace('_', '-')}")
        for name in ("steps", "height", "width", "frames", "max_text"):
            value = getattr(self, name)
            if not is_a(Size if name == "steps" else Size | None, value):
                raise UserError(f"--{name.replace('_', '-')} is 1 or more, not {short(value)}.")
        for name in ("guidance", "guidance_2"):
            value = getattr(self, name)
            if not is_a(Real if name == "guidance" else Real | None, value):
                raise UserError(f"--{name.replace('_', '-')} is a finite number, not {short(value)}.")
        if not (is_whole(self.seed) and -(2**63) <= self.seed < 2**64):
            raise UserError(f"--seed is a whole number of at most 64 bits, not {short(self.seed)}.")

    @property
    def guided(self) -> bool:
        return self.guidance > 1.0

    @property
    def guidance_scales(self) -> tuple[float, float]:
        """Return the scales of the first and of the second expert."""
        return self.guidance, self.guidance if self.guidance_2 is None else self.guidance_2

    def size(self, height: int, width: int, multiples: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) in pixels, those given where none was asked for."""
        height = self.height or height
        width = self.width or width
        if height % multiples[0] or width % multiples[1]:
            pixels = f"{multiples[0]}x{multiples[1]}"
            raise UserError(f"a picture of {height}x{width} does not divide into {pixels} pixels; choose multiples.")
        return height, width

    def latent_frames(self, frames: int, ratio: int) -> int:
        """Return the frames of the latents, of ``frames`` where no number was asked for."""
        frames = self.frames or frames
        if (frames - 1) % ratio:
            near = max(frames // ratio, 1) * ratio + 1
            raise UserError(f"--frames is one more than a multiple of {ratio}, such as {near}, not {frames}.")
        return (frames - 1) // ratio + 1


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_text(text: Any, option: str) -> None:
    """Raise ``UserError`` for what is no text, or holds halves of characters (what the shell could not decode)."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError) as e:
        raise UserError(f"{option} must be a text in UTF-8, not {short(text)}.") from e


def is_pipeline(folder: Path) -> bool:
    """Whether a folder holds a whole pipeline; a name that no folder can have does not.

    Raises:
        UserError: it cannot be read, so that nobody knows.
    """
    for path in (folder, folder / "model_index.json"):
        refuse_unreadable(path, "checkpoint")
    return (folder / "model_index.json").is_file()


def read_index(folder: Path) -> dict[str, Any]:
    """Read ``model_index.json``; ``UserError`` if it is not one."""
    path = folder / "model_index.json"
    index = read_object(path)
    for name, kind in _INDEX.items():
        check(kind, index.get(name), name, f"'{path}'")
    for name, part in index.items():
        if not name.startswith("_") and (isinstance(part, list) or name in _PARTS):
            check(_PART, part, name, f"'{path}'")
    return index


def load_tokenizer(folder: Path) -> Any:
    """Load transformers' tokenizer of a folder, from the folder alone and without running code that lies in it.

    Raises:
        UserError: there is none that transformers can read, or it needs code of the folder.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as e:
        raise UserError("a pipeline needs transformers and diffusers; install refsim[oracle].") from e
    refuse_unreadable(folder, "the pipeline's tokenizer")
    if not folder.is_dir():
        raise UserError(f"the pipeline lacks its tokenizer folder '{folder}'.")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # transformers passes on whatever odd values lead to, tokenizers a panic of its own
        if "trust_remote_code" in str(e):
            raise UserError(
                f"the tokenizer in '{folder}' needs code that lies beside it, which is never run; "
                "give a folder whose tokenizer transformers has itself."
            ) from e
        raise UserError(f"'{folder}' holds no tokenizer that transformers can read ({first_line(e)}).") from e


def tokenize(folder: Path, texts: list[str], **how: Any) -> Any:
    """Return what transformers' tokenizer of a folder makes of ``texts``; ``UserError`` if its files are no good.

    Args:
        how: arguments of the tokenizer's call.
    """
    tokenizer = load_tokenizer(folder)
    try:
        return tokenizer(texts, truncation=True, padding="max_length", return_tensors="pt", **how)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # see load_tokenizer
        raise UserError(f"the tokenizer in '{folder}' cannot be used ({first_line(e)}).") from e
