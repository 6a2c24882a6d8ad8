"""How far latents drift over denoising steps from the exact loop in fp32, as a device rounds and in bf16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from parity.cases.pipelines import PIPELINES
from parity.cases.store import CheckpointStore
from parity.rounding.errors import Error
from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.files.keys import Document

BF16 = "bf16"
"""Not a spec: torch's arithmetic on bf16 tensors."""
USUAL = (BF16, "fast", "fast:weights=bfloat8_b", "fast:weights=bfloat8_b,fidelity=LoFi")


@dataclass(frozen=True)
class Step:
    """Latents after a denoising step.

    Attributes:
        errors: By numerics, from the latents of the exact run after the same step.
    """

    step: int
    errors: dict[str, Error]


@dataclass
class Drift(Document):
    """Latents of a pipeline, step by step.

    Attributes:
        rounded_once: Ops without a numeric rule, which are rounded once, and how often in the runs that round.
    """

    pipeline: str
    layout: str
    seed: int
    steps: list[Step]
    rounded_once: dict[str, int]


def drift(
    name: str,
    *,
    mesh: str = "n150",
    parallel: str = "sp1",
    steps: int | None = None,
    numerics: tuple[str, ...] = USUAL,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Drift:
    """Run a pipeline of parity exactly, and once for each of ``numerics``.

    Args:
        name: in :data:`parity.cases.pipelines.PIPELINES`.
        mesh, parallel: the layout.
        steps: denoising steps, by default the pipeline's two or three.
        numerics: specs of ``--device-numerics``, or ``bf16`` for torch's arithmetic.
        seed: of the weights.
        progress: is told which run begins.

    Raises:
        UserError: no such pipeline.
    """
    if name not in PIPELINES:
        raise UserError(f"pipeline '{name}' does not exist; choose one of {', '.join(PIPELINES)}.")
    request = PIPELINES[name].request
    if steps is not None:
        request = replace(request, steps=steps)

    rounded_once: Counter[str] = Counter()

    def run(dtype: str, spec: str = "") -> Tensor:
        progress(spec or dtype)
        options = RunOptions.of(mesh=mesh, parallel=parallel, dtype=dtype, device_numerics=spec)
        generated = generate_images(folder, request, options=options)
        assert generated is not None
        rounded_once.update(generated.rounded_once)
        return generated.steps

    with CheckpointStore() as store:
        folder = store.folder(name, seed)
        exact = run("fp32")
        others = {spec: run("bf16", "" if spec == BF16 else spec) for spec in numerics}
    return Drift(name, f"{mesh} {parallel}", seed, by_step(exact, others), dict(rounded_once))


def by_step(exact: Tensor, others: Mapping[str, Tensor]) -> list[Step]:
    """Return the error of the latents (steps, ...) after every step."""
    errors = [{spec: Error.of([x[index]], [exact[index]]) for spec, x in others.items()} for index in range(len(exact))]
    return [Step(index + 1, each) for index, each in enumerate(errors)]
