"""A torch module beside its counterpart in TTNN, layer by layer: where the first layer is out of line.

    torch   proj       norm      ff.0      ff.1 (GELU)   ff.2      (whole module)
    TTNN    linear ... layer_norm linear(activation=gelu) linear ... add
            0.99998    0.99997   ?         0.99996       0.61 <--- first out of line

Both run once on the same inputs, the TTNN program under the mock. Results of operations are put beside layers in
program order, by shape and value; a mesh's parts are joined in every way that gives the layer's shape. A layer that
fits nothing, although later ones are as right as those before, was fused into another operation or is computed
otherwise: it is marked ``?`` and left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from refsim.base.errors import UserError
from tt_impl.harness.comparison.compose import wholes
from tt_impl.harness.comparison.taps import MODULE, Result, layers_of, results_of

IN_LINE = "ok"
FIRST_WRONG = "OUT OF LINE"
UNMATCHED = "?"
UNSEEN = "-"
_RETURNED = "(returned)"
"""Name of the row of the tensor that the program gives back."""
_SAMPLE = 4096
_NOISE = 0.02
_GROWTH = 4.0
"""A layer that fits nothing was fused if the next one in line has no more error than this, or than so many times the
worst before: were it wrong, the next one would show it."""
_LEAST_JUMP = 0.05
"""Errors of rounding, which no jump counts below."""


@dataclass
class Row:
    """One layer: ``result`` is the operation beside it, ``how`` its parts were joined, ``error`` |a - b| / |a|."""

    layer: str
    shape: tuple[int, ...]
    state: str = UNSEEN
    result: Result | None = None
    how: str = ""
    pcc: float = math.nan
    error: float = math.nan

    @property
    def place(self) -> str:
        return f"{self.result.op} at {self.result.where}" if self.result else "no operation"


@dataclass
class Comparison:
    """``rows`` in program order, as far as they were judged; ``first`` is the first that is out of line."""

    rows: list[Row] = field(default_factory=list)
    first: Row | None = None

    @property
    def ok(self) -> bool:
        return self.first is None

    def text(self) -> str:
        """Write the table, and a sentence."""
        cells = [("layer", "shape", "PCC", "error", "", "operation", "parts")]
        for row in self.rows:
            pcc, error = (("-" if math.isnan(x) else f"{x:.5f}") for x in (row.pcc, row.error))
            shape = "x".join(map(str, row.shape))
            cells.append((row.layer, shape, pcc, error, row.state, row.place if row.result else "", row.how))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        return "\n".join([*lines, self.sentence])

    @property
    def sentence(self) -> str:
        if self.first is not None:
            row = self.first
            if row.result is None and row.layer != _RETURNED:
                shape = "x".join(map(str, row.shape))
                return f"{row.layer} has no counterpart: no result of the program has the elements of {shape}."
            return f"{row.layer} is the first layer out of line: PCC {row.pcc:.5f}, error {row.error:.3f}, {row.place}."
        in_line = [row for row in self.rows if row.state == IN_LINE]
        rest = sum(row.state in (UNMATCHED, UNSEEN) for row in self.rows)
        return f"{len(in_line)} layers in line, {rest} without a counterpart of their own."


@dataclass(frozen=True)
class _Fit:
    """How well a result fits a layer: over a sample of elements, or all."""

    pcc: float
    error: float
    how: str

    @property
    def weight(self) -> float:
        """For putting results beside layers: good fits count, poor ones hardly."""
        scale = 1.0 if self.error < 0.5 else 0.5
        return scale * max(self.pcc, 0.0) ** 8


@dataclass(frozen=True)
class _Limits:
    """What a layer in line keeps to, see :func:`compare`."""

    pcc: float
    error: float
    jump: float

    def hold(self, fit: _Fit) -> bool:
        return fit.pcc >= self.pcc and fit.error <= self.error


def compare(
    torch_module: nn.Module,
    ttnn_callable: Callable[..., Any],
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    taps: Mapping[str, str] | None = None,
    pcc: float = 0.99,
    error: float = 0.2,
    jump: float = 8.0,
    show: Callable[[str], None] | None = print,
) -> Comparison:
    """Run both on ``inputs`` and say which layer is the first out of line.

    Args:
        torch_module: your own; its submodules are the layers, by the names of ``named_modules``.
        ttnn_callable: takes the same arguments (torch tensors) and returns anything; it moves them to a mesh itself.
            Runs under the values of an open ``ttnn_mock``, where its weights may have been made.
        inputs: one tensor, positional arguments, or arguments by name.
        taps: by layer, the operation that computes it: ``ttnn.add``, or ``model.py:33``, a line; then nothing else is
            put beside it, and it must be in line.
        pcc, error: least correlation, and most relative error, of a layer in line.
        jump: a layer whose error is so many times the worst before it, and more than 0.05, is out of line too, however
            high its PCC; weights of bfp4 jump farther.
        show: gets the table; None for no output.

    Raises:
        UserError: a tap names no layer or no operation, or the program did nothing on a device.
    """
    layers = layers_of(torch_module, inputs)
    if unknown := set(taps or ()) - {name for name, _ in layers}:
        raise UserError(f"taps names '{min(unknown)}', which is no layer; choose one of {_some(layers)}.")
    results, returned = results_of(ttnn_callable, inputs)
    if not results:
        raise UserError("the TTNN program ran no operation on a device; compare() needs one that does.")
    comparison = _Judge(layers, results, dict(taps or {}), _Limits(pcc, error, jump)).comparison()
    if isinstance(returned, Tensor) and comparison.ok and returned.numel() == layers[-1][1].numel():
        _append_returned(comparison, layers[-1][1], returned, _Limits(pcc, error, jump))
    _refuse_an_end_that_nothing_fits(comparison)
    if show is not None:
        show(comparison.text())
    return comparison


def _refuse_an_end_that_nothing_fits(comparison: Comparison) -> None:
    """Refuse a module's end without counterpart: were it never compared, no mistake could be out of line."""
    ends = [row for row in comparison.rows if row.layer.startswith((MODULE, _RETURNED))] or comparison.rows
    if comparison.ok and not any(row.state == IN_LINE for row in ends):
        comparison.first = ends[-1]
        comparison.first.state = FIRST_WRONG


