"""Where a file can be mutated, and the text that each mutation makes of it."""

from __future__ import annotations

import ast
import difflib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from parity.mutation.documents import figures_in, is_table
from parity.mutation.operators import OPERATORS
from parity.mutation.source import Statement, head


@dataclass(frozen=True)
class Mutation:
    """One change of one file.

    Attributes:
        file: its path from the folder of the packages.
        line: where the change begins, from 1.
        operator: one of :data:`parity.mutation.operators.OPERATORS`.
        before, after: the source of the changed expression.
        runs: the lines of which a case must execute one to run the change.
        start, end: the changed bytes of the file.
        of_document: it is a figure that only a document has, see :mod:`parity.mutation.documents`.
    """

    KEYS = ("file", "line", "operator", "of_document", "before", "after")

    file: str
    line: int
    operator: str
    before: str
    after: str
    runs: Statement
    start: int
    end: int = field(repr=False)
    of_document: bool = False

    @property
    def id(self) -> str:
        """``file:line operator``."""
        return f"{self.file}:{self.line} {self.operator}"

    def applied(self, source: str) -> str:
        """Return the text of the file with the change."""
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> str:
        """Return the changed lines as a unified diff without context."""
        lines = difflib.unified_diff(
            source.splitlines(), self.applied(source).splitlines(), self.file, self.file, lineterm="", n=0
        )
        return "\n".join(lines)


def mutations(file: str, source: str) -> list[Mutation]:
    """Return every mutation of a file, in order."""
    return list(_Walk(file, source).mutations())


def drawn(sources: dict[str, str], seed: int) -> Iterator[Mutation]:
    """Draw mutations of files, given by their text, in a random order.

    Every line has its turn before one has a second, and so has every operator of a line.
    """
    order = random.Random(seed)
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for file, source in sources.items():
        for mutation in mutations(file, source):
            by_line.setdefault((file, mutation.line), []).append(mutation)
    by_line = {line: _operators_in_turn(order, of_line) for line, of_line in by_line.items()}
    while by_line:
        lines = list(by_line)
        order.shuffle(lines)
        for line in lines:
            mutation = by_line[line].pop(0)
            if _is_program(mutation.applied(sources[mutation.file])):
                yield mutation
            if not by_line[line]:
                del by_line[line]


def _operators_in_turn(order: random.Random, of_line: list[Mutation]) -> list[Mutation]:
    order.shuffle(of_line)
    seen: Counter[str] = Counter()
    turns = []
    for mutation in of_line:
        turns.append((seen[mutation.operator], mutation))
        seen[mutation.operator] += 1
    return [mutation for _, mutation in sorted(turns, key=lambda turn: turn[0])]


