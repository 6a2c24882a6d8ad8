"""The schemas as a page for people: ``docs/reference_json.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refsim.files.tables import as_markdown

Schema = dict[str, Any]
_HEAD = """\
# What --json prints

Of every command that has it: the keys of its JSON, and those of the objects in it. `refsim schema time` prints one of
them as JSON Schema, for programs that check what they read. `schema` is a number that grows when a key is renamed or
changes its meaning; keys in *italics* are not always there. Made by `refsim schema --markdown`; a test compares it with
the code, and tests read real outputs by it.
"""


def markdown(schemas: dict[str, Schema]) -> str:
    """The page; schemas by command."""
    parts = [_HEAD]
    for command, schema in schemas.items():
        parts += [f"## refsim {command}", *_top(schema)]
        for name, described in schema.get("$defs", {}).items():
            parts += [f"### {name} of {command}", *_object(described)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _top(schema: Schema) -> Iterator[str]:
    """What an output is: an object, or a list or a choice of some."""
    yield from _object(schema) if "properties" in schema else [f"A {_type(schema)}."]


def _object(schema: Schema) -> Iterator[str]:
    """What an object is, and the table of its keys."""
    yield " ".join(schema.get("description", "").replace("``", "`").split())
    rows = []
    for key, value in schema["properties"].items():
        name = f"`{key}`" if key in schema.get("required", []) else f"*`{key}`*"
        rows.append((name, _type(value), value.get("description", "").replace("``", "`")))
    yield as_markdown(rows, ("key", "value", "what it says"))


def _type(schema: Schema) -> str:
    """The type of a value in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind, inner = schema.get("type", "any value"), schema.get("additionalProperties")
    if kind == "array":
        members = dict.fromkeys(map(_type, schema.get("prefixItems") or [schema.get("items", {})]))
        return f"list of {' and '.join(members)}"
    return f"{kind} of {_type(inner)}" if isinstance(inner, dict) else kind
