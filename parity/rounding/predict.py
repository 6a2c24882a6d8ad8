"""What rounding each choice costs: alone against all exact, all of it together, by layer and block, with its time.

exact run in fp32 (the judge) --+-- one kind of op as a device has it, the rest in fp32   --> what harms most
                                +-- every layer of a run as a device has it               --> where it grows
                                +-- all ops, for each choice of weights, fidelity, dest   --> PCC beside seconds
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from parity.rounding.errors import Error
from parity.rounding.subjects import Layers, Subject, outputs
from refsim.base.options import RunOptions
from refsim.files.keys import Document
from refsim.runtime.launch import Result

_ALONE = {
    "weights in bfloat8_b": "ops=weights,weights=bfloat8_b",
    "weights in bfloat4_b": "ops=weights,weights=bfloat4_b",
    "linears, LoFi, 32 bits": "ops=linear,fidelity=LoFi",
    "linears, HiFi2, 32 bits": "ops=linear",
    "linears, HiFi4, 32 bits": "ops=linear,fidelity=HiFi4",
    "linears, HiFi2, 16 bits, K block 64": "ops=linear,dest=bf16,k_block=64",
    "linears, HiFi2, 16 bits, K block 256": "ops=linear,dest=bf16",
    "convolutions, HiFi2, 32 bits": "ops=conv",
    "attention, streaming": "ops=sdpa",
    "attention, legacy, HiFi4": "ops=sdpa,sdpa_dest=fp32,sdpa_fidelity=HiFi4",
    "norms, 32 bits": "ops=norm",
    "norms, 16 bits": "ops=norm,norm_dest=bf16",
    "functions": "ops=activation",
    "functions, approximate": "ops=activation,approximate=true",
    "rotary embedding": "ops=rope",
    "element-wise": "ops=eltwise",
    "collectives": "ops=ccl",
}
"""One kind of op each, by what a table calls it; what goes in and out of it is bf16, everything else fp32."""
BF16 = "bf16 tensors, exact arithmetic"
_BLOCK = re.compile(r"\w*blocks\.\d+\+\d")
LIMITS = (
    "refsim time prices weights and fidelity; the destination's width and the kernel of attention are taken as free.",
    "An activation that a device fuses into a matmul is rounded once more here, before it.",
)
"""What the prediction does not know, said in every report."""

Seconds = Callable[[str, str], float]
"""Weights' format and fidelity --> predicted seconds."""


@dataclass(frozen=True)
class Row:
    """One choice.

    Attributes:
        name: What a table calls it.
        numerics: The spec that `refsim run --device-numerics` takes.
        seconds: What `refsim time` predicts for weights and fidelity; null where it has no such model.
    """

    name: str
    numerics: str
    error: Error
    seconds: float | None = None


@dataclass(frozen=True)
class LayerError:
    """What a layer or a block gave, all ranks together, in the run with `numerics`."""

    name: str
    error: Error


@dataclass
class Prediction(Document):
    """What rounding does to a model.

    Attributes:
        timed: What the seconds are of: the denoising loop of this model.
        ran: What was run in the model's place, and on how much.
        alone: One kind of op rounded, all else exact, the most harmful first.
        choices: All ops rounded, by weights, fidelity and destination.
        numerics: Of the run whose blocks and layers are listed.
        recommended: The cheapest choice within `pcc`, the most exact of equally cheap ones; null for none.
        rounded_once: Ops without a numeric rule, and how often.
        limits: What is not modelled.
    """

    model: str
    layout: str
    seed: int
    pcc: float
    timed: str | None
    alone: list[Row]
    choices: list[Row]
    numerics: str
    blocks: list[LayerError]
    layers: list[LayerError]
    recommended: Row | None
    rounded_once: dict[str, int]
    limits: tuple[str, ...] = LIMITS
    front: list[str] = field(default_factory=list)
    ran: str = ""


