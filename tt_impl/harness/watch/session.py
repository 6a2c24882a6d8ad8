"""One watched program: its calls are guarded, given values, and noted, whoever wrote it.

    call -> event log -> [Results] -> crash guard -> shadow -> [Meter] -> Programs -> ttnn
            (what was     (digests)   (a refusal     (values)  (memory,   (from ttnn's
             asked for)                instead of a             programs)  cache?)
                                       dead process)

[with ``report`` only]
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tt_impl.harness.watch.exhausted import Exhaustion
from tt_impl.harness.watch.programs import Programs
from tt_impl.mock.calls.checks import refuse_crashes
from tt_impl.mock.calls.shadow import OFF, Shadow, ShadowError, shadow_values
from tt_impl.mock.log.events import EventLog
from tt_impl.mock.storage.values import shape_of
from tt_impl.trace.freed import check_allocated
from tt_impl.trace.intercept import Invocation, intercepted

if TYPE_CHECKING:
    from tt_impl.harness.watch.meter import Meter
    from tt_impl.harness.watch.results import Results


@dataclass
class Session:
    """What one program did.

    Attributes:
        shadow: the values, and ``shadow.calls``, how often each operation was called.
        log: the events, in order.
        ops: how often each operation was called that had to do with a device.
        unknown: what the shadow said when it knew no value, whether or not the program went on.
        meter: memory and programs of every call; None without ``report``.
        results: digests of every call's results; None without ``report``, and where no values are computed.
        exhaustion: calls that were refused for want of memory.
    """

    shadow: Shadow
    log: EventLog
    ops: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    meter: Meter | None = None
    results: Results | None = None
    exhaustion: Exhaustion = field(init=False)

    def __post_init__(self) -> None:
        self.exhaustion = Exhaustion(self.log)

    @property
    def fallbacks(self) -> Counter[str]:
        """Operations whose values came from ttnn's own golden functions: evidence that is circular."""
        return self.shadow.fallbacks

    @property
    def numerics(self) -> dict[str, Any]:
        """Level and counts of what was rounded as kernels do; empty where nothing was to be."""
        return {} if self.shadow.numerics is None else self.shadow.numerics.counts()

    def iteration(self) -> None:
        """Say that an iteration of the program ends here: what later ones leave behind is reported as a leak."""
        if self.meter is not None:
            self.meter.iteration()


class LastOperation:
    """The operation under way, in memory that a process shares with those it forks: it survives their crash."""

    _SIZE = 4096

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SIZE)

    def note(self, text: str) -> None:
        """Remember ``text``, cut where it is too long."""
        data = text.encode("utf-8", "replace")[: self._SIZE - 2]
        self._memory[: len(data) + 1] = data + b"\0"

    def read(self) -> str:
        """Return the last text noted here or in a forked process; empty if there was none."""
        data = self._memory[:]
        return data[: data.index(b"\0")].decode("utf-8", "replace")


@contextmanager
def watched(
    fallback: bool = False,
    report: bool = False,
    last: Callable[[str], None] | None = None,
    earlier: Session | None = None,
    numerics: str = OFF,
    values: bool = True,
) -> Iterator[Session]:
    """Give values to every ttnn call in the block and note what it does.

    Args:
        fallback: operations without a rule are answered by ttnn's golden functions, counted in ``Session.fallbacks``.
        report: keep what a report needs of every operation, too.
        last: called with each operation and its shapes, ``in ttnn.add on [[32, 32]]`` before it runs and ``after ...``
            when it has, to say where a process crashed.
        earlier: a session of this process whose tensors are still used.
        numerics: ``exact`` or ``fast`` rounds as kernels do, ``off`` the exact result once.
        values: False computes none: shapes, memory and ttnn's checks alone.
    """
    with ExitStack() as stack:
        shadow = stack.enter_context(shadow_values(fallback, numerics, values))
        if earlier is not None:
            shadow.store = earlier.shadow.store
        session = Session(shadow, EventLog(shadow if values else None))
        stack.enter_context(intercepted(_guard(session, last), first=True))
        if report:
            from tt_impl.harness.watch.meter import Meter
            from tt_impl.harness.watch.results import Results

            if values:
                session.results = Results(shadow, session.log)
                stack.enter_context(intercepted(session.results, first=True))
            session.meter = Meter(session.log)
            stack.enter_context(intercepted(session.meter))
        stack.enter_context(intercepted(Programs(session.log)))
        stack.enter_context(intercepted(session.exhaustion))
        stack.enter_context(intercepted(session.log, first=True))
        yield session


def _guard(session: Session, last: Callable[[str], None] | None) -> Callable[[Invocation], Any]:
    """Make the handler that counts, refuses what would end the process, and tells ``last`` what is under way."""

    def handle(call: Invocation) -> Any:
        check_allocated(call)
        shapes = [list(shape_of(tensor)) for tensor in call.inputs]
        if shapes or call.meshes:
            session.ops[call.name] += 1
        under_way = f"{call.name} on {shapes}" if shapes else call.name
        if last is not None:
            last(f"in {under_way}")
        try:
            result = refuse_crashes(call)
            if last is not None:
                last(f"after {under_way}")
            return result
        except ShadowError as error:
            session.unknown.append(str(error))
            raise

    return handle
