"""What is known of the values of every ttnn operation on the mock: ``python -m benchmarks.op_coverage --out FILE``.

The table is made from ttnn's registry, the rules, and what the properties among the cases of the tests call when they
run (about two minutes); ``--upstream`` adds the passed tests of JSON lines that ``pytest --ttnn-mock-json`` wrote.
Nothing in it is written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from refsim.files.tables import as_markdown
from tt_impl.harness.reports.coverage import DENIED, EMULATED, GOLDEN, NONE, RULE, TRANSFER, evidence

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests/tt_impl/cases"
TABLE = ROOT / "docs/ttnn_ops.md"

MEANING = {
    RULE: "its values are computed by a rule of this project; a case of the tests calls it",
    TRANSFER: "it moves, makes or frees values, by ttnn's own host code; a case of the tests calls it",
    EMULATED: "the mock cannot do it, or draws other numbers; something else is done instead, and a test that met it "
    "passes on rules, with its name in the line `emulated`",
    GOLDEN: "only ttnn's own golden function knows, on request, and a test that passes by it is counted apart",
    DENIED: "ttnn's golden function is wrong or unusable, so a program that calls it is refused",
    NONE: "a program that calls it is refused with its name",
}


@dataclass(frozen=True)
class Row:
    """An operation: the kind of evidence, whether a property calls it, passed upstream tests, options refused."""

    name: str
    evidence: str
    property: bool
    upstream: int
    refused: tuple[str, ...]


def rows(upstream: Iterable[Path] = (), properties: Collection[str] = ()) -> list[Row]:
    """All registered operations, and what else has a rule, in alphabetical order; ``properties`` is of ``drawn``.

    What has a rule for complex operands, too, is one operation.
    """
    from tt_impl.mock.calls.golden import registered
    from tt_impl.mock.calls.special import SPECIAL
    from tt_impl.mock.rules.complex import MARK
    from tt_impl.mock.rules.registry import RULES

    operations = registered()
    passed = _passed(upstream)
    result = []
    for name in sorted(name for name in operations.keys() | RULES.keys() | SPECIAL.keys() if not name.endswith(MARK)):
        operation = operations.get(name)
        refused = _refused(name, operation, RULES[name]) if operation is not None and name in RULES else ()
        result.append(Row(name, evidence(name), name in RULES and name in properties, passed[name], refused))
    return result


def drawn() -> set[str]:
    """Operations that properties call: cases whose tensors are drawn, run on the meshes that the tests run them on."""
    from tests.tt_impl.mock.test_shadow import MESHES
    from tests.tt_impl.worker import cases_of, run_cases
    from tt_impl.run.launch import Worker

    names: set[str] = set()
    with Worker() as worker:
        for module, mesh in sorted({(case[0], mesh) for case, mesh in MESHES.items() if _draws(case[0])}):
            for case, outcome in run_cases(worker, cases_of(module), mesh, timeout_s=600).outcomes.items():
                if outcome.error:
                    raise RuntimeError(f"{'-'.join(case)} failed:\n{outcome.error}")
                names.update(outcome.drawn)
    return names


def _draws(module: str) -> bool:
    return re.search(r"\b(drawn|hold)\(", next(CASES.glob(f"*/{module}.py")).read_text(encoding="utf-8")) is not None


def _passed(paths: Iterable[Path]) -> Counter[str]:
    """How many passed tests called an operation whose values came from a rule."""
    counts: Counter[str] = Counter()
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            verdict = json.loads(line)
            if verdict.get("outcome") == "passed":
                counts.update(verdict.get("ops", {}).keys() - verdict.get("fallbacks", {}).keys())
    return counts


def _refused(name: str, operation: Any, rule: Callable) -> tuple[str, ...]:
    """Parameters of the operation that its rule does not have, and that are not neutral."""
    from tt_impl.mock.rules.registry import for_rule

    known = inspect.signature(_function(rule)).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in known):
        return ()
    names = {p.name for p in known}
    asked = dict.fromkeys(_parameters(operation))
    return tuple(sorted(key for key in for_rule(asked, name) if key not in names and key != "device"))


def _function(rule: Callable) -> Callable:
    """Return the function that was registered, inside what was made of it."""
    variables = dict(zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True))
    return variables["function"].cell_contents if "function" in variables else rule


def _parameters(operation: Any) -> set[str]:
    """Names of the parameters of all overloads, as ttnn documents them."""
    function = operation.function
    if inspect.isfunction(function):
        return set(inspect.signature(function).parameters)
    text = type(function).__call__.__doc__ or ""
    signatures = [line for line in text.splitlines() if "(self" in line and "->" in line]
    return {name for line in signatures for name in re.findall(r", (?:\*, )?(\w+): ", line)}


def markdown(table: Sequence[Row], upstream: bool) -> str:
    """Return the page: what the words mean, how many there are of each, and all operations."""
    counts = Counter(row.evidence for row in table)
    lines = [
        "# ttnn's operations on the mock",
        "",
        "Made by `python -m benchmarks.op_coverage --out docs/ttnn_ops.md`; a test compares it with the code. Which",
        "values a program gets, and what they rest on:",
        "",
        as_markdown(
            ((kind, counts[kind], meaning) for kind, meaning in MEANING.items()), ("evidence", "operations", "meaning")
        ),
        "",
        f"{sum(row.property for row in table)} of the rules are called by a property: a case of the tests that draws",
        "shapes, dtypes and options, and compares every device with torch. An option refused is a parameter of the",
        "operation that its rule does not know: a call that passes it is an error that names it."
        + (" Upstream counts passed tests that called it." if upstream else ""),
        "",
    ]
    rows = []
    for row in table:
        cells = [f"`{row.name}`", row.evidence, "yes" if row.property else ""]
        cells += [str(row.upstream or "")] if upstream else []
        rows.append((*cells, " ".join(f"`{name}`" for name in row.refused)))
    columns = ("operation", "evidence", "property", *(["upstream"] if upstream else []), "options refused")
    lines.append(as_markdown(rows, columns))
    return "\n".join(lines) + "\n"


def listed(page: str) -> dict[str, str]:
    """Evidence by operation, as a page says it."""
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page, re.MULTILINE))


def covered(page: str) -> set[str]:
    """Operations that a property calls, as a page says it."""
    return set(re.findall(r"^\| `([\w.]+)` \| [^|]+ \| yes \|", page, re.MULTILINE))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=TABLE, help="the page to write")
    parser.add_argument("--json", type=Path, help="the same as JSON")
    parser.add_argument("--upstream", type=Path, nargs="*", default=[], help="JSON lines of pytest --ttnn-mock-json")
    options = parser.parse_args(arguments)
    table = rows(options.upstream, drawn())
    options.out.write_text(markdown(table, bool(options.upstream)), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in table], indent=1) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(table)} operations, {dict(Counter(row.evidence for row in table))}")


if __name__ == "__main__":
    main()