def _is_program(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


_SILENT_CALLS = set(
    "compute collective activity stage progress loading reading writing warn simplefilter lap monotonic deprecated "
    "check super UserError PlacementError InvariantError cast isinstance TypeVar zip".split()
)
"""Calls that name something for traces, tell users, read a clock, speak to type checkers."""
_BOUND_LOOSELY = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp)
_TYPES = frozenset("tuple list dict Callable Literal type".split())
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class _Walk:
    """Goes through a syntax tree past what is no computation: types, texts, refusals, imports, ``__repr__``."""

    def __init__(self, file: str, source: str) -> None:
        self._file = file
        self._data = source.encode()
        self._tree = ast.parse(source)
        self._of_document = False
        self._is_of_document = figures_in(file, self._tree)
        self._tables: set[int] = set()  # tuples whose order says nothing
        self._offsets = [0]
        for line in self._data.splitlines(keepends=True):
            self._offsets.append(self._offsets[-1] + len(line))

    def mutations(self) -> Iterator[Mutation]:
        yield from self._children(self._tree, Statement(1, len(self._offsets)))

    def _children(self, node: ast.AST, runs: Statement) -> Iterator[Mutation]:
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, runs)

    def _visit(self, node: ast.AST, runs: Statement) -> Iterator[Mutation]:
        if _is_silent(node):
            return
        if is_table(self._file, node):
            self._tables.add(id(node.value if isinstance(node, ast.keyword) else node))
        if isinstance(node, ast.Assign) and _is_the_same_for_all(node):
            self._tables |= {id(target) for target in node.targets}
        if isinstance(node, ast.Compare):  # the order of what something is one of
            pairs = zip(node.ops, node.comparators, strict=True)
            self._tables |= {id(group) for how, group in pairs if isinstance(how, ast.In | ast.NotIn)}
        before = self._of_document
        self._of_document = self._of_document or self._is_of_document(node)
        yield from self._inside(node, runs)
        self._of_document = before

    def _inside(self, node: ast.AST, runs: Statement) -> Iterator[Mutation]:
        if isinstance(node, _FUNCTIONS):
            body = Statement(node.body[0].lineno, node.end_lineno or node.lineno)
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from self._visit(default, body)
            for statement in node.body:
                yield from self._visit(statement, body)
            return
        if isinstance(node, ast.Lambda):  # in a table, whose other lines run with others
            yield from self._of(node, runs)
            body = Statement(node.body.lineno, node.body.end_lineno or node.lineno)
            for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), node.body):
                yield from self._visit(part, body)
            return
        if isinstance(node, ast.stmt) and runs.first > 1 and not isinstance(node, ast.ClassDef):
            runs = head(node)
        if hasattr(node, "lineno"):
            yield from self._of(node, runs)
        if isinstance(node, ast.AnnAssign | ast.ClassDef | ast.ExceptHandler):  # one handler for all that it names
            inner = [node.value] if isinstance(node, ast.AnnAssign) else node.body
            for child in filter(None, inner):
                yield from self._visit(child, runs)
        else:
            yield from self._children(node, runs)

    def _of(self, node: ast.AST, runs: Statement) -> Iterator[Mutation]:
        start, end = self._span(node)
        before = self._data[start:end].decode()
        for name, operator in OPERATORS.items():
            if name == "reversed-order" and id(node) in self._tables:
                continue
            for changed in operator(node):
                after = ast.unparse(ast.fix_missing_locations(changed))
                if after == ast.unparse(node):
                    continue
                if isinstance(changed, _BOUND_LOOSELY):
                    after = f"({after})"
                line = self._data[:start].count(b"\n") + 1
                yield Mutation(self._file, line, name, before, after, runs, start, end, self._of_document)

    def _span(self, node: Any) -> tuple[int, int]:
        start = self._offsets[node.lineno - 1]
        end = self._offsets[node.end_lineno - 1]
        return start + node.col_offset, end + node.end_col_offset


def _is_silent(node: ast.AST) -> bool:
    """Whether there is nothing in a node that a case of a right program could tell from something else."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arg | ast.Global):
        return True
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        return True
    if isinstance(node, ast.If):
        *words, last = node.body  # words: what the sentence is made of
        guards = isinstance(last, ast.Raise) and not node.orelse
        guards = guards and all(isinstance(inner, ast.Assign | ast.Raise) for inner in words)
        return guards or ast.unparse(node.test) == "TYPE_CHECKING"
    if _reads_a_clock(node):
        return True
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in _SILENT_CALLS
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_silent(node.value)
    if isinstance(node, _FUNCTIONS):
        return node.name in ("__repr__", "__str__", "describe")
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return "__all__" in names or (isinstance(node.value, ast.Subscript) and _is_type(node.value))
    return False


def _is_the_same_for_all(node: ast.Assign) -> bool:
    """Whether several names are given one value: ``a, b = [], []``."""
    return isinstance(node.value, ast.Tuple) and len({ast.unparse(value) for value in node.value.elts}) == 1


def _reads_a_clock(node: ast.AST) -> bool:
    """Whether an expression is made of the seconds that a clock has."""
    inner = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) == "round" and node.args else node
    parts = (inner.left, inner.right) if isinstance(inner, ast.BinOp) else ()
    return any(ast.unparse(part) == "time.monotonic()" for part in parts)


def _is_type(node: ast.Subscript) -> bool:
    """Whether a subscript is a type such as ``tuple[Tensor, Tensor]``."""
    return isinstance(node.value, ast.Name) and node.value.id in _TYPES
