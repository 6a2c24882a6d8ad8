"""Predictions for people: tables in markdown, and the plot of PCC beside seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parity.rounding.drift import Drift
from parity.rounding.errors import COLUMNS
from parity.rounding.predict import LayerError, Prediction, Row
from parity.rounding.published import Table
from refsim.files.tables import as_markdown
from refsim.timing.report import plots


def _rows(rows: Iterable[Row]) -> str:
    cells = [[row.name, *row.error.cells(), f"`{row.numerics}`" if row.numerics else ""] for row in rows]
    return as_markdown(cells, ["choice", *COLUMNS, "`--device-numerics`"], "lrrrl")


def _layers(layers: Iterable[LayerError], what: str) -> str:
    return as_markdown([[layer.name, *layer.error.cells()] for layer in layers], [what, *COLUMNS], "lrrr")


def _choices(prediction: Prediction) -> str:
    cells = [
        [
            row.name,
            *row.error.cells(),
            "" if row.seconds is None else f"{row.seconds:.3f}",
            "yes" if row.error.pcc >= prediction.pcc else "",
            "yes" if row.name in prediction.front else "",
        ]
        for row in prediction.choices
    ]
    columns = ["weights, fidelity, destination", *COLUMNS, "seconds", f"PCC >= {prediction.pcc:g}", "not beaten"]
    return as_markdown(cells, columns, "lrrrrll")


def recommendation(prediction: Prediction) -> str:
    """Say which choice is the cheapest within the PCC."""
    row = prediction.recommended
    if row is None:
        best = min(prediction.choices, key=lambda each: each.error.one_minus_pcc)
        return f"No choice reaches PCC {prediction.pcc:g}; the most exact one, {best.name}, is at {best.error.pcc:.6f}."
    took = f", {row.seconds:.3f} s ({prediction.timed})" if row.seconds is not None else ", without seconds"
    return f"Cheapest within PCC {prediction.pcc:g}: {row.name}, PCC {row.error.pcc:.6f}{took}."


def _without_rule(rounded_once: dict[str, int]) -> str:
    counts = ", ".join(f"{name} ({count})" for name, count in sorted(rounded_once.items()))
    return f"Rounded once for want of a rule: {counts}." if counts else "Every op has a rule."


def text(prediction: Prediction) -> str:
    """Return a prediction as markdown."""
    notes = [_without_rule(prediction.rounded_once), *prediction.limits]
    parts = [
        f"# Rounding of {prediction.model}",
        f"Predicted by `refsim numerics predict` on {prediction.layout}, seed {prediction.seed}; the judge is the same "
        f"run in fp32. Weights and inputs are bf16 numbers.{f' Run was {prediction.ran}.' if prediction.ran else ''}",
        recommendation(prediction),
        "## One choice at a time, all else exact, the most harmful first",
        _rows(prediction.alone),
        "## All ops rounded",
        _choices(prediction),
    ]
    if prediction.blocks:
        parts += ["## By block: what it adds to image (+0) and prompt (+1)", _layers(prediction.blocks, "block")]
    parts += ["## By layer, in the order they run", _layers(prediction.layers, "layer")] if prediction.layers else []
    parts += ["## Not modelled", *(f"* {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def plot(prediction: Prediction, path: Path) -> None:
    """Draw 1 - PCC of all choices over their seconds, where there are any."""
    points = {row.name: (row.seconds or 0.0, row.error.one_minus_pcc) for row in prediction.choices}
    plots.pareto(points, prediction.front, path, limit=1 - prediction.pcc, title=prediction.model)


def drift_text(drift: Drift) -> str:
    """Return a drift as markdown."""
    specs = list(drift.steps[0].errors) if drift.steps else []
    cells = [[step.step, *(f"{step.errors[spec].one_minus_pcc:.1e}" for spec in specs)] for step in drift.steps]
    return "\n\n".join(
        [
            f"# Drift of {drift.pipeline}",
            f"1 - PCC of the latents after each denoising step, from the same loop in fp32; {drift.layout}, "
            f"seed {drift.seed}, random weights. `bf16` is torch's arithmetic on bf16 tensors.",
            as_markdown(cells, ["step", *(f"`{spec}`" for spec in specs)], "r" * (len(specs) + 1)),
            f"{_without_rule(drift.rounded_once)}\n",
        ]
    )


def published_text(table: Table) -> str:
    """Return the comparison with published errors as markdown."""
    cells = [
        [
            row.module,
            row.metric,
            f"{row.published:.2g}",
            "" if row.predicted is None else f"{row.predicted:.2g}",
            "" if row.one_minus_pcc is None else f"{row.one_minus_pcc:.2g}",
            "" if row.ratio is None else f"{row.ratio:.2g}",
            row.explained if row.close is False else "",
            row.how,
            row.source,
        ]
        for row in table.rows
    ]
    columns = ["module", "metric", "published", "predicted", "1 - PCC", "ratio of 1 - PCC"]
    columns += ["why not", "how predicted", "source"]
    return "\n\n".join(
        [
            "# Predicted beside published errors of silicon",
            "Made by `refsim numerics published`. Nothing is fitted to these figures.",
            f"{table.close} of {table.predicted} predictions are within half a decade of 1 - PCC.",
            "A published RMSE is judged by half its square, the 1 - PCC that it comes to without a gain; with one, as "
            "that of ff1 has by its own two figures, it is less. That of LoFi holds none: operands cut to 5 and 7 bits "
            "give 2 % less whatever they are, which alone is more than the figure. The predicted RMSE holds the gain.",
            as_markdown(cells, columns, "llrrrrlll") + "\n",
        ]
    )
