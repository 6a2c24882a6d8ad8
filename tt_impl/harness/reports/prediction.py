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
        launch = self.launch
        place = {"event": launch.event, "op": launch.op, "where": launch.where}
        place |= {"device_op": launch.program.name, "mesh": launch.mesh}
        if self.unpriced:
            return place | {"unpriced": self.unpriced}
        numbers = {name: round(getattr(self, name), 1) for name in ("ns", "low_ns", "high_ns")}
        details = {name: getattr(self, name) for name in ("kind", "bound", "measured")}
        return place | numbers | details | {"assumed": list(self.assumed)}
