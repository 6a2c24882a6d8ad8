"""Keys of config.json that refsim does not read: another value that changes the library's answer has to be refused.

    config.json with another value of one key --> refsim refuses it                              right
                                               --> refsim takes it, the library's answer stays    right
                                               --> refsim takes it, the library answers otherwise overlooked

Nothing runs on ranks. The case's ``model`` is a tiny model; its kind says which inputs that has.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case
from parity.cases.linked import linked, rewrite
from parity.cases.model_folders import load_oracle
from parity.cases.oracles.library import library_defaults
from parity.cases.pipelines import quietly
from parity.kinds.base import HostKind, Metrics
from parity.measure.thresholds import Threshold
from refsim.base.errors import UserError
from refsim.models.registry import get
from refsim.runtime.launch import Result

_ACTIVATIONS = {"silu": "gelu", "gelu": "silu", "gelu_new": "relu", "gelu-approximate": "gelu", "quick_gelu": "gelu"}
_HANDED_OVER = ("return_dict", "output_router_logits")
"""Keys of the form an answer comes in."""


class UnreadKeys(HostKind):
    """A folder in, the changed keys that were taken out."""

    thresholds: ClassVar = {
        "fp32": (Threshold("overlooked", 0, "a key that changes the answer is read, or refused where it is not"),)
    }

    def look(self, case: Case, seed: int) -> dict[str, Any]:
        return {"taken": taken(self.store.folder(case.model, seed))}

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        folder = self.store.folder(case.model, seed)
        right = self._answer(case, folder, seed)
        overlooked = []
        if right is None:
            raise ValueError(f"the library has no answer to {case.model} as it is")
        written = json.loads((folder / "config.json").read_text())
        with linked(folder) as changed:
            for key, value in result.value["taken"].items():
                rewrite(changed / "config.json", written | {key: value})
                theirs = self._answer(case, changed, seed)
                if theirs is not None and not torch.equal(theirs, right):
                    overlooked.append(f"{key} = {value}")
        result.value["complaints"] = {"overlooked": overlooked}
        return super().measure(case, seed, result)

    def _answer(self, case: Case, folder: Path, seed: int) -> Tensor | None:
        """Return the library's answer, None if it has none with this config.json."""
        kind, inputs = self.runs(case, seed)
        tensors = dict(inputs)
        try:
            with quietly(), torch.inference_mode():
                model = load_oracle(folder, torch.float32)
                return kind.call(model, tensors | kind.oracle(case).further_inputs(model, tensors))
        except Exception:  # whatever a library raises where it cannot be what it is told to be
            return None


def taken(folder: Path) -> dict[str, Any]:
    """Return keys that refsim does not read, each with another value that it takes all the same."""
    written = json.loads((folder / "config.json").read_text())
    class_name = written.get("_class_name") or written["architectures"][0]
    config_class = get(class_name).config_class
    read = {field.name for field in dataclasses.fields(config_class)}
    changes = {}
    for key, value in (library_defaults(class_name) | written).items():
        changed = other(value)
        if key in read or key in _HANDED_OVER or changed is None:
            continue
        try:
            config_class.from_dict(written | {key: changed})
            changes[key] = changed
        except UserError:
            continue
    return changes


def other(value: Any) -> Any:
    """Return another value of the same kind, None where there is none that a library would take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return _ACTIVATIONS.get(value) if isinstance(value, str) else None
