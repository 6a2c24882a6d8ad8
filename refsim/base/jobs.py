"""A job, as every device backend is handed it: a program, the options of its run and its own arguments, all in JSON.

refsim's ranks get it over sockets, a process of ttnn finds it in its folder; both read it, find the program and tell of
a failure with what stands here.
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from refsim.base.errors import CommError, DivergedError, RefsimError, UserError
from refsim.base.options import RunOptions


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        program: ``module:function``.
        options: how it is run, and where.
        arguments: JSON values by name, the program's own.
        folder: what relative paths among them start from, for ranks forked in another folder; empty if it was deleted.
    """

    program: str
    options: RunOptions
    arguments: dict[str, Any]
    folder: str = field(default_factory=_current_folder)

    def to_json(self) -> dict[str, Any]:
        fields = {"program": self.program, "arguments": self.arguments, "folder": self.folder}
        return fields | {"options": self.options.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Job:
        return cls(value["program"], RunOptions.from_json(value["options"]), value["arguments"], value["folder"])

    def enter_folder(self) -> None:
        """Have this process look up relative paths where the caller does."""
        with suppress(OSError):  # a folder that is gone has none of the files either
            os.chdir(self.folder)


def named(reference: str) -> Any:
    """Return what ``module:name`` stands for.

    Raises:
        ImportError: the module cannot be imported.
        AttributeError: it has nothing of that name.
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def injected(fault: str) -> AbstractContextManager[Any]:
    """Return the context manager that ``RunOptions.fault`` stands for, one that does nothing where there is none."""
    if not fault:
        return nullcontext()
    reference, _, arguments = fault.partition(" ")
    return named(reference)(**json.loads(arguments or "{}"))


def failure(error: BaseException) -> dict[str, Any]:
    """Return the answer of a job that raised.

    ``kind`` is ``user`` for a mistake of the user's, ``comm`` for a transfer that failed (``peer`` is the other rank,
    ``timed_out`` whether it was waited for in vain), ``diverged`` for a call unlike ``peer``'s, else ``error``.
    """
    kinds = {CommError: "comm", UserError: "user", DivergedError: "diverged"}
    kind = next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "error")
    message = error.with_flags if isinstance(error, RefsimError) else f"{type(error).__name__}: {error}"
    return {
        "ok": False,
        "kind": kind,
        "message": message,
        "peer": getattr(error, "peer", None),
        "timed_out": getattr(error, "timed_out", False),
        "traceback": "".join(traceback.format_exception(error)),
    }
