"""The product as a tree of modules and their imports, read from syntax trees; nothing is imported for it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").is_file() and p.name != "tests"))
"""The packages at the root of the repository: what a wheel holds."""


@dataclass(frozen=True)
class Import:
    """One imported name: ``from a import b`` has the name ``a.b``; ``lazy`` says that it stands in a function."""

    name: str
    lazy: bool


def files(*packages: str) -> list[Path]:
    """Every Python file of the packages, by default of the whole product."""
    return sorted(path for package in packages or PRODUCT for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> tuple[str, bool]:
    """(dotted name, is a package) of a file under ``ROOT``."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


def imports(module: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Everything a module imports, in functions and under ``if TYPE_CHECKING`` too, by any of Python's ways."""
    found: list[Import] = []
    package = module.split(".") if is_package else module.split(".")[:-1]

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found.extend(Import(f"{origin}.{alias.name}", lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                found.append(Import(str(node.args[0].value), lazy))
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(ast.parse(source), False)
    return found


def graph(sources: dict[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Which module imports which, among the modules given as name -> (source, is a package).

    A lazy import counts where both modules lie in the same package: it hides a circle there, whereas one that goes
    from the command line down to a package it need not load is how the layers are meant to be used.
    """
    edges: dict[str, set[str]] = {module: set() for module in sources}
    for module, (source, is_package) in sources.items():
        for found in imports(module, source, is_package=is_package):
            target = found.name
            while target and target not in sources:
                target = target.rpartition(".")[0]
            if target in ("", module) or (found.lazy and _package(module, sources) != _package(target, sources)):
                continue
            edges[module].add(target)
    return edges


def _package(module: str, sources: dict[str, tuple[str, bool]]) -> str:
    return module if sources[module][1] else module.rpartition(".")[0]


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, sorted (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return sorted(found)


def sources(*packages: str) -> dict[str, tuple[str, bool]]:
    """Name -> (source, is a package) of every module of the packages, by default of the whole product."""
    named = {path: module_name(path) for path in files(*packages)}
    return {name: (path.read_text(encoding="utf-8"), is_package) for path, (name, is_package) in named.items()}
