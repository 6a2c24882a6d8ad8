"""What a test of somebody else's showed, in one of a few categories: what passed on which evidence, what failed why.

Nothing of ``ttnn`` is imported before there is an error to look at: the process that only counts needs none.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from refsim.files.keys import Document
from tt_impl.harness.reports import exhausted

RULES = "own"
FALLBACK = "fallback"
KERNELS = "kernels"
NO_DEVICE = "no-device"
NO_VALUES = "values-off"
UNJUDGED = "unjudged"
ASSERTION = "assertion"
UNSEEN = "unseen"
OPTION = "option"
RULE = "rule"
SHADOW = "shadow"
CAUGHT = "caught"
FINDING = "finding"
REFUSED = "refused"
MEMORY = "memory"
CRASH = "crash"
TIMEOUT = "timeout"
VERSION = "version"
ENVIRONMENT = "environment"
ERROR = "error"
SKIPPED = "skipped"
EXPECTED = "expected"
NOT_RUN = "not-run"

NOTHING_SHOWN = "values off: nothing about values was shown"
CATEGORIES = {
    RULES: "passed on rules of the mock",
    FALLBACK: "passed with ttnn's golden functions for some operations: circular, it may have met its own expectation",
    KERNELS: "passed with TT-Lang kernels on their simulator: values of torch, not of a device's units",
    NO_VALUES: f"ran to the end; {NOTHING_SHOWN}",
    UNJUDGED: f"ran to an assertion, which may be of a value; {NOTHING_SHOWN}",
    NO_DEVICE: "passed without an operation on a device",
    EXPECTED: "failed as the suite expects",
    SKIPPED: "skipped by the suite itself",
    ASSERTION: "failed: an assertion, of a value or a shape",
    MEMORY: "failed: out of memory of the device",
    REFUSED: "failed: refused by ttnn, or by the mock in its place",
    RULE: "failed: an operation has no rule",
    OPTION: "failed: a rule does not know an option",
    UNSEEN: "failed: a value that nobody saw being written",
    SHADOW: "failed: the mock cannot tell a value",
    CAUGHT: "failed: caught an error by which the mock said that it knows no value, and went on",
    FINDING: "failed: a finding, which strict mode does not allow",
    CRASH: "failed: its process ended",
    TIMEOUT: "failed: no end in time",
    VERSION: "failed: the suite is made for another ttnn, or imports what is not installed",
    ENVIRONMENT: "failed: a file, a download or a program that is not here",
    ERROR: "failed: an error of the program itself, not of ttnn, nor of the mock",
    NOT_RUN: "not run: the run ended before",
}
"""Every category and what it says, in the order in which they are printed."""

_SKEW = re.compile(
    r"incompatible function arguments|incompatible constructor arguments"
    r"|module '?ttnn[\w.]*'? has no attribute|'?ttnn\.[\w.]*'? object has no attribute"
    r"|type object 'ttnn[\w.]*' has no attribute|got an unexpected keyword argument"
)
_NETWORK = ("aiohttp", "httpcore", "httpx", "huggingface_hub", "requests", "urllib3")
"""Packages whose errors are those of a network."""
_OFFLINE = re.compile(r"urlopen error|Name or service not known|Temporary failure in name resolution")
"""What errors of other packages say where there is no network."""
_MESSAGE_CHARS = 400


@dataclass
class Verdict(Document):
    """What one test showed.

    Attributes:
        id: pytest's node id, or a script's name.
        outcome: ``passed``, ``failed``, ``skipped``, ``not run``.
        category: a key of :data:`CATEGORIES`.
        seconds: of the test with its fixtures.
        mesh: what it ran on.
        ops: operations by name, with how often they were called.
        fallbacks: operations that golden functions answered, with how often.
        emulated: operations whose effect only resembles the device's, with how often.
        numerics: ``level``, and by name with how often: ``rounded`` as their kernels do, ``once``; empty if off.
        values: whether any were computed.
        op: the operation to blame, where one is.
        missing: it, where it has no rule.
        message: the first sentence of what went wrong.
        where: ``file:line`` of the suite's own code where it did.
        memory: of one that ended out of memory, who owned it and what to free: see
            :func:`tt_impl.harness.reports.exhausted.as_json`.
        report: file of its report, in the folder of reports.
        unreported: why it has none although one was asked for.
        findings: errors that :mod:`tt_impl.harness.checks.find` names: line, kind and sentence; of a script notes,
            too.
    """

    id: str
    outcome: str
    category: str
    seconds: float = 0.0
    mesh: str = ""
    ops: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    emulated: dict[str, int] = field(default_factory=dict)
    numerics: dict[str, Any] = field(default_factory=dict)
    values: bool = True
    op: str = ""
    missing: str = ""
    message: str = ""
    where: str = ""
    findings: list[str] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    report: str = ""
    unreported: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def passed(ops: Counter[str], fallbacks: Counter[str], values: bool) -> str:
    """Category of a test that passed, by the evidence it rests on."""
    if ops and not values:
        return NO_VALUES
    if fallbacks:
        return FALLBACK
    if any(name.startswith("ttl.") for name in ops):
        return KERNELS
    return RULES if ops else NO_DEVICE


def failed(error: BaseException) -> tuple[str, str, str]:
    """Category, operation to blame (or '') and one-line message of an error that ended a test."""
    from refsim.base.errors import RefsimError
    from tt_impl.mock.storage.errors import MissingRule, RefusedOption, ShadowError, UnseenValue

    kinds = ((MissingRule, RULE), (RefusedOption, OPTION), (UnseenValue, UNSEEN), (ShadowError, SHADOW))
    for cause in chain(error):
        for kind, category in kinds:
            if isinstance(cause, kind):
                return category, getattr(cause, "op", ""), first_words(str(cause))
    if isinstance(error, RefsimError):  # of what guards a mock mesh
        text = str(error)
        return REFUSED, text.split(" ", 1)[0] if text.startswith(("ttl.", "ttnn.")) else "", first_words(text)
    causes = [error, *_raised_from(error)]
    category = next((kind for kind in map(_by_text, causes) if kind != ERROR), ERROR)
    message = str(error) or type(error).__name__
    if missing := next((cause.name for cause in causes if isinstance(cause, ModuleNotFoundError) and cause.name), ""):
        message = f"module {missing} is not installed: {message}"
    return category, "", first_words(message)


def _raised_from(error: BaseException) -> Iterator[BaseException]:
    """Yield what an error was raised from, as its ``raise ... from`` says."""
    while error.__cause__ is not None:
        error = error.__cause__
        yield error


def may_be_of_values(error: BaseException) -> bool:
    """Tell whether an error may come of values that are zeros: an assertion, or arithmetic with them."""
    return _by_text(error) == ASSERTION or isinstance(error, ArithmeticError)


def is_exhausted(text: str) -> bool:
    """Tell whether ttnn's message says that memory of a device is not enough."""
    words = "Out of Memory: Not enough space", "clash with L1 buffers", "beyond max L1 size"
    return any(word in text for word in words)


