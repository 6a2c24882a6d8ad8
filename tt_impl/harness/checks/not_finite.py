"""Values that no device should have: the operation that makes the first NaN, or infinity, of inputs without."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.storage.not_finite import INFINITY, NAN


def not_finite(log: EventLog) -> Iterator[Finding]:
    """Find operations that make NaN of inputs without, or infinity of finite ones, but none that pass it on.

    Numbers among the arguments are inputs, too; and bits that are read as another type are what they are.
    """
    for event in log.events:
        numbers = [value for value in event.options.values() if isinstance(value, float)]
        has = {NAN: any(map(math.isnan, numbers)), INFINITY: not all(map(math.isfinite, numbers))}
        for made in event.not_finite if event.op != "ttnn.bitcast" else ():
            if has[made]:
                continue
            inputs = "inputs without NaN" if made == NAN else "finite inputs"
            sentence = f"{event.op} makes {made} of {inputs}: look at the rows and values it reads here."
            yield Finding.of("not-finite", event, sentence, ERROR if made == NAN else NOTE)
