"""Figures that only a document has: no code can tell a wrong one from a right one, so they are counted apart.

What others measured (seconds of a pipeline, two ways to run it), what tt_dit runs of a model, names that stand in
nothing but these, and the sizes of models whose class neither diffusers nor transformers has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from parity.published import NO_LIBRARY

_FIGURES = ("Figure", "Pair", "TtDit")
_FILES = tuple(f"refsim/models/{name}/spec.py" for name in NO_LIBRARY)


def figures_in(file: str, tree: ast.Module) -> Callable[[ast.AST], bool]:
    """Return what tells of a node of a file's syntax tree whether all numbers within it are such figures."""
    within = {id(inner) for node in ast.walk(tree) if _is_figure(node) for inner in ast.walk(node)}
    names = _only_within(tree, within)

    def is_one(node: ast.AST) -> bool:
        if _is_figure(node) or (isinstance(node, ast.Tuple) and node.elts and all(map(_is_figure, node.elts))):
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return file in _FILES or all(n.id in names for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        return isinstance(node, ast.keyword) and node.arg in names

    return is_one


def _is_figure(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FIGURES


def _only_within(tree: ast.Module, within: set[int]) -> set[str]:
    """The names, of parameters too, that are read in figures and nowhere else."""
    read: dict[str, list[bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.setdefault(node.id, []).append(id(node) in within)
    return {name for name, places in read.items() if all(places)} - set(_FIGURES)
