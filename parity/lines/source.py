"""The statements of a file that a right program may execute: those in functions, refusals and docstrings left out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """One statement: its lines from ``first`` to ``last``, of an ``if``, ``for`` or ``with`` those of its head."""

    first: int
    last: int

    def is_in(self, lines: Iterable[int]) -> bool:
        """Whether one of the lines is the statement's."""
        return any(self.first <= line <= self.last for line in lines)


def head(node: ast.stmt) -> Statement:
    """The lines of a statement without those of the statements in it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    inner = body[0] if body else None
    first_inner = getattr(inner, "lineno", None) or getattr(getattr(inner, "pattern", None), "lineno", None)
    last = (node.end_lineno or node.lineno) if first_inner is None else max(node.lineno, first_inner - 1)
    return Statement(node.lineno, last)


def statements(source: str) -> list[Statement]:
    """The statements in the functions of a file, in order.

    Left out are docstrings, ``...``, ``pass``, declarations, and ``raise``: no case of a right program is refused.
    Lines outside functions run when the file is imported, which says nothing.
    """
    found = [s for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTIONS) for s in _of(node.body)]
    return sorted(set(found), key=lambda s: (s.first, s.last))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT = (ast.Pass, ast.Global, ast.Nonlocal, ast.Raise)


def _of(body: list[ast.stmt]) -> Iterator[Statement]:
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        declared = isinstance(node, ast.AnnAssign) and node.value is None
        if not is_text and not declared and not isinstance(node, _SILENT):
            yield head(node)
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.stmt):
                    yield from _of([inner])
                elif isinstance(inner, (ast.ExceptHandler, ast.match_case)):
                    yield from _of(inner.body)
