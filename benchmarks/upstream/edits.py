"""Mistakes put into somebody's Python files while they are imported: edits of a function's syntax tree.

An edit says what is changed by structure (the second call of ``all_gather``, its keyword ``dim``), never by the text
around it, and it fails loudly where the file has no such place. The file itself is not touched: :func:`install` puts a
loader in front of Python's own that compiles the edited tree.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol


class NoSuchPlace(Exception):
    """The file has no function, call or assignment as an edit describes it."""


class Edit(Protocol):
    """One change of a function."""

    def apply(self, function: ast.AST) -> None:
        """Change ``function`` in place, or raise :class:`NoSuchPlace`."""


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _nth(matches: Sequence[Any], n: int, what: str) -> Any:
    if n >= len(matches):
        raise NoSuchPlace(f"{what}: number {n} of {len(matches)}")
    return matches[n]


def _in_order(function: ast.AST, kind: type) -> list[Any]:
    nodes = [node for node in ast.walk(function) if isinstance(node, kind)]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))


def _calls(function: ast.AST, name: str) -> list[ast.Call]:
    """Return calls of ``name`` in the order of the text; ``name`` may leave out what stands before a dot."""
    return [c for c in _in_order(function, ast.Call) if f".{ast.unparse(c.func)}".endswith(f".{name}")]


def _replace(function: ast.AST, old: ast.AST, new: ast.AST | None) -> None:
    """Put ``new`` where ``old`` is; None leaves out a statement."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return new if node is old else self.generic_visit(node)

    Replace().visit(function)
    for node in ast.walk(function):  # a block that lost its only statement
        if isinstance(node, ast.If | ast.For | ast.With | ast.FunctionDef) and not node.body:
            node.body.append(ast.Pass())


@dataclass(frozen=True)
class Keyword:
    """The keyword of the n-th such call gets another value; None takes it away."""

    call: str
    keyword: str
    value: str | None
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        call = _nth(_calls(function, self.call), self.n, self.call)
        place = _nth([k for k in call.keywords if k.arg == self.keyword], 0, f"{self.call}({self.keyword}=)")
        if self.value is None:
            call.keywords.remove(place)
        else:
            place.value = _expression(self.value)


@dataclass(frozen=True)
class Argument:
    """The positional argument of the n-th such call gets another value."""

    call: str
    index: int
    value: str
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        call = _nth(_calls(function, self.call), self.n, self.call)
        _nth(call.args, self.index, f"arguments of {self.call}")
        call.args[self.index] = _expression(self.value)


@dataclass(frozen=True)
class Unwrap:
    """The n-th such call is left out: in its place stands its first argument, or what its method was called on."""

    call: str
    n: int = 0
    receiver: bool = False

    def apply(self, function: ast.AST) -> None:
        call = _nth(_calls(function, self.call), self.n, self.call)
        _replace(function, call, call.func.value if self.receiver else _nth(call.args, 0, f"arguments of {self.call}"))


@dataclass(frozen=True)
class Assign:
    """The n-th assignment to a name (as ``ast`` writes it) gets another value; None leaves the statement out."""

    target: str
    value: str | None
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        assignments = [a for a in _in_order(function, ast.Assign) if ast.unparse(a.targets[0]) == self.target]
        place = _nth(assignments, self.n, f"{self.target} =")
        if self.value is None:
            _replace(function, place, None)
        else:
            place.value = _expression(self.value)


@dataclass(frozen=True)
class SwapTargets:
    """Two names of one unpacking change places."""

    first: str
    second: str

    def apply(self, function: ast.AST) -> None:
        for assign in _in_order(function, ast.Assign):
            names = {n.id: n for n in ast.walk(assign.targets[0]) if isinstance(n, ast.Name)}
            if self.first in names and self.second in names:
                names[self.first].id = self.second
                names[self.second].id = self.first
                return
        raise NoSuchPlace(f"{self.first}, {self.second} =")


@dataclass(frozen=True)
class Condition:
    """The n-th ``if`` whose test names something is always, or never, taken."""

    names: str
    value: bool
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        conditions = [i for i in _in_order(function, ast.If) if self.names in ast.unparse(i.test)]
        _nth(conditions, self.n, f"if {self.names}").test = ast.Constant(self.value)


@dataclass(frozen=True)
class Drop:
    """The n-th statement that is nothing but such a call is left out."""

    call: str
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        expressions = [e for e in _in_order(function, ast.Expr) if isinstance(e.value, ast.Call)]
        calls = [e for e in expressions if f".{ast.unparse(e.value.func)}".endswith(f".{self.call}")]
        _replace(function, _nth(calls, self.n, self.call), None)


@dataclass(frozen=True)
class Result:
    """The n-th ``return`` gives something else; ``{}`` in the value is what it gave."""

    value: str
    n: int = 0

    def apply(self, function: ast.AST) -> None:
        place = _nth([r for r in _in_order(function, ast.Return) if r.value is not None], self.n, "return")
        place.value = _expression(self.value.format(f"({ast.unparse(place.value)})"))


def find_function(tree: ast.AST, name: str) -> ast.AST:
    """Return the function ``Class.method``, ``function`` or ``function.inner`` of a module."""
    node = tree
    for part in name.split("."):
        inner = [
            n
            for n in ast.walk(node)
            if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part and n is not node
        ]
        node = _nth(inner, 0, name)
    return node


def edited(source: str, function: str, edit: Edit) -> str:
    """Return ``source`` after an ``edit`` of one of its functions.

    Raises:
        NoSuchPlace: the edit does not fit the text, or changes nothing.
    """
    tree = ast.parse(source)
    before = ast.unparse(tree)
    edit.apply(find_function(tree, function))
    after = ast.unparse(ast.fix_missing_locations(tree))
    if after == before:
        raise NoSuchPlace(f"the edit of {function} changes nothing")
    return after


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles what ``change`` makes of a file's text, past the cache of compiled files."""

    change: Callable[[str], str]

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.change(Path(self.path).read_text(encoding="utf-8")), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, file: str, change: Callable[[str], str]) -> None:
        self.file = file
        self.change = change

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not self.file.endswith(fullname.rpartition(".")[2] + ".py"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not (spec.origin or "").endswith("/" + self.file):
            return None
        loader = _Loader(fullname, spec.origin)
        loader.change = self.change
        spec.loader = loader
        return spec


def install(file: str, function: str, edit: Edit) -> None:
    """Edit ``function`` of ``file`` (the end of its path) whenever this process imports it."""
    sys.meta_path.insert(0, _Finder(file, lambda source: edited(source, function, edit)))