def _some(layers: list[tuple[str, Tensor]]) -> str:
    names = [name for name, _ in layers]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _append_returned(comparison: Comparison, wanted: Tensor, returned: Tensor, limits: _Limits) -> None:
    """Append the tensor that the program gives back, joined by itself."""
    fit = fitted(wanted.float().reshape(-1), returned.detach().float().reshape(-1), "as returned")
    row = Row(_RETURNED, tuple(returned.shape), IN_LINE, None, fit.how, fit.pcc, fit.error)
    if not limits.hold(fit):
        row.state = FIRST_WRONG
        comparison.first = row
    comparison.rows.append(row)


def fitted(a: Tensor, b: Tensor, how: str) -> _Fit:
    """Correlation of ``b`` with ``a``, and |a - b| / |a|; elements that are not numbers make it 0."""
    a = a.double()
    b = b.double()
    distance = (a - b).norm().item()
    size = a.norm().item()
    error = distance / size if size else (0.0 if not distance else math.inf)
    if not math.isfinite(error):
        return _Fit(0.0, math.inf, how)
    x = a - a.mean()
    y = b - b.mean()
    both = (x.norm() * y.norm()).item()
    return _Fit((x @ y).item() / both if both else float(error == 0.0), error, how)


def _places(count: int) -> Tensor:
    """All elements of a small tensor; of a large one some, anywhere (a stride would see some columns only)."""
    if count <= _SAMPLE:
        return torch.arange(count)
    return torch.randint(count, (_SAMPLE,), generator=torch.Generator().manual_seed(count))


def _is_fused(rows: list[Row], i: int) -> bool:
    """Whether the layers after number ``i``, which fits nothing, are as right as those before it."""
    before = max((row.error for row in rows[:i] if row.state == IN_LINE), default=0.0)
    after = next((row.error for row in rows[i + 1 :] if row.state == IN_LINE), math.inf)
    return after <= max(_NOISE, _GROWTH * before)


