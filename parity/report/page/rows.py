"""Records of commands as rows of the page's tables: JSON values, nothing that no record says.

Every row has ``source``, the file that its record is from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from parity.cases import Case
from parity.cases.suites import suite_cases
from parity.explain.explanation import again
from parity.kinds import thresholds_for
from refsim.base.errors import UserError
from refsim.results import read_records

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def read(folders: Sequence[Path]) -> Rows:
    """Read rows by kind of record, see :data:`refsim.results.KINDS`; kinds that the page does not show are left out.

    Raises:
        UserError: a folder is not there or holds no results.
    """
    rows: Rows = {kind: [] for kind in _MAKE}
    for folder in folders:
        for kind, records in read_records(folder).items():
            if kind in _MAKE:
                for record in records:
                    source = (folder / record["source"]).as_posix()
                    rows[kind] += [{**row, "source": source} for row in _MAKE[kind](record)]
    for row in rows["parity"]:
        row["trace"] = _trace(row)
    return rows


def _trace(row: Row) -> Row | None:
    """Return the ``file`` of a case's trace beside its record, or the ``command`` that puts it there.

    None of a case that was skipped, of one that this version does not have, and of a backend that keeps no times.
    """
    file = Path(row["source"]).parent / f"{row['id']}.trace.json"
    if file.is_file():
        return {"file": file.as_posix()}
    case = _cases().get(row["id"].removesuffix(f"-seed{row['seed']}"))
    if case is None or row["backend"] != "cpu" or row["verdict"] == "skipped":
        return None
    return {"command": again(case, "cpu", row["seed"] - case.seed, trace=file.as_posix())}


@cache
def _cases() -> dict[str, Case]:
    return {case.id: case for case in suite_cases("full")}


def _parity(record: Row) -> list[Row]:
    """Return a judged case, its metrics from the one nearest to its bound on."""
    names = "id kind model mesh parallel scheme dtype backend seed verdict reason error wall_s hazards explanation"
    (row,) = _columns(names, record)
    known = _reasons(record["kind"], record["dtype"])
    limits = record["thresholds"]
    metrics = [_metric(name, record["metrics"].get(name), limits.get(name), known) for name in limits]
    free = [_metric(name, value, None, known) for name, value in record["metrics"].items() if name not in limits]
    judged = sorted(metrics, key=_nearness, reverse=True)
    row |= {f"run_{name}": record.get(f"run.{name}") for name in ("started", "suite", "machine")}
    row["nearest"] = next((m for m in judged if _nearness(m) >= 0 and not m["count"]), None)
    return [row | {"metrics": judged + free, "noise": record.get("noise") or {}}]


def _metric(name: str, value: Any, bound: float | None, known: dict[str, tuple[float, str]]) -> Row:
    """Return a metric, how much of its bound it takes (None: no bound, no value or no finite share), and why."""
    number = None if value is None else float(value)  # records spell what is not finite as a word
    beyond = bound is not None and number is not None and not number <= bound
    share = None
    if bound is not None and number is not None and math.isfinite(number):
        share = number / bound if bound else 0.0 if number == 0 else None
    limit, reason = known.get(name, (None, ""))
    if reason and bound is not None and not math.isclose(limit, bound, rel_tol=1e-9):
        reason = f"{reason} (this version allows {limit:.3g})"
    return {
        "name": name,
        "value": value,
        "bound": bound,
        "share": share,
        "beyond": beyond,
        "count": isinstance(value, int) and not beyond,  # of things: 0 or 1 is as near to its bound as it should be
        "reason": reason if bound is not None else "",
    }


def _nearness(metric: Row) -> float:
    if metric["beyond"]:
        return math.inf if metric["share"] is None else max(metric["share"], 1.0)
    return -1.0 if metric["share"] is None else metric["share"]


@cache
def _reasons(kind: str, dtype: str) -> dict[str, tuple[float, str]]:
    """Return bound and reason of every metric in this version; none of a kind or a dtype that it does not have."""
    try:
        return {t.metric: (t.limit, t.reason) for t in thresholds_for(kind, dtype)}
    except UserError:
        return {}


def _memory(record: Row) -> list[Row]:
    """Return a stage a row, of the group of devices that holds the most; a stage of which there is nothing says why."""
    model, size, mesh, parallel = record.get("system") or (
        record.get("name"),
        "x".join(map(str, record.get("latent", []))),
        record.get("mesh"),
        record.get("parallel"),
    )
    rows = []
    for stage in record.get("stages") or [record]:
        row = {"model": model, "size": size, "mesh": mesh, "parallel": parallel, "ran": stage.get("ran", "")}
        row |= {"stage": stage.get("stage") or model, "missing": stage.get("missing", "")}
        if groups := stage.get("groups"):
            group = max(groups, key=lambda one: one["peak"])
            row |= {name: group[name] for name in ("weights", "persistent", "peak", "total")}
            row |= {"l1": group.get("l1"), "fits": stage.get("fits")}
        rows.append(row)
    return rows


def _speed(record: Row) -> list[Row]:
    names = "scheme ranks rows heads head_dim dtype math seconds ratio ratio_range rel_rmse right hazards load_before"
    return [row | {"run_machine": record.get("run.machine")} for row in _columns(names, record)]


def _columns(names: str, record: Row) -> list[Row]:
    return [{name: record.get(name) for name in names.split()}]


_FAULTS = "id kind backend family sentence mistake case verdict caught_by error missed_by seconds"
_PREDICTIONS = "model size mesh parallel topology rank total_seconds total_seconds_range bound memory_gb stages"
_MAKE = {
    "parity": _parity,
    "faults": partial(_columns, _FAULTS),
    "predictions": partial(_columns, _PREDICTIONS),
    "memory": _memory,
    "speed": _speed,
}
