"""Which models of a pipeline can stay in a device's DRAM, and which must be loaded when their turn comes.

    phase      clip_l   clip_g   t5    transformer   decoder
    DRAM      |---- models that stay, all the time --------|     weights and persistent buffers
              | + the model of the phase, if it is swapped |
              | + what that phase takes and gives back     |     transient peak

Of all choices that fit in every phase, the one that loads the fewest bytes per picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Model:
    """A model of a pipeline, in bytes of one device: ``held`` while it is there, ``working`` beside it in its phase."""

    name: str
    resident: int
    working: int


@dataclass(frozen=True)
class Residency:
    """A choice.

    Attributes:
        stay, swapped: names of the models.
        peak, fullest: the most bytes that are held, and the phase in which they are.
        loaded: bytes of the swapped models, which are loaded once per picture.
    """

    stay: tuple[str, ...]
    swapped: tuple[str, ...]
    peak: int
    fullest: str
    loaded: int

    @property
    def sentence(self) -> str:
        if not self.swapped:
            return "all models stay"
        return f"swap {', '.join(self.swapped)} ({self.loaded / 2**20:.0f} MiB to load per picture)"


def peak_of(models: Sequence[Model], stay: Sequence[Model]) -> tuple[int, str]:
    """(bytes, phase) of the fullest phase if ``stay`` are there all the time."""
    resident = sum(model.resident for model in stay)
    phases = ((resident + model.working + (0 if model in stay else model.resident), model.name) for model in models)
    return max(phases, default=(0, ""))


def residency(models: Sequence[Model], total: int) -> Residency | None:
    """Find the choice that loads least, or None if some model does not fit by itself."""
    best: Residency | None = None
    for number in range(len(models), -1, -1):
        for stay in combinations(models, number):
            peak, fullest = peak_of(models, stay)
            swapped = [model for model in models if model not in stay]
            loaded = sum(model.resident for model in swapped)
            if peak <= total and (best is None or loaded < best.loaded):
                names = tuple(m.name for m in stay), tuple(m.name for m in swapped)
                best = Residency(*names, peak, fullest, loaded)
    return best
