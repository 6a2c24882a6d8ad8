"""One predicted time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tt_impl.harness.watch.meter import Launch


@dataclass(frozen=True)
class Prediction:
    """Of one launch: ``ns`` and its range; or ``unpriced``, why there is none.

    ``measured``: the model has been compared with measurements of this very operation, not only of its class.
    ``assumed``: what the program left to ttnn and the price takes as a default.
    """

    launch: Launch
    ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    kind: str = ""
    bound: str = ""
    measured: bool = False
    assumed: tuple[str, ...] = ()
    unpriced: str = ""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "event": self.launch.event,
            "op": self.launch.op,
            "where": self.launch.where,
            "device_op": self.launch.program.name,
            "mesh": self.launch.mesh,
        }
        if self.unpriced:
            return found | {"unpriced": self.unpriced}
        numbers = {"ns": self.ns, "low_ns": self.low_ns, "high_ns": self.high_ns}
        found |= {name: round(value, 1) for name, value in numbers.items()}
        return found | {
            "kind": self.kind,
            "bound": self.bound,
            "measured": self.measured,
            "assumed": list(self.assumed),
        }
