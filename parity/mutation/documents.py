"""Figures that only a document has: no code can tell a wrong one from a right one, so they are counted apart.

What others measured (seconds of a pipeline, two ways to run it), what tt_dit runs of a model, names that stand in
nothing but these, the sizes of models whose class neither diffusers nor transformers has, what a model is asked for
where that is known to differ from its pipeline in diffusers (steps, size of picture); what a figure stands for that
leaves a field out. Published configurations are data (``published.json``), of which nothing is drawn.

Some tables have no order: figures, names of classes, published models (kind ``published`` judges which is the first).
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from parity.cases.oracles import oracle_of
from parity.cases.published import NO_LIBRARY
from refsim.models.registry import builtin

_FIGURES = ("Figure", "Pair", "Execution", "TtDit")
_TABLES = ("class_names", "published")
_ASKED = {"steps": "steps", "sizes": "size", "experts": "experts"}
"""Keywords of a published model and what ``Oracle.other_than_pipeline`` calls them."""
_FILES = tuple(f"refsim/models/{name}/spec.py" for name in NO_LIBRARY)


def figures_in(file: str, tree: ast.Module) -> Callable[[ast.AST], bool]:
    """Return what tells of a node of a file's syntax tree whether all numbers within it are such figures."""
    within = {id(inner) for node in ast.walk(tree) if _is_figure(node) for inner in ast.walk(node)}
    names = _only_within(tree, within)
    asked = {id(keyword) for node in ast.walk(tree) for keyword in _asked_otherwise(node)}

    def is_one(node: ast.AST) -> bool:
        if id(node) in asked:
            return True
        if _is_figure(node) or (isinstance(node, ast.Tuple) and node.elts and all(map(_is_figure, node.elts))):
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return file in _FILES or all(n.id in names for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        return isinstance(node, ast.keyword) and node.arg in names

    return is_one


def is_table(file: str, node: ast.AST) -> bool:
    """Whether a keyword of a model's spec gives a tuple whose order says nothing, or a tuple is one of figures."""
    if not (file.startswith("refsim/models/") and file.endswith(("/spec.py", "/figures.py"))):
        return False
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_figure, node.elts))
    return isinstance(node, ast.keyword) and node.arg in _TABLES and isinstance(node.value, ast.Tuple)


def _asked_otherwise(node: ast.AST) -> list[ast.keyword]:
    """Return what a call that makes a published model gives otherwise than its pipeline."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return []
    name = str(node.args[0].value)
    classes = {published.name: published.class_name for spec in builtin() for published in spec.published}
    known = oracle_of(classes[name]).other_than_pipeline.get(name, ()) if name in classes else ()
    return [keyword for keyword in node.keywords if _ASKED.get(keyword.arg or "") in known]


def _is_figure(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):  # its defaults
        return node.name in _FIGURES
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FIGURES


def _only_within(tree: ast.Module, within: set[int]) -> set[str]:
    """Return the names, of parameters too, that are read in figures and nowhere else."""
    read: dict[str, list[bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.setdefault(node.id, []).append(id(node) in within)
    return {name for name, places in read.items() if all(places)} - set(_FIGURES)
