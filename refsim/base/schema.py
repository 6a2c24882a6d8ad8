"""JSON files of checkpoints and pipelines: read as objects, their values checked by pydantic, one sentence if wrong.

What a key must hold is given once, by the annotation of a frozen dataclass:

    @dataclass(frozen=True)
    class Config:
        num_heads: Size = 8
        eps: Positive = 1e-6
        patch_size: tuple[Size, Size, Size] = (1, 2, 2)

    read(Config, {"num_heads": 4, "_class_name": "X"})      Config(num_heads=4); what it does not know is left alone
    read(Config, {"patch_size": 2})                         UserError: config.json has patch_size = 2; it must be ...
"""

from __future__ import annotations

import json
import reprlib
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AllowInfNan, Field, Strict, TypeAdapter, ValidationError

from refsim.base.errors import UserError

_MOST_JSON_BYTES = 64 << 20
_LARGEST = 2**31 - 1
"""No size, count or id of a model is larger; what is, would overflow somewhere below."""
_FP32_MAX = 3.4e38

Flag = Annotated[bool, Strict(), "true or false"]
Text = Annotated[str, Strict(), "a text"]
Count = Annotated[int, Strict(), Field(ge=0, le=_LARGEST), "a whole number from 0 on"]
Size = Annotated[int, Strict(), Field(ge=1, le=_LARGEST), "a whole number above 0"]
Even = Annotated[int, Strict(), Field(ge=2, le=_LARGEST, multiple_of=2), "an even number above 0"]
Layers = Annotated[int, Strict(), Field(ge=1, le=10_000), "a whole number from 1 to 10000"]
Real = Annotated[float, Strict(), AllowInfNan(False), Field(ge=-_FP32_MAX, le=_FP32_MAX), "a finite number"]
Positive = Annotated[float, Strict(), AllowInfNan(False), Field(gt=0, le=_FP32_MAX), "a number above 0"]
Fraction = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0, le=1), "a number from 0 to 1"]

Kind = TypeVar("Kind")


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        UserError: the file cannot be read, is larger than 64 MiB, or holds anything else.
    """
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise ValueError(f"larger than {_MOST_JSON_BYTES >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as e:
        raise UserError(f"'{path}' is not valid JSON (nested too deeply).") from e
    except OSError as e:
        raise UserError(f"'{path}' cannot be read ({e.strerror or e}).") from e
    except ValueError as e:
        raise UserError(f"'{path}' is not valid JSON ({e}).") from e
    if not isinstance(value, dict):
        raise UserError(f"'{path}' does not hold a JSON object.")
    return value


def read(
    kind: type[Kind], values: dict[str, Any], where: str = "config.json", *, may_be_null: tuple[str, ...] = ()
) -> Kind:
    """Return the dataclass ``kind`` with those of ``values`` that it has fields for.

    Args:
        where: what the values stand in, as the sentence is to call it.
        may_be_null: keys for which null is as good as no key: the default counts.

    Raises:
        UserError: a value that its annotation does not allow.
    """
    values = {name: value for name, value in values.items() if value is not None or name not in may_be_null}
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as e:
        name = str(e.errors(include_url=False, include_context=False)[0]["loc"][0])
        hint = get_type_hints(kind, include_extras=True)[name]
        if name not in values:
            raise UserError(f"{where} lacks {name}; it must be {words(hint)}.") from e
        raise UserError(f"{where} has {name} = {short(values[name])}; it must be {words(hint)}.") from e


def prepare(kind: Any) -> None:
    """Make what :func:`read` and :func:`check` need of an annotation, once for all processes that are forked later."""
    _adapter(kind)


def check(kind: Any, value: Any, name: str, where: str = "config.json") -> Any:
    """Return one value, which must be what the annotation ``kind`` allows; ``UserError`` names it otherwise."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as e:
        raise UserError(f"{where} has {name} = {short(value)}; it must be {words(kind)}.") from e


def is_a(kind: Any, value: Any) -> bool:
    """Whether a value is what the annotation ``kind`` allows."""
    try:
        _adapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def check_fixed(values: dict[str, Any], fixed: dict[str, Any], where: str = "config.json") -> None:
    """Raise ``UserError`` for a key of ``fixed`` that has another value, or one of another type."""
    for name, wanted in fixed.items():
        value = values.get(name, wanted)
        if value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            raise UserError(f"{where} has {name} = {short(value)}; {wanted!r} is supported.")


def short(value: Any) -> str:
    """Return a value as Python writes it, its middle left out if it is long."""
    try:
        return _short.repr(value)
    except ValueError:  # Python does not write integers of some thousand digits
        return f"a value of type {type(value).__name__}"


def words(kind: Any) -> str:
    """Return what an annotation allows in words: ``a list of 3, each a whole number above 0``."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        phrases = [word for word in arguments[1:] if isinstance(word, str)]
        return phrases[0] if phrases else words(arguments[0])
    if origin is Literal:
        return " or ".join(_literal(value) for value in arguments)
    if origin is tuple:
        several = "a list" if Ellipsis in arguments else f"a list of {len(arguments)}"
        return f"{several}, each {words(arguments[0])}"
    if arguments:
        return " or ".join(words(argument) for argument in arguments)
    return {NoneType: "null", dict: "an object"}.get(kind, getattr(kind, "__name__", str(kind)))


@lru_cache(maxsize=128)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _literal(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_short = reprlib.Repr()
_short.maxstring = 60
_short.maxother = 60
_short.maxlong = 60
_short.maxlist = 8
_short.maxtuple = 8
_short.maxdict = 8
