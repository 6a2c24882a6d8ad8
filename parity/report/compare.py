"""Two runs of parity beside each other: which cases ended in another verdict, which gave other bits.

Digests are those of the answers' tensors, so equal ones mean equal bits for the same seed on the same machine. This is
how a change of the code shows that it changed nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.measure.records import SCHEMA
from refsim.base.errors import UserError
from refsim.files.keys import Document


@dataclass(frozen=True)
class Difference:
    """One case that differs.

    Attributes:
        id: of the case.
        verdicts: of the first and of the second run, where they differ.
        digests: names of tensors whose bits differ, or that only one run has.
    """

    id: str
    verdicts: tuple[str, str] | None
    digests: tuple[str, ...]

    def __str__(self) -> str:
        changes = [] if self.verdicts is None else [f"{self.verdicts[0]} before, {self.verdicts[1]} after"]
        changes += [f"other bits in {', '.join(self.digests)}"] if self.digests else []
        return f"{self.id}: {'; '.join(changes)}"


@dataclass(frozen=True)
class Comparison(Document):
    """Two runs beside each other.

    Attributes:
        compared: cases that both have.
        without_digests: cases of them without any digest in either run, of which only the verdicts were compared.
        differences: those that differ.
        only_first, only_second: ids of cases that one run has.
    """

    SCHEMA = SCHEMA
    KEYS = ("compared", "without_digests", "differences", "only_first", "only_second", "exit_code")

    compared: int
    without_digests: int
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 if a case differs, or if there was no case to compare, which shows nothing."""
        return int(bool(self.differences) or not self.compared)


@dataclass(frozen=True)
class Pairs:
    """The records of two runs side by side.

    Attributes:
        both: of every case that both runs have, its two records.
        only_first, only_second: ids of cases that one run has.
    """

    both: list[tuple[dict[str, Any], dict[str, Any]]]
    only_first: list[str]
    only_second: list[str]

    @classmethod
    def of(cls, first: dict[str, Any], second: dict[str, Any]) -> Pairs:
        """Pair the records of two runs as :func:`read` gives them."""
        a, b = ({record["id"]: record for record in run["records"]} for run in (first, second))
        return cls(
            [(record, b[name]) for name, record in a.items() if name in b],
            [name for name in a if name not in b],
            [name for name in b if name not in a],
        )


def compare(first: dict[str, Any], second: dict[str, Any]) -> Comparison:
    """Find what differs between two runs as :func:`read` gives them."""
    pairs = Pairs.of(first, second)
    differences = [_difference(a, b) for a, b in pairs.both]
    return Comparison(
        compared=len(pairs.both),
        without_digests=sum(not a["digests"] and not b["digests"] for a, b in pairs.both),
        differences=tuple(difference for difference in differences if difference is not None),
        only_first=tuple(pairs.only_first),
        only_second=tuple(pairs.only_second),
    )


def _difference(a: dict[str, Any], b: dict[str, Any]) -> Difference | None:
    verdicts = (a["verdict"], b["verdict"]) if a["verdict"] != b["verdict"] else None
    names = sorted(a["digests"].keys() | b["digests"].keys())
    digests = tuple(name for name in names if a["digests"].get(name) != b["digests"].get(name))
    return Difference(a["id"], verdicts, digests) if verdicts or digests else None


def read(path: str | Path) -> dict[str, Any]:
    """Read a results.json, or that of a folder.

    Raises:
        UserError: it is not there, is no JSON, or has another form than this version writes.
    """
    if Path(path).is_dir():
        path = Path(path) / "results.json"
    try:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"'{path}' cannot be read ({e.strerror}); give the results.json of a run.") from e
    except ValueError as e:
        raise UserError(f"'{path}' is not valid JSON ({e}); give the results.json of a run.") from e
    schema = run.get("schema") if isinstance(run, dict) else None
    if schema != SCHEMA or not isinstance(run.get("records"), list):
        raise UserError(
            f"'{path}' has schema {schema} and this version reads {SCHEMA}; run the cases again by `refsim parity run`."
        )
    return run


def as_text(comparison: Comparison) -> str:
    """Say what differs, a line a case, and a sentence with the counts."""
    lines = [str(difference) for difference in comparison.differences]
    for which, names in (("first", comparison.only_first), ("second", comparison.only_second)):
        lines += [f"{name}: only in the {which} run" for name in names]
    counts = f"{len(comparison.differences)} of {comparison.compared} cases differ"
    if comparison.without_digests:
        counts += f"; of {comparison.without_digests} only the verdicts were compared, they have no digests"
    return "\n".join([*lines, counts])