class _Judge:
    """Puts results beside layers, and judges them in program order."""

    def __init__(
        self, layers: list[tuple[str, Tensor]], results: list[Result], taps: dict[str, str], limits: _Limits
    ) -> None:
        self.layers = layers
        self.results = results
        self.taps = taps
        self.limits = limits
        self._samples: dict[tuple, list[tuple[Tensor, str]]] = {}
        self.fits = [[self._fit(i, j) for j in range(len(results))] for i in range(len(layers))]

    def comparison(self) -> Comparison:
        """Return the rows up to the first that is out of line."""
        rows = [Row(name, tuple(value.shape)) for name, value in self.layers]
        beside = self._beside()
        for i, (row, j) in enumerate(zip(rows, beside, strict=True)):
            if j is not None:
                self._set(row, i, j)
        worst = 0.0
        for row in rows:
            if row.state == IN_LINE and row.error > max(_LEAST_JUMP, self.limits.jump * worst):
                row.state = UNMATCHED
            elif row.state == IN_LINE:
                worst = max(worst, row.error)
        for i, row in enumerate(rows):
            if row.state == IN_LINE:
                continue
            self._rival(row, i, beside)
            if row.layer in self.taps or (row.result is not None and not _is_fused(rows, i)):
                row.state = FIRST_WRONG
                return Comparison(rows[: i + 1], row)
            row.state = UNSEEN if row.result is None else UNMATCHED
        return Comparison(rows)

    def _set(self, row: Row, i: int, j: int) -> None:
        """Judge layer ``i`` by result ``j``, over all elements."""
        wanted = self.layers[i][1].float()
        fits = [fitted(wanted.reshape(-1), w.value, w.how) for w in self._wholes(j, wanted.shape)]
        best = min(fits, key=lambda fit: (round(-fit.pcc, 6), fit.error))
        row.result = self.results[j]
        row.how = best.how
        row.pcc = best.pcc
        row.error = best.error
        if self.limits.hold(best):
            row.state = IN_LINE

    def _rival(self, row: Row, i: int, beside: list[int | None]) -> None:
        """Beside a layer that is not in line, the result between its neighbours that is nearest to it."""
        before = max((j for k, j in enumerate(beside[:i]) if j is not None and self._is_good(k, j)), default=0)
        after = min(
            (j for k, j in enumerate(beside[i + 1 :], i + 1) if j is not None and self._is_good(k, j)),
            default=len(self.results) - 1,
        )
        fits = {j: fit for j in range(before, after + 1) if (fit := self.fits[i][j]) is not None}
        row.result = None
        if fits:
            self._set(row, i, max(fits, key=lambda j: fits[j].weight * 2 + fits[j].pcc))
            row.state = UNMATCHED

    def _is_good(self, i: int, j: int) -> bool:
        fit = self.fits[i][j]
        return fit is not None and self.limits.hold(fit)

    def _wholes(self, j: int, shape: torch.Size) -> Any:
        return wholes(self.results[j].values, self.results[j].mesh, shape)

    def _fit(self, i: int, j: int) -> _Fit | None:
        """Find the best fit over a sample of elements; None if the shapes do not go together, or a tap forbids it."""
        name, wanted = self.layers[i]
        if name in self.taps and not self.results[j].is_called(self.taps[name]):
            return None
        places = _places(wanted.numel())
        key = j, wanted.shape
        if key not in self._samples:
            self._samples[key] = [(w.value[places], w.how) for w in self._wholes(j, wanted.shape)]
        sample = wanted.float().reshape(-1)[places]
        fits = [fitted(sample, value, how) for value, how in self._samples[key]]
        return max(fits, key=lambda fit: fit.weight, default=None)

    def _beside(self) -> list[int | None]:
        """For each layer a result, or none, in an order that never goes back, with the highest sum of weights."""
        if missing := [n for i, (n, _) in enumerate(self.layers) if n in self.taps and not any(self.fits[i])]:
            what = self.taps[missing[0]]
            raise UserError(f"no operation '{what}' gives as many elements as layer {missing[0]}; tap another one.")
        count = len(self.results)
        best = [[0.0] * (count + 1) for _ in range(len(self.layers) + 1)]
        for i in range(len(self.layers) - 1, -1, -1):
            for j in range(count - 1, -1, -1):
                fit = self.fits[i][j]
                taken = fit.weight + best[i + 1][j] if fit is not None else 0.0
                best[i][j] = max(best[i][j + 1], best[i + 1][j], taken)
        matches: list[int | None] = []
        j = 0
        for i in range(len(self.layers)):
            matches.append(self._next(best, i, j))
            j = j if matches[-1] is None else matches[-1]
        return matches

    def _next(self, best: list[list[float]], i: int, start: int) -> int | None:
        for j in range(start, len(self.results)):
            fit = self.fits[i][j]
            if fit is not None and fit.weight > 0 and math.isclose(best[i][start], fit.weight + best[i + 1][j]):
                return j
            if not math.isclose(best[i][j + 1], best[i][start]):
                return None
        return None
