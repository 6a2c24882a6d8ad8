"""What installed packages add to refsim: models and meshes, through entry points; no fork is needed.

A package says in its ``pyproject.toml``

    [project.entry-points."refsim.models"]
    toy = "toy.spec:SPEC"

and the object is found under every name that it claims. A package that cannot be loaded, or claims a name that is
taken, harms no one who does not ask for it: what it is about stands in :attr:`Catalog.problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar

from refsim.base.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Catalog(Generic[T]):
    """Objects by the names they claim.

    Attributes:
        all: the project's own, then those of packages.
        contested: names that were claimed twice, and a sentence about each.
        problems: one clause for every entry point that adds nothing, which names the package.
    """

    all: tuple[T, ...]
    by_name: dict[str, T]
    contested: dict[str, str]
    problems: tuple[str, ...]

    def find(self, name: str) -> T | None:
        """Return the object that claims ``name``; ``UserError`` if two do."""
        if name in self.contested:
            raise UserError(self.contested[name])
        return self.by_name.get(name)

    @property
    def notes(self) -> str:
        """Return what to append to an error about a name that was not found, with a leading semicolon, or nothing."""
        return "".join(f"; {problem}" for problem in self.problems)


def catalog(builtin: Iterable[T], group: str, kind: type[T], claims: Callable[[T], Iterable[str]]) -> Catalog[T]:
    """Return the project's ``builtin`` objects and those that packages register in ``group``, instances of ``kind``."""
    values: list[T] = []
    by_name: dict[str, T] = {}
    owners: dict[str, str] = {}
    contested: dict[str, str] = {}
    problems: list[str] = []

    def add(value: T, owner: str) -> str:
        taken = [name for name in dict.fromkeys(claims(value)) if name in owners]
        if taken:
            clash = f"{owner} and {owners[taken[0]]} both register '{taken[0]}'"
            contested.update(dict.fromkeys(taken, f"{clash}; rename one of them."))
            return clash
        values.append(value)
        by_name.update(dict.fromkeys(claims(value), value))
        owners.update(dict.fromkeys(claims(value), owner))
        return ""

    for value in builtin:
        if clash := add(value, "refsim"):
            raise ValueError(clash)
    for entry in sorted(metadata.entry_points(group=group), key=lambda e: (e.name, e.value)):
        package = f"package '{entry.dist.name}'" if entry.dist else "a package"
        value, problem = _load(entry, kind)
        problem = f"{package} cannot register '{entry.name}' ({problem})" if problem else add(value, package)
        if problem:
            problems.append(problem)
    return Catalog(tuple(values), by_name, contested, tuple(problems))


def _load(entry: metadata.EntryPoint, kind: type) -> tuple[Any, str]:
    """Return the object of an entry point, or what is wrong with it."""
    try:
        value = entry.load()
    except Exception as error:  # whatever a stranger's module raises must not end a command that needs none of it
        return None, f"{entry.value}: {type(error).__name__}: {' '.join(str(error).split())}"
    if not isinstance(value, kind):
        return None, f"{entry.value} is an object of {type(value).__name__}, not of {kind.__name__}"
    return value, ""
