"""What a device run measured beside what is predicted of the same model: PCC by layer, microseconds by class of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.rounding.measured import WHOLE, Record
from parity.rounding.verdict import Verdict
from refsim.files.keys import Document
from refsim.files.tables import as_markdown


@dataclass(frozen=True)
class Pcc:
    """1 - PCC of a layer, or of the whole answer.

    Attributes:
        predicted: null where nothing of that name is predicted.
        explained: Rounding explains it; null without a prediction.
    """

    name: str
    measured: float
    predicted: float | None = None
    bound: float | None = None
    explained: bool | None = None


@dataclass(frozen=True)
class Time:
    """Microseconds of a class of operations.

    Attributes:
        predicted_us: null where nothing prices them.
    """

    op: str
    count: int
    measured_us: float
    predicted_us: float | None


@dataclass
class Ingested(Document):
    """A device run's record beside the prediction.

    Attributes:
        files: Those that were read.
        judged: Rounding explains all of it; null where no model was named.
    """

    files: list[str]
    pcc: list[Pcc]
    times: list[Time]
    judged: bool | None


def beside(record: Record, judged: Verdict | None, times: Sequence[Time]) -> Ingested:
    """Put a record beside a verdict on it, if there is one."""
    rows = []
    predicted = {layer.name: layer for layer in judged.layers} if judged else {}
    for name, pcc in record.pcc.items():
        if name == WHOLE and judged:
            rows.append(Pcc(name, 1 - pcc, judged.middle, judged.bound, 1 - pcc <= judged.bound))
        elif name in predicted:
            layer = predicted[name]
            rows.append(Pcc(name, 1 - pcc, layer.predicted, layer.bound, layer.times <= 1))
        else:
            rows.append(Pcc(name, 1 - pcc))
    files = [str(path) for path in record.files]
    return Ingested(files, rows, list(times), judged.explained if judged else None)


def text(ingested: Ingested) -> str:
    """Return the tables as markdown."""
    parts = [f"Read {', '.join(ingested.files)}."]
    if ingested.pcc:
        words = {True: "explained", False: "NOT explained", None: ""}
        cells = [
            [row.name, _number(row.measured), _number(row.predicted), _number(row.bound), words[row.explained]]
            for row in ingested.pcc
        ]
        parts.append(as_markdown(cells, ["1 - PCC of", "measured", "predicted", "bound", "by rounding"], "lrrrl"))
    if ingested.times:
        times = [
            [row.op, row.count, f"{row.measured_us:.1f}", "" if row.predicted_us is None else f"{row.predicted_us:.1f}"]
            for row in ingested.times
        ]
        parts.append(as_markdown(times, ["operations", "runs", "measured us", "predicted us"], "lrrr"))
    return "\n\n".join(parts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