def _by_text(error: BaseException) -> str:
    name = type(error).__name__
    text = str(error)
    if is_exhausted(text):
        return MEMORY
    if "TT_FATAL" in text or "TT_THROW" in text or "TT_ASSERT" in text:
        return REFUSED
    if isinstance(error, AssertionError):
        return ASSERTION
    if isinstance(error, ImportError) or _SKEW.search(text):
        return VERSION
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NETWORK or _OFFLINE.search(text):
        return ENVIRONMENT
    if name == "Failed":  # pytest.fail
        return TIMEOUT if text.startswith("Timeout") else ASSERTION
    return ERROR


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it was raised from or while."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def shorten(error: BaseException) -> None:
    """Leave out the C++ stack that ttnn adds to its messages."""
    if isinstance(error, RuntimeError) and error.args and isinstance(error.args[0], str):
        error.args = (error.args[0].partition("backtrace:")[0].rstrip(), *error.args[1:])


def first_words(text: str) -> str:
    """ttnn's text without place and backtrace, on one line, cut to a readable length."""
    text = text.partition("backtrace:")[0]
    _, has_info, info = text.partition("info:")
    if has_info and ("TT_FATAL" in text or "TT_THROW" in text):
        text = f"TT_FATAL: {info}"
    return " ".join(text.split())[:_MESSAGE_CHARS]


