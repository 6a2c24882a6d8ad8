"""Results of commands below a folder: the records of every kind, plain or as pandas DataFrames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.base.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    "parity": ("results.json", "refsim parity run --out DIR"),
    "faults": ("faults.json", "refsim faults run --out DIR"),
    "sensitivity": ("sensitivity.json", "refsim parity sensitivity --out DIR"),
    "predictions": ("plan.json", "refsim plan --json > DIR/plan.json"),
    "memory": ("memory.json", "refsim memory MODEL --json > DIR/memory.json"),
    "speed": ("sim.json", "refsim bench sim --json > DIR/sim.json"),
    "measurements": ("accuracy.json", "refsim bench accuracy FILE.csv --json > DIR/accuracy.json"),
    "history": ("history.json", "refsim history show --json > DIR/history.json"),
}
"""Kind -> the file that holds its records, and the command that writes it."""

_ROWS = {"predictions": "plans", "sensitivity": "rows", "measurements": "devices", "history": "rows"}
_RUN = {
    "parity": ("started", "backend", "seed", "suite", "machine", "versions", "commit", "committed"),
    "speed": ("machine",),
}
"""Kind -> what stands beside its records and is of all of them."""


def load_results(folder: str | Path) -> dict[str, pd.DataFrame]:
    """Read every file of results below a folder.

    Args:
        folder: searched with its folders below; several runs may lie beside each other.

    Returns:
        kind -> DataFrame, only the kinds that were found. Every DataFrame has ``source``, the file relative to
        ``folder``; nested values have columns such as ``metrics.rel_rmse``.

        - ``parity``: a judged case a row; ``id``, ``verdict``, ``metrics.*`` and ``thresholds.*`` (no unit: relative
          errors, 1 - PCC, counts; ``max_ulp`` in units of the last place), ``noise.*`` (the oracle's own),
          ``bytes_by_collective.*`` (bytes, all ranks), ``sim_s``, ``oracle_s``, ``wall_s`` (measured seconds), and of
          the run ``run.started``, ``run.backend``, ``run.seed``, ``run.suite``, ``run.machine.*``, ``run.versions.*``,
          ``run.commit`` and ``run.committed`` (when).
        - ``faults``: a fault or a clean case a row; ``verdict``, ``metrics.*``, ``seconds``.
        - ``sensitivity``: an op of a case a row; the smallest relative error that fails.
        - ``predictions``: a configuration a row; seconds and bytes are predicted, see ``refsim plan --json``.
        - ``memory``: a model on a mesh a row; bytes of ttnn's allocator.
        - ``speed``: a scheme a row; measured seconds of the simulator and of one process.
        - ``measurements``: a device of a profiler file a row; ``file``, ``device``, ``measured_us``, ``predicted_us``
          (us of its kernels that have a price), ``error`` (predicted / measured - 1), ``critical`` (took longest).
        - ``history``: a case at a commit a row; ``kind``, ``case``, ``setting``, ``commit``, ``date`` (UTC),
          ``version``, ``verdict``, ``value`` and ``limit`` (of the metric that was asked for, no unit), ``measured_s``,
          ``predicted_s`` (seconds), ``memory_gb`` (1e9 bytes of the fullest device), ``worse_by`` (words).

    Raises:
        UserError: no such folder, no results in it, or a file that is not JSON.
    """
    import pandas as pd

    return {kind: _with_numbers(pd.json_normalize(rows)) for kind, rows in read_records(folder).items()}


def read_records(folder: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Read the same as plain JSON values: kind -> records as they were written, with ``source`` and ``run.NAME``.

    Raises:
        UserError: as :func:`load_results`.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"'{folder}' is no folder; give one that a command wrote with --out.")
    records = {}
    for kind, (name, _) in KINDS.items():
        rows = [row for path in sorted(root.rglob(name)) for row in _records(kind, path, root)]
        if rows:
            records[kind] = rows
    if not records:
        files = "; ".join(f"{name} ({command})" for name, command in KINDS.values())
        raise UserError(f"'{folder}' holds no results; these are read: {files}.")
    return records


def _records(kind: str, path: Path, root: Path) -> Iterator[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"'{path}' cannot be read as results ({e}); write it again or take it away.") from e
    if isinstance(data, list):
        records = data
        run = {}
    else:
        key = _ROWS.get(kind, "records")
        records = data[key] if isinstance(data.get(key), list) else [data]
        run = {f"run.{name}": data[name] for name in _RUN.get(kind, ()) if name in data}
    source = path.relative_to(root).as_posix()
    for record in records:
        if isinstance(record, dict):
            named = {"file" if name == "source" else name: value for name, value in record.items()}
            yield {"source": source, **run, **named}


def _with_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Metrics as numbers: results.json spells what is not finite as a word."""
    for name in frame.columns:
        if name.startswith(("metrics.", "noise.", "thresholds.")):
            frame[name] = frame[name].astype(float)
    return frame