def predict(
    subject: Subject,
    *,
    pcc: float,
    seed: int = 0,
    level: str = "fast",
    seconds: Seconds | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Prediction:
    """Predict what a device's rounding does to a model.

    Args:
        pcc: that a choice has to reach.
        seed: of weights and inputs.
        level: ``fast`` or ``exact``.
        seconds: what a choice takes.
        progress: is told which run begins.
    """
    progress("exact")
    exact, exact_layers = subject.layers(seed)
    alone = []
    for name, options in _ALONE.items():
        progress(name)
        spec = f"{level}:{options},activations=bfloat16"
        alone.append(Row(name, spec, _error(subject.run(seed, spec, dtype="fp32"), exact)))
    alone.append(Row(BF16, "", _error(subject.run(seed, dtype="bf16"), exact)))
    progress("every layer")
    usual, usual_layers = subject.layers(seed, level)
    choices = []
    for weights, fidelity, dest in _combinations():
        name = f"{weights}, {fidelity}, {'32' if dest == 'fp32' else '16'} bits"
        progress(name)
        spec = f"{level}:weights={weights},fidelity={fidelity},dest={dest},sdpa_fidelity={fidelity}"
        took = seconds(weights.removesuffix("_b").replace("bfloat", "bfp"), fidelity) if seconds else None
        choices.append(Row(name, spec, _error(subject.run(seed, spec), exact), took))
    by_layer = compared(usual_layers, exact_layers)
    return Prediction(
        model=subject.name,
        layout=subject.layout,
        seed=seed,
        pcc=pcc,
        timed=subject.timed if seconds else None,
        alone=sorted((row for row in alone if row.error.one_minus_pcc > 0), key=lambda row: -row.error.one_minus_pcc),
        choices=choices,
        numerics=level,
        blocks=[each for each in by_layer if _BLOCK.fullmatch(each.name)],
        layers=[each for each in by_layer if not _BLOCK.fullmatch(each.name)],
        recommended=recommend(choices, pcc),
        rounded_once=usual.rounded_once,
        front=[row.name for row in pareto(choices)],
        ran=subject.ran,
    )


def _combinations() -> list[tuple[str, str, str]]:
    """Return weights, fidelity and destination of what is predicted whole."""
    wide = itertools.product(("bfloat16", "bfloat8_b", "bfloat4_b"), ("LoFi", "HiFi2", "HiFi4"), ("fp32",))
    return [*wide, ("bfloat16", "HiFi2", "bf16"), ("bfloat8_b", "HiFi2", "bf16")]


def _error(result: Result, exact: Result) -> Error:
    ours = outputs(result)
    expected = outputs(exact)
    return Error.of([ours[name] for name in sorted(expected)], [expected[name] for name in sorted(expected)])


def compared(layers: Layers, exact: Layers) -> list[LayerError]:
    """Return the error of every layer, in the order they run; terms of sums and what a layer took are left out."""
    names = [name for name in exact if not name.endswith((".in", ".term")) and name in layers]
    return [LayerError(name, Error.of(layers[name], exact[name])) for name in names]


def recommend(choices: list[Row], pcc: float) -> Row | None:
    """Return the cheapest choice that reaches a PCC; of equally cheap ones, or without times, the most exact one."""
    enough = [row for row in choices if row.error.pcc >= pcc]
    return min(enough, key=lambda row: (row.seconds or 0.0, row.error.one_minus_pcc), default=None)


def pareto(choices: list[Row]) -> list[Row]:
    """Return the choices that no other one beats in seconds and in PCC."""

    def beats(a: Row, b: Row) -> bool:
        x = (a.seconds or 0.0, a.error.one_minus_pcc)
        y = (b.seconds or 0.0, b.error.one_minus_pcc)
        return x != y and all(one <= other for one, other in zip(x, y, strict=True))

    return [row for row in choices if not any(beats(other, row) for other in choices)]


def seconds_of(model: str, options: RunOptions, size: str | None) -> Seconds:
    """Return what prices a published model's denoising loop, or a folder's, as ``refsim time`` does.

    Raises:
        UserError: no such model or size.
    """
    from refsim.models.figures import Execution
    from refsim.models.registry import find, latent
    from refsim.timing.predict.estimate import estimate
    from refsim.timing.read.reading import read_published

    name, published = find(model)
    called, shape = latent(published, size)
    reading = read_published(published, shape, options, batch=options.parallel.cfg)

    def seconds(weights: str, fidelity: str) -> float:
        execution = Execution(weights={"bfp16": "bf16"}.get(weights, weights), fidelity=fidelity)
        run = {"reading": reading, "execution": execution, "size": called}
        return estimate(name, options.mesh, options.parallel, **run).seconds

    return seconds
