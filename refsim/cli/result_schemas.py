"""What ``--json`` of every command holds, as JSON Schema and as a page for people, read from the results' classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from refsim.base.jobs import named
from refsim.files.keys import Document, Key, described, keys
from refsim.files.tables import as_markdown

_COMMANDS = "refsim.cli.commands."
_TIMING = "refsim.timing.report."
RESULTS = {
    "meshes": f"{_COMMANDS}meshes:Meshes",
    "run": f"{_COMMANDS}run:Forward | {_COMMANDS}run:ForwardInTtnn | {_COMMANDS}pipeline:Pictures",
    "generate": f"{_COMMANDS}generate:Text",
    "explain": f"{_COMMANDS}explain_layout:Layout",
    "numerics predict": "parity.rounding.predict:Prediction",
    "numerics judge": "parity.rounding.verdict:Verdict",
    "numerics ingest": "parity.rounding.ingested:Ingested",
    "numerics drift": "parity.rounding.drift:Drift",
    "numerics bounds": "parity.rounding.bounds:Bounds",
    "numerics hidden": "parity.faults.hidden:Hidden",
    "numerics published": "parity.rounding.published:Table",
    "time": f"{_TIMING}documents:Time | {_TIMING}documents:DoesNotFit",
    "plan": f"{_TIMING}documents:Plan",
    "calibrate": "refsim.timing.fit.calibrate:Fit",
    "memory": "tt_impl.reports.memory:Memory",
    "ops": "tt_impl.reports.ops:Operations",
    "kernels": "tt_impl.kernels.check:Kernels",
    "ttnn run": "tt_impl.harness.pytest.verdicts:Verdict",
    "ttnn coverage": "tt_impl.harness.reports.coverage:Coverage",
    "ttnn diff": "tt_impl.harness.comparison.diff:Diff",
    "bench accuracy": f"benchmarks.trace_accuracy:Profiled | {_TIMING}ranking:Ranking",
    "bench hazards": "benchmarks.hazards:HazardCosts",
    "bench values": "tt_impl.harness.reports.speed:ValueCosts",
    "bench sim": "benchmarks.sim:Simulations",
    "bench peers": "benchmarks.peers:Peers",
    "bench shift": "benchmarks.shift:Shift",
    "bench scale": "benchmarks.scale:Scale",
    "bench full-size": "benchmarks.full_size:FullSizeDocument",
    "parity list": "parity.measure.records:Configuration",
    "parity run": "parity.measure.records:SuiteRun",
    "parity why": "parity.measure.records:Record",
    "parity compare": "parity.report.compare:Comparison",
    "parity diff": "parity.report.diff:Diff",
    "parity floors": "parity.run.calibrate:Floors",
    "parity sensitivity": "parity.run.sensitivity:Sensitivity",
    "parity coverage": "parity.mutation.coverage:Lines",
    "faults run": "parity.faults.summary:Faults",
    "faults mutate": "parity.mutation.score:Mutations",
    "faults recognise": "parity.cli.faults:Recognised",
    "schedules run": "parity.run.schedules:ScheduleOutcome",
    "schedules replay": "parity.run.schedules:ScheduleOutcome",
    "schedules policy": "parity.policies.verdicts:Verdict",
    "history show": "parity.report.history:History",
    "history bisect": "parity.report.history:Turns",
}
"""The words of every command that takes ``--json``, and the class of what it prints; several with `` | ``."""
LISTS = ("parity list", "schedules run", "schedules policy")
"""Commands that print a list of such."""
Schema = dict[str, Any]


def result_of(command: str) -> Any:
    """Return the type of what a command of :data:`RESULTS` prints with ``--json``, made of pydantic's models."""
    several = [model(named(name)) for name in RESULTS[command].split(" | ")]
    union: Any = Union[tuple(several)]  # noqa: UP007
    return list[union] if command in LISTS else union