def combined(id: str, phases: list[dict[str, Any]]) -> Verdict:
    """One verdict of what is noted of a test's phases (setup, call, teardown), each a dict of a verdict's fields."""
    decisive = next((p for p in phases if p["outcome"] == "failed"), None)
    decisive = decisive or next((p for p in phases if p["outcome"] == "skipped"), None)
    decisive = decisive or next((p for p in phases if p["when"] == "call"), phases[-1])
    last = phases[-1]
    verdict = Verdict(id=id, outcome=decisive["outcome"], category=decisive["category"])
    verdict.seconds = round(sum(p["seconds"] for p in phases), 3)
    verdict.mesh = next((p["mesh"] for p in phases if p.get("mesh")), "")
    for name in ("ops", "fallbacks", "emulated", "numerics", "findings", "memory"):
        setattr(verdict, name, last.get(name) or decisive.get(name) or getattr(verdict, name))
    for name in ("op", "missing", "message", "where"):
        setattr(verdict, name, decisive.get(name, ""))
    verdict.values = all(p.get("values", True) for p in phases)
    verdict.report = last.get("report", "")
    verdict.unreported = last.get("unreported", "")
    return verdict


def phase(report: Any, call: Any, session: Any, caught: Sequence[str]) -> dict[str, Any]:
    """Return what one phase of a test showed, as JSON values: fields of a :class:`Verdict`, and ``when``.

    Args:
        report: pytest's report of the phase.
        call: pytest's ``CallInfo`` of it.
        session: what was watched (:class:`tt_impl.harness.watch.session.Session`).
        caught: what the mock said in errors that the phase caught, if it failed for that alone.
    """
    facts: dict[str, Any] = {
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(call.stop - call.start, 4),
        "ops": dict(session.ops),
        "fallbacks": dict(session.fallbacks),
        "emulated": dict(session.shadow.emulated),
        "numerics": session.numerics,
        "values": session.shadow.computes,
    }
    if caught:
        facts |= {"category": CAUGHT, "message": first_words(caught[0])}
    elif report.outcome == "failed" and call.excinfo is not None:
        category, op, message = failed(call.excinfo.value)
        facts |= {"category": category, "op": op, "missing": op if category == RULE else "", "message": message}
        facts["where"] = _where(call.excinfo)
        facts["memory"] = exhausted.of_session(session)
    elif report.outcome == "failed":  # an expected failure that passed
        facts |= {"category": ASSERTION, "message": first_words(str(report.longrepr))}
    elif report.outcome == "skipped":
        expected = hasattr(report, "wasxfail")
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        facts |= {"category": EXPECTED if expected else SKIPPED, "message": first_words(str(reason))}
    else:
        facts["category"] = passed(session.ops, session.fallbacks, session.shadow.computes)
    return facts


def _where(excinfo: Any) -> str:
    """``file:line`` of the innermost frame outside of installed packages, of ttnn wherever it lies, and of the mock."""
    libraries = tuple(sys.modules[name].__path__[0] for name in ("tt_impl", "ttnn") if name in sys.modules)
    for entry in reversed(list(excinfo.traceback)):
        path = str(entry.path)
        if "site-packages" not in path and not path.startswith((*libraries, "<")):
            return f"{path}:{entry.lineno + 1}"
    return ""
