"""Which operations of ttnn somebody's sources call, and what the mock knows of each, before anything is run.

    sources --syntax tree--> names of ttnn, whatever they are called there --> evidence --> Coverage

Found are ``ttnn.add``, the same by an alias of the module or of a part of it (``import ttnn as tt``, ``from ttnn import
add``, ``op = ttnn.add``) and ``getattr(ttnn, "add")``, called or handed on. Methods of tensors are not: nothing says
there what an object is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files.keys import Document
from refsim.files.tables import as_markdown

RULE = "rule"
TRANSFER = "transfer"
EMULATED = "emulated"
GOLDEN = "golden function"
DENIED = "none (golden function denied)"
NONE = "none"
ABSENT = "absent"
MEANING = {
    RULE: "computed by a rule of the mock",
    TRANSFER: "moved, made or freed by ttnn's own host code",
    EMULATED: "something like it is done instead; the verdict names it",
    GOLDEN: "only ttnn's golden function knows: --fallback, which is weak evidence",
    DENIED: "nobody knows: ttnn's golden function is wrong or unusable",
    NONE: "nobody knows: the program ends there",
    ABSENT: "this ttnn has no such name",
}
"""Kinds of evidence, as ``refsim ttnn coverage`` says them."""
KNOWN = {RULE, TRANSFER, EMULATED}


@dataclass
class Called:
    """One operation of the sources.

    Attributes:
        name: its full name in ttnn.
        evidence: what is known of its values: ``rule``, ``transfer``, ``emulated``, ``golden function``, ``none``,
            ``none (golden function denied)``, or ``absent`` where this ttnn has no such name.
        count: how often the sources name it.
        where: the first place, ``file:line``.
    """

    name: str
    evidence: str
    count: int
    where: str


@dataclass
class Coverage(Document):
    """What sources ask of the mock.

    Attributes:
        files: Python files that were read.
        unread: files that are no Python, each with why.
        known: operations whose values the mock computes, moves or emulates.
        operations: all of them, those of which nobody knows first.
    """

    files: int
    unread: list[str]
    known: int
    operations: list[Called]

    @property
    def complete(self) -> bool:
        """Whether the mock knows every operation by itself."""
        return self.known == len(self.operations)

    def text(self) -> str:
        """Write a table, and a sentence with the counts."""
        rows = [(f"`{c.name}`", c.evidence, c.count, c.where) for c in self.operations]
        table = as_markdown(rows, ("operation", "evidence", "named", "first")) + "\n\n" if rows else ""
        total = f"{self.known} of {len(self.operations)} operations are known to the mock ({self.files} files)."
        kinds = dict.fromkeys(c.evidence for c in self.operations)
        meanings = [f"{kind}: {MEANING[kind]}." for kind in kinds if kind not in KNOWN]
        return "\n".join([table + total, *meanings, *(f"not read: {name}." for name in self.unread)])


def evidence(name: str) -> str:
    """Return what is known of an operation's values: a key of :data:`MEANING`, but ``absent``."""
    from tt_impl.mock.calls.draws import RANDOM
    from tt_impl.mock.calls.golden import has_golden
    from tt_impl.mock.calls.golden_denied import DENIED as UNUSABLE
    from tt_impl.mock.calls.special import SPECIAL
    from tt_impl.mock.calls.stand_ins import EMULATED as STAND_INS
    from tt_impl.mock.calls.traces import EMULATED_TRACES
    from tt_impl.mock.rules.registry import RULES
    from tt_impl.trace.intercept import TRANSPARENT

    if name in RANDOM or name in STAND_INS or name in EMULATED_TRACES:
        return EMULATED
    if name in RULES:
        return RULE
    if name in SPECIAL or name in TRANSPARENT:
        return TRANSFER
    if name in UNUSABLE:
        return DENIED
    return GOLDEN if has_golden(name) else NONE


def coverage(paths: Iterable[Path]) -> Coverage:
    """Read Python files, and those in folders, and say what the mock knows of the operations that they name.

    Raises:
        UserError: a path does not exist, or there is no Python file.
    """
    import tt_impl.mock.calls.shadow  # noqa: F401 - registers the rules
    from tt_impl.mock.calls.golden import registered
    from tt_impl.mock.calls.special import SPECIAL
    from tt_impl.mock.rules.registry import RULES

    operations = registered().keys() | RULES.keys() | SPECIAL.keys()
    unread: list[str] = []
    named: dict[str, list[str]] = {}
    files = _python_files(paths)
    for path in files:
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError, OSError) as error:
            unread.append(f"{path}: {error}")
            continue
        for name, line, called in names_of_ttnn(tree):
            if name in operations or (called and not _exists(name)):
                named.setdefault(name, []).append(f"{path}:{line}")
    calls = [Called(name, _evidence(name, operations), len(at), at[0]) for name, at in named.items()]
    order = {kind: -number for number, kind in enumerate(MEANING)}
    calls.sort(key=lambda called: (order[called.evidence], called.name))
    return Coverage(len(files) - len(unread), unread, sum(c.evidence in KNOWN for c in calls), calls)


def names_of_ttnn(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield every full name of ttnn that a module uses, its line, and whether it is called there."""
    aliases = _aliases(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        name = _full_name(node, aliases)
        if name is not None and id(node) not in inner:
            yield name, node.lineno, id(node) in called  # type: ignore[attr-defined]  # an expression has a line


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return what a module calls ttnn, its parts and its operations, wherever in it that is said."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.split(".")[0] == "ttnn":
                    aliases[item.asname or "ttnn"] = item.name if item.asname else "ttnn"
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "ttnn":
            aliases |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = _full_name(node.value, aliases)
            if name is not None:
                aliases[node.targets[0].id] = name
    return aliases


def _full_name(node: Any, aliases: dict[str, str]) -> str | None:
    """Return the name in ttnn of an expression; None if it is none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, aliases)
        return None if owner is None else f"{owner}.{node.attr}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args:
        owner = _full_name(node.args[0], aliases)
        word = node.args[1] if len(node.args) > 1 else None
        if owner is not None and isinstance(word, ast.Constant) and isinstance(word.value, str):
            return f"{owner}.{word.value}"
    return None


def _python_files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no '{path}'; name Python files, or folders with some.")
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise UserError("there is no Python file; name some, or folders with some.")
    return files


def _exists(name: str) -> bool:
    """Tell whether this ttnn has a name, operation or not."""
    import ttnn

    value: Any = ttnn
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def _evidence(name: str, operations: Iterable[str]) -> str:
    return evidence(name) if name in operations else ABSENT
