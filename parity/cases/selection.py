"""Which cases are meant: those of a suite, of a ``-k`` expression on their ids, of a part; or the one of an id.

    expression := term   { "or" term }
    term       := factor { "and" factor }
    factor     := "not" factor | "(" expression ")" | word

A word matches where it is a substring of the id, in upper or lower case. Ids contain hyphens and underscores, so a
word is everything up to white space or a parenthesis.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from parity.cases.case import Case
from parity.cases.kinds import entry
from parity.cases.suites import registry, suite_cases
from refsim.base.errors import UserError
from refsim.base.options import BACKENDS

Match = Callable[[str], bool]

_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_RESERVED = ("and", "or", "not", "(", ")")
_MAX_DEPTH = 50


def select(suite: str, expr: str | None, backend: str = "cpu", part: str | None = None) -> list[Case]:
    """Return the cases of a suite on a backend whose id matches ``-k``, or those of part ``I/N`` of them.

    Raises:
        UserError: no such suite, backend or part, a malformed expression, or nothing matches.
    """
    _check_backend(backend)
    match = compile_expression(expr)
    cases = [case for case in suite_cases(suite, backend) if match(case.id)]
    if not cases:
        notes = "".join(f"; {problem}" for problem in registry().problems)
        raise UserError(f"no case of suite '{suite}' matches -k '{expr}'; `refsim parity list` prints the ids{notes}.")
    return cases if part is None else _part(cases, part)


def find_case(case_id: str, backend: str) -> Case:
    """Return the case of that id; ``UserError`` that names the nearest ids if there is none."""
    _check_backend(backend)
    cases = {case.id: case for case in suite_cases("full", backend)}
    if case_id not in cases:
        near = difflib.get_close_matches(case_id, cases, 2, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "`refsim parity list --suite full` prints the ids."
        raise UserError(f"case '{case_id}' does not exist; {hint}")
    return cases[case_id]


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}.")


def _part(cases: Sequence[Case], text: str) -> list[Case]:
    """Take part I of N for ``I/N``; all N parts together are the whole, as equal in number of cases as can be.

    Cases of one model stay in one part, because they share its checkpoint and its oracle's output.
    """
    number, count = part_of(text)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kind, case.model if entry(case.kind).checkpoint else case.id), []).append(case)
    parts: list[list[Case]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    chosen = {case.id for case in parts[number - 1]}
    if not chosen:
        raise UserError(f"part {text} has no case; choose fewer parts.")
    return [case for case in cases if case.id in chosen]


def compile_expression(text: str | None) -> Match:
    """Return a predicate on case ids; everything matches where no expression is given.

    Raises:
        UserError: the expression is malformed, in one sentence that says where.
    """
    if text is None or not text.strip():
        return lambda _: True
    parser = _Parser(text)
    match = parser.expression()
    parser.expect_end()
    return lambda case_id: match(case_id.lower())


def part_of(text: str) -> tuple[int, int]:
    """Read ``(I, N)`` of ``I/N``, part I of N from 1 on.

    Raises:
        UserError: it is no such thing.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"--part takes a part and how many there are, such as 1/3, not '{text}'.")
    return int(number), int(count)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text.lower())
        self._at = 0
        self._depth = 0

    def expression(self) -> Match:
        terms = [self._term()]
        while self._take("or"):
            terms.append(self._term())
        return lambda s: any(term(s) for term in terms)

    def _term(self) -> Match:
        factors = [self._factor()]
        while self._take("and"):
            factors.append(self._factor())
        return lambda s: all(factor(s) for factor in factors)

    def _factor(self) -> Match:
        negated = False
        while self._take("not"):
            negated = not negated
        inner = self._primary()
        return (lambda s: not inner(s)) if negated else inner

    def _primary(self) -> Match:
        if self._take("("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise UserError(f"-k nests more than {_MAX_DEPTH} parentheses; write it with fewer.")
            inner = self.expression()
            if not self._take(")"):
                raise self._error("a ')' is missing")
            self._depth -= 1
            return inner
        word = self._peek()
        if word is None or word in _RESERVED:
            raise self._error("a word is missing")
        self._at += 1
        return lambda s: word in s

    def expect_end(self) -> None:
        if self._peek() is not None:
            raise self._error("'and' or 'or' is missing")

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _error(self, what: str) -> UserError:
        token = self._peek()
        where = "at its end" if token is None else f"before '{token}'"
        return UserError(
            f"{what} {where} in -k '{self._text}'; join parts of case ids with and, or, not and parentheses, "
            "such as 'ring and not (bf16 or tg)'."
        )
