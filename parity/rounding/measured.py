"""Records of a device run, as columns beside what is predicted.

*.json        {"pcc": 0.9996, "layers": {"transformer_blocks.0.attn.to_q": 0.99998}} or a list of {"name", "pcc"}
*.csv         columns name and pcc; or a profiler's ops_perf_results (``DEVICE KERNEL DURATION [ns]``)
*.log, *.txt  lines with a name and `PCC: 0.9996`, as upstream's comparisons print them
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError

WHOLE = "whole"
"""Name of the PCC of the whole answer."""
_LINE = re.compile(
    r"(?:(?P<name>[\w.+@:#-]*\w)[\s:,|-]+)?(?:\w+\s+)?PCC\s*[:=]?\s*(?P<pcc>-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.I
)
_PROFILE = "DEVICE KERNEL DURATION [ns]"
_WORDS = ("pcc", "the", "max", "output", "info", "debug")


@dataclass
class Record:
    """What a folder holds of a device run.

    Attributes:
        pcc: of layers, by name; that of the whole answer is ``whole``.
        profiles: profilers' files of operations.
        files: those that were read.
    """

    pcc: dict[str, float] = field(default_factory=dict)
    profiles: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    @property
    def whole(self) -> float | None:
        """Return the PCC of the whole answer, if it is there."""
        return self.pcc.get(WHOLE)

    @property
    def layers(self) -> dict[str, float]:
        """Return the PCC of layers alone."""
        return {name: pcc for name, pcc in self.pcc.items() if name != WHOLE}


def read(path: Path) -> Record:
    """Read a folder of records, or one file.

    Raises:
        UserError: nothing there, nothing of a device in it, or a file that cannot be read as what it is.
    """
    if not path.exists():
        raise UserError(f"'{path}' does not exist; give a folder with PCC records or profiler CSVs of a device run.")
    record = Record()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        reader = _READERS.get(file.suffix)
        if reader is None or not file.is_file():
            continue
        if file.suffix == ".csv" and _is_profile(file):
            record.profiles.append(file)
            record.files.append(file)
            continue
        values = dict(reader(file))
        for name, pcc in values.items():
            if not (math.isfinite(pcc) and -1.0 <= pcc <= 1.0):
                raise UserError(f"'{file}' says a PCC of {pcc} for {name}; a PCC is a number from -1 to 1.")
        record.pcc |= values
        record.files += [file] if values else []
    if not record.files:
        raise UserError(
            f"'{path}' holds no record of a device run; a run leaves *.json or *.csv with name and pcc, logs with "
            "lines such as 'to_q PCC: 0.9998', or a profiler's ops_perf_results*.csv."
        )
    return record


def _is_profile(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return _PROFILE in lines.readline()


def _json(file: Path) -> Iterator[tuple[str, float]]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{file}' is no JSON ({error}); mend or remove it.") from error
    yield from _named(value)


def _named(value: Any) -> Iterator[tuple[str, float]]:
    """Yield (name, PCC) of what JSON files of comparisons look like."""
    if isinstance(value, list):
        for each in value:
            yield from _named(each)
    elif isinstance(value, dict) and isinstance(value.get("pcc"), int | float):
        yield str(value.get("name") or WHOLE), float(value["pcc"])
        yield from _named({"layers": value["layers"]} if "layers" in value else {})
    elif isinstance(value, dict):
        for name, pcc in value.get("layers", value).items():
            if isinstance(pcc, int | float) and not isinstance(pcc, bool):
                yield name, float(pcc)
            elif isinstance(pcc, dict) and isinstance(pcc.get("pcc"), int | float):
                yield name, float(pcc["pcc"])


def _csv(file: Path) -> Iterator[tuple[str, float]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        if not {"name", "pcc"} <= {*(rows.fieldnames or ())}:
            return
        for row in rows:
            try:
                yield row["name"], float(row["pcc"])
            except (TypeError, ValueError) as error:
                raise UserError(f"'{file}' says '{row['pcc']}' for {row['name']}, which is no PCC.") from error


def _log(file: Path) -> Iterator[tuple[str, float]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        for match in _LINE.finditer(line):
            name = match["name"] or WHOLE
            yield (WHOLE if name.lower() in _WORDS else name), float(match["pcc"])


_READERS = {".json": _json, ".csv": _csv, ".log": _log, ".txt": _log}
