"""What ``--json`` of every command holds, as pydantic models: the reference and ``refsim schema`` are made of them.

What is a dataclass in the code is read from there; what a command puts together is listed in the modules here. An
object has all of its keys listed, but where its docstring says that more may stand beside them; the tests read real
outputs by these models and find a key that is missing here, or there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from refsim.cli.outputs import building, judging, measuring, predicting, running
from refsim.cli.outputs.base import Document, Number, Object

_ATTRIBUTE = re.compile(r"^ {4}(\w+(?:,\s+\w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_NAME = re.compile(r"\w+")
_MOST = 3
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def _object(kind: Any, *bases: type[Object], without: Sequence[str] = (), **more: Any) -> Any:
    """The fields of a dataclass as the keys of an object; ``more``: keys that have another form, or stand beside."""
    hints = {f.name: get_type_hints(kind)[f.name] for f in fields(kind) if f.name not in without} | more
    doc, _, attributes = _ROLE.sub(r"``\1``", inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    described: dict[str, str] = {}
    for names, text in _ATTRIBUTE.findall(attributes):
        several = _NAME.findall(names)  # what is said of many keys at once says little of each
        described |= dict.fromkeys(several, " ".join(text.split())) if len(several) <= _MOST else {}
    keys = {name: (hint, Field(description=described.get(name))) for name, hint in hints.items()}
    doc = " ".join(filter(None, [doc, *(base.__doc__ for base in bases)]))
    return create_model(kind.__name__, __base__=bases or (Object,), __doc__=doc, **keys)


class _AndMore(Object):
    """What a backend has to say beyond these keys stands beside them."""

    model_config = ConfigDict(extra="allow")


def _cases() -> Any:
    from parity.measure.records import Record

    names = [f.name for f in fields(Record)]
    return list[_object(Record, without=names[names.index("backend") :])]


def _record() -> Any:
    from parity.measure.records import Record

    return _object(Record, _AndMore, without=["extra", "reasons"], noise=dict[str, Number])


def _suite() -> Any:
    from parity.measure.records import SuiteRun

    return _object(SuiteRun, Document, records=list[_record()], counts=dict[str, int], exit_code=int)


def _compared() -> Any:
    from parity.report.compare import Comparison, Difference

    return _object(Comparison, Document, differences=list[_object(Difference)], exit_code=int)


def _changes() -> Any:
    from parity.report.diff import Diff, Row

    counts = {"worse": int, "exit_code": int, "sim_s": list[float]}
    return _object(Diff, without=["seconds"], rows=list[_object(Row)], **counts)


def _sensitivity() -> Any:
    from parity.run.sensitivity import Row

    keys: dict[str, Any] = {"goal": dict[str, float], "good": int, "rows": list[_object(Row, good=bool)]}
    return create_model("Sensitivity", __base__=Object, **{name: (hint, ...) for name, hint in keys.items()})


def _policies() -> Any:
    from parity.policies.policy_report import Verdict

    return list[_object(Verdict)]


def _turns() -> Any:
    from parity.report.history import Turn

    return create_model("Turns", __base__=Document, turns=(list[_object(Turn)], ...))


def _ttnn_verdict() -> Any:
    from tt_impl.harness.pytest.verdicts import Verdict

    return _object(Verdict, Document)


OUTPUTS: dict[str, Callable[[], Any]] = {
    "meshes": lambda: running.Meshes,
    "run": lambda: running.Forward | running.ForwardInTtnn | running.Pictures,
    "generate": lambda: running.Text,
    "explain": lambda: running.Layout,
    "time": lambda: predicting.Time | predicting.DoesNotFit,
    "plan": lambda: predicting.Plan,
    "calibrate": lambda: predicting.Calibration,
    "memory": lambda: building.Memory,
    "ops": lambda: building.Operations,
    "kernels": lambda: building.Kernels,
    "ttnn run": _ttnn_verdict,
    "ttnn diff": lambda: building.TtnnDiff,
    "bench accuracy": lambda: measuring.Profiled | measuring.Published,
    "bench hazards": lambda: measuring.HazardCosts,
    "bench values": lambda: measuring.ValueCosts,
    "bench sim": lambda: measuring.Simulations,
    "bench peers": lambda: measuring.Peers,
    "bench shift": lambda: measuring.Shift,
    "bench scale": lambda: measuring.Scale,
    "bench full-size": lambda: measuring.FullSize,
    "parity list": _cases,
    "parity run": _suite,
    "parity explain": _record,
    "parity compare": _compared,
    "parity diff": _changes,
    "parity calibrate": lambda: judging.Floors,
    "parity sensitivity": _sensitivity,
    "parity coverage": lambda: judging.Lines,
    "faults run": lambda: judging.Faults,
    "faults mutate": lambda: judging.Mutations,
    "faults recognise": lambda: judging.Recognised,
    "schedules run": lambda: list[judging.ScheduleOutcome],
    "schedules replay": lambda: judging.ScheduleOutcome,
    "schedules policy": _policies,
    "history show": lambda: judging.History,
    "history bisect": _turns,
}
"""The words of every command that takes ``--json``, and what makes its model."""


class _WithoutTitles(GenerateJsonSchema):
    """A key's title says no more than its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command of :data:`OUTPUTS` prints with ``--json``."""
    return TypeAdapter(OUTPUTS[command]()).json_schema(schema_generator=_WithoutTitles)