@cache
def model(kind: type) -> type[BaseModel]:
    """Return a pydantic model of the JSON of a dataclass, which knows all of its keys."""
    known = list(_spread(kind))
    if issubclass(kind, Document):
        known.insert(0, Key("schema", int, says="Of the form; it grows when a key is renamed or changes its meaning."))
    fields: dict[str, Any] = {}
    for number, key in enumerate(key for key in known if key.kind != "beside"):
        # What may be missing has no default, which would stand in the schema.
        default = {"default_factory": lambda: None} if key.kind == "sometimes" else {}
        hint = modelled(key.form, there=key.kind == "sometimes")
        fields[f"key_{number}"] = (hint, Field(alias=key.name, description=key.says, **default))
    more = any(key.kind == "beside" for key in known)
    config = ConfigDict(extra="allow" if more else "forbid", strict=True)
    return create_model(kind.__name__, __config__=config, __doc__=described(kind)[0] or None, **fields)


def _spread(kind: type) -> Iterator[Key]:
    """Return the keys of a dataclass, those of objects whose items are among them in their place."""
    for key in keys(kind).values():
        of = get_args(key.form)[0] if key.kind == "beside" else None
        if is_dataclass(of):
            yield from _spread(of)
        else:
            yield key


def modelled(hint: Any, *, there: bool = False) -> Any:
    """Return a type with models in place of its dataclasses; ``there``: without None, which leaves the key out.

    A class of a package above is a text, ``module:Class`` or ``module:Class | None``.
    """
    if isinstance(hint, str):
        name, _, none = hint.partition(" | ")
        return model(named(name)) | None if none else model(named(name))
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return model(hint)
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin is Annotated:
        forms = (note.form for note in parts[1:] if isinstance(note, Key) and note.form)
        return modelled(next(forms, parts[0]), there=there)
    if origin in (Union, UnionType):
        return Union[tuple(modelled(part) for part in parts if not (there and part is type(None)))]  # noqa: UP007
    if origin is None or origin is Literal:
        return hint
    return origin[tuple(part if part is ... else modelled(part) for part in parts)]


class _WithoutTitles(GenerateJsonSchema):
    """A key's title says no more than its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(command: str) -> Schema:
    """Return the JSON Schema of what a command of :data:`RESULTS` prints with ``--json``."""
    return TypeAdapter(result_of(command)).json_schema(schema_generator=_WithoutTitles)


_HEAD = """\
# What --json prints

Of every command that has it: the keys of its JSON, and those of the objects in it. `refsim schema time` prints one of
them as JSON Schema, for programs that check what they read. `schema` is a number that grows when a key is renamed or
changes its meaning; keys in *italics* are not always there. Made by `refsim schema --markdown` of the classes of the
results; tests read real outputs by it.
"""


def markdown() -> str:
    """Return the schemas of all commands as a page for people."""
    parts = [_HEAD]
    for command in RESULTS:
        schema = schema_of(command)
        parts += [f"## refsim {command}", *_top(schema)]
        for name, of in schema.get("$defs", {}).items():
            parts += [f"### {name} of {command}", *_object(of)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _top(schema: Schema) -> Iterator[str]:
    """Yield what an output is: an object, or a list or a choice of some."""
    yield from _object(schema) if "properties" in schema else [f"A {_type(schema)}."]


def _object(schema: Schema) -> Iterator[str]:
    """Yield what an object is, and the table of its keys."""
    yield " ".join(schema.get("description", "").replace("``", "`").split())
    rows = []
    for key, value in schema["properties"].items():
        name = f"`{key}`" if key in schema.get("required", []) else f"*`{key}`*"
        rows.append((name, _type(value), value.get("description", "").replace("``", "`")))
    yield as_markdown(rows, ("key", "value", "what it says"))


def _type(schema: Schema) -> str:
    """Return the type of a value in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any value")
    inner = schema.get("additionalProperties")
    if kind == "array":
        members = dict.fromkeys(map(_type, schema.get("prefixItems") or [schema.get("items", {})]))
        return f"list of {' and '.join(members)}"
    return f"{kind} of {_type(inner)}" if isinstance(inner, dict) else kind
