"""Results of commands are dataclasses: their fields are the keys of the JSON, of its schema and of a line of CSV.

    @dataclass
    class Range(Document):                     a Document says its ``schema``, the version of its form, first
        low: float                             a key of its own name
        op: Annotated[str, Key("class")]       a key of another name
        share: Sometimes[float]                None leaves the key out
        notes: Beside[dict[str, Any]]          its items stand among the keys
        KEYS = ("high", "low")                 these alone, in this order; properties can be among them

What a key says is what the docstring says of it under ``Attributes:``, or that of the property.
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """How a field stands in JSON.

    Attributes:
        name: of the key, if it is not that of the field.
        form: type of its value there, if it is not that of the field.
        kind: ``always`` there, ``sometimes`` (None leaves it out), or ``beside``: its items are keys.
        says: what it is.
    """

    name: str = ""
    form: Any = None
    kind: Literal["always", "sometimes", "beside"] = "always"
    says: str | None = None


Sometimes = Annotated[T | None, Key(kind="sometimes")]
Beside = Annotated[T, Key(kind="beside")]
Measured = Annotated[float, Key(form=float | Literal["nan", "inf", "-inf"] | None)]
"""May be missing (null in JSON), or not finite, which is a word there."""


class Document:
    """What a command prints by itself; ``SCHEMA`` grows when a key is renamed or changes its meaning."""

    SCHEMA: ClassVar[int] = 1


@dataclass
class Loose(Document):
    """A file of keys that nobody promises."""

    keys: Beside[dict[str, Any]]


_ATTRIBUTE = re.compile(r"^ {4}(\w+(?:,\s+\w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_MOST = 3
"""What is said of more keys at once says little of each."""
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def described(kind: type) -> tuple[str, dict[str, str]]:
    """Return what the docstring of a class says of it, and of its attributes."""
    doc = inspect.cleandoc(kind.__doc__ or "") if "__doc__" in vars(kind) else ""
    text, _, attributes = _ROLE.sub(r"``\1``", doc).partition("\n\nAttributes:\n")
    says: dict[str, str] = {}
    for names, what in _ATTRIBUTE.findall(attributes):
        several = re.findall(r"\w+", names)
        says |= dict.fromkeys(several, " ".join(what.split())) if len(several) <= _MOST else {}
    return "" if text.startswith(f"{kind.__name__}(") else text, says  # dataclasses without one get their signature


@cache
def keys(kind: type) -> dict[str, Key]:
    """Return the keys of a dataclass by field or property, in their order, with ``name`` and ``form`` filled in."""
    table: dict[str, Key] = {}
    hints = get_type_hints(kind, include_extras=True)
    says: dict[str, str | None] = {}
    for base in reversed(kind.__mro__):
        says |= described(base)[1]
    for name in getattr(kind, "KEYS", None) or [field.name for field in fields(kind)]:
        if name not in hints:
            get = getattr(kind, name).fget
            hints[name] = get_type_hints(get, include_extras=True)["return"]
            says[name] = inspect.cleandoc(get.__doc__) if get.__doc__ else None
        key = next((note for note in getattr(hints[name], "__metadata__", ()) if isinstance(note, Key)), Key())
        table[name] = Key(key.name or name, key.form or hints[name], key.kind, says.get(name))
    return table


def as_json(value: Any) -> Any:
    """Return a result as JSON values, and so what lists and dictionaries hold; what is not finite becomes a word."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not is_dataclass(value):
        return value
    record: dict[str, Any] = {"schema": value.SCHEMA} if isinstance(value, Document) else {}
    for name, key in keys(type(value)).items():
        one = getattr(value, name)
        if key.kind == "beside":
            record |= as_json(one)
        elif one is not None or key.kind != "sometimes":
            record[key.name] = as_json(one)
    return record
