"""Figures that only a document has: no code can tell a wrong one from a right one, so they are counted apart.

What others measured (seconds of a pipeline, two ways to run it), what tt_dit runs of a model, and the sizes of models
whose class neither diffusers nor transformers has.
"""

from __future__ import annotations

import ast

from parity.published import NO_LIBRARY

_FIGURES = ("Figure", "Pair", "TtDit")
_FILES = tuple(f"refsim/models/{name}/spec.py" for name in NO_LIBRARY)


def are_figures(file: str, node: ast.AST) -> bool:
    """Whether all numbers within a node of a file's syntax tree are such figures."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FIGURES:
        return True
    return file in _FILES and isinstance(node, ast.Assign)
