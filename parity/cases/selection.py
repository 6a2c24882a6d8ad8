"""The ``-k`` expression: which case ids are meant.

    expression := term   { "or" term }
    term       := factor { "and" factor }
    factor     := "not" factor | "(" expression ")" | word

A word matches where it is a substring of the id, in upper or lower case. Ids contain hyphens and underscores, so a
word is everything up to white space or a parenthesis.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from refsim.base.errors import UserError

Match = Callable[[str], bool]

_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_RESERVED = ("and", "or", "not", "(", ")")
_MAX_DEPTH = 50


def compile_expression(text: str | None) -> Match:
    """A predicate on case ids; everything matches where no expression is given.

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
    """``(I, N)`` of ``I/N``, part I of N from 1 on.

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
        negations = 0
        while self._take("not"):
            negations += 1
        inner = self._primary()
        return inner if negations % 2 == 0 else lambda s: not inner(s)

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
