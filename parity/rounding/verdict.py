"""Is a measured PCC what rounding comes to, or is something else wrong, and where to look.

    seeds of weights and inputs --> log10(1 - PCC) predicted of each --> middle and spread --> bound
    measured 1 - PCC  <= bound   rounding explains it
                      >  bound   it does not; of a record with layers: the first layer in the order they run that is
                                 beyond its own bound, and the one that is farthest

The bound is that of :mod:`parity.measure.rounding`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from parity.measure.rounding import Distribution
from parity.rounding.errors import Error
from parity.rounding.predict import compared
from parity.rounding.subjects import Subject, outputs
from refsim.files.keys import Document


@dataclass(frozen=True)
class LayerFinding:
    """A layer of a record beside its prediction.

    Attributes:
        times: Measured 1 - PCC over the bound; above 1 rounding does not explain it.
    """

    name: str
    measured: float
    predicted: float
    bound: float
    times: float


@dataclass
class Verdict(Document):
    """What a measured PCC says.

    Attributes:
        measured: Measured 1 - PCC.
        predicted: The same of every seed.
        middle: Their geometric mean.
        bound: What rounding may come to.
        explained: Rounding explains it.
        look_first: The first layer that it does not explain.
        layers: Every layer of the record that the prediction has, in the order they run.
        unknown: Names of the record that it has not.
    """

    model: str
    layout: str
    numerics: str
    measured: float
    predicted: list[float]
    middle: float
    bound: float
    explained: bool
    look_first: str
    layers: list[LayerFinding] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Say it to people."""
        seeds = f"{len(self.predicted)} seed{'s' if len(self.predicted) > 1 else ''}"
        ratio = self.measured / self.middle
        lines = [
            f"{'rounding explains it' if self.explained else 'it does not, look here first: ' + self.look_first}",
            f"measured 1 - PCC {self.measured:.1e}; predicted {self.middle:.1e} "
            f"({min(self.predicted):.1e} to {max(self.predicted):.1e}, {seeds}), bound {self.bound:.1e} "
            f"[{self.model}, {self.layout}, {self.numerics}]",
        ]
        if self.explained and ratio < 0.1:
            lines.append("It is ten times more exact than predicted: the device may run another configuration.")
        beyond = [layer for layer in self.layers if layer.times > 1]
        lines += [
            f"  {layer.name}: {layer.measured:.1e} measured, {layer.predicted:.1e} predicted, {layer.times:.1f} x bound"
            for layer in beyond[:10]
        ]
        if self.unknown:
            lines.append(f"not predicted: {', '.join(self.unknown[:5])}{' ...' if len(self.unknown) > 5 else ''}")
        return "\n".join(lines)


def judge(
    subject: Subject,
    pcc: float | None,
    *,
    layers: Mapping[str, float] | None = None,
    numerics: str = "fast",
    seeds: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Judge a measured PCC, and the PCC of layers where a record has them.

    Args:
        pcc: of the whole answer; None takes the record's worst layer instead.
        layers: PCC by the name of the layer, as checkpoints call it.
        numerics: what the device is configured to, as ``--device-numerics`` takes it.
        seeds: how many, from 0 on.
    """
    whole: list[float] = []
    by_layer: dict[str, list[float]] = {}
    for seed in range(seeds):
        progress(f"seed {seed}")
        if layers:
            exact, exact_layers = subject.layers(seed)
            ours, our_layers = subject.layers(seed, numerics)
            for each in compared(our_layers, exact_layers):
                by_layer.setdefault(each.name, []).append(each.error.one_minus_pcc)
        else:
            exact = subject.run(seed)
            ours = subject.run(seed, numerics)
        expected = outputs(exact)
        error = Error.of(
            [outputs(ours)[name] for name in sorted(expected)], [expected[name] for name in sorted(expected)]
        )
        whole.append(error.one_minus_pcc)
    return verdict(subject, Distribution(tuple(whole)), by_layer, pcc, layers or {}, numerics)


def verdict(
    subject: Subject,
    whole: Distribution,
    by_layer: Mapping[str, list[float]],
    pcc: float | None,
    record: Mapping[str, float],
    numerics: str,
) -> Verdict:
    """Put what was measured beside what was predicted."""
    findings = []
    for name in (name for name in by_layer if name in record):
        of_layer = Distribution(tuple(by_layer[name]))
        measured = 1.0 - record[name]
        findings.append(LayerFinding(name, measured, of_layer.middle, of_layer.bound, measured / of_layer.bound))
    beyond = [finding for finding in findings if finding.times > 1]
    measured = 1.0 - pcc if pcc is not None else max((f.measured for f in findings), default=0.0)
    explained = not beyond and (pcc is None or measured <= whole.bound)
    return Verdict(
        model=subject.name,
        layout=subject.layout,
        numerics=numerics,
        measured=measured,
        predicted=list(whole.values),
        middle=whole.middle,
        bound=whole.bound,
        explained=explained,
        look_first="" if explained else _look_first(beyond, findings, measured / whole.bound),
        layers=findings,
        unknown=[name for name in record if name not in by_layer],
    )


def _look_first(beyond: list[LayerFinding], findings: list[LayerFinding], times: float) -> str:
    if beyond:
        worst = max(beyond, key=lambda finding: finding.times)
        farthest = "" if worst is beyond[0] else f"; {worst.name} is farthest off, {worst.times:.0f} times its bound"
        return f"{beyond[0].name}, the first layer that is {beyond[0].times:.1f} times its bound{farthest}"
    if findings:
        return "what follows the layers of the record, which are all within their bounds"
    return f"the layers, one by one, with a record of their PCC (--record): the answer is {times:.1f} times its bound"
