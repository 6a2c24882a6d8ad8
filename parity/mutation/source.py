"""The statements of a file that a run may execute: those in functions, `raise` and docstrings left out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Statement:
    """One statement: its lines from ``first`` to ``last``, of an ``if``, ``for`` or ``with`` those of its head.

    Attributes:
        refuses: it stands in a branch that nothing leaves but the ``raise`` at its end.
    """

    first: int
    last: int
    refuses: bool = False

    def is_in(self, lines: Iterable[int]) -> bool:
        """Whether one of the lines is the statement's."""
        return any(self.first <= line <= self.last for line in lines)


def head(node: ast.stmt) -> Statement:
    """Return the lines of a statement without those of the statements in it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    inner = body[0] if body else None
    first_inner = getattr(inner, "lineno", None) or getattr(getattr(inner, "pattern", None), "lineno", None)
    last = (node.end_lineno or node.lineno) if first_inner is None else max(node.lineno, first_inner - 1)
    return Statement(node.lineno, last)


def statements(source: str) -> list[Statement]:
    """Return the statements in the functions of a file, in order.

    Left out are docstrings, ``...``, ``pass``, declarations, and ``raise``: no case of a right program is refused.
    Lines outside functions run when the file is imported, which says nothing.
    """
    every = [s for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTIONS) for s in _of(node.body)]
    return sorted(set(every), key=lambda s: (s.first, s.last))


def outside_functions(source: str) -> list[int]:
    """Return the first line of every statement that runs on import, and those of functions called there."""
    body = ast.parse(source).body
    called = {
        node.func.id
        for statement in body
        if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    functions = [f for f in body if isinstance(f, _FUNCTIONS) and f.name in called]
    return [node.lineno for node in (*body, *(s for f in functions for s in f.body))]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT = (ast.Pass, ast.Global, ast.Nonlocal, ast.Raise)
_EXITS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)


def _of(body: list[ast.stmt], refuses: bool = False) -> Iterator[Statement]:
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        declared = isinstance(node, ast.AnnAssign) and node.value is None
        if not is_text and not declared and not isinstance(node, _SILENT):
            yield replace(head(node), refuses=refuses)
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for block, is_branch in _blocks(node):
                yield from _of(block, refuses or (is_branch and _only_raises(block)))


def _blocks(node: ast.AST) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield the blocks of a statement, and whether each is one that a run may pass by."""
    for _, value in ast.iter_fields(node):
        inner = value if isinstance(value, list) else []
        if inner and isinstance(inner[0], ast.stmt):
            yield inner, isinstance(node, (ast.If, ast.ExceptHandler, ast.match_case))
        for part in inner:
            if isinstance(part, (ast.ExceptHandler, ast.match_case)):
                yield from _blocks(part)


def _only_raises(block: list[ast.stmt]) -> bool:
    """Whether nothing leaves a block but the ``raise`` at its end."""
    inner = (x for statement in block for x in ast.walk(statement))
    return isinstance(block[-1], ast.Raise) and not any(isinstance(x, _EXITS) for x in inner)
