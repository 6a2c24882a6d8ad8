"""Defaults of the mock's rules beside those of ttnn's own signatures, as JSON: what a call leaves out means the same.

python -m tests.tt_impl.defaults    prints {"compared": count, "different": [...], "unnamed": {...}, "misplaced": {...}}
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from itertools import zip_longest
from typing import Any

REQUIRED = "required"
_PARAMETER = re.compile(r"(\w+): [^=]*?(?: = ((?:[^,()\[\]]|\([^()]*\)|\[[^\[\]]*\])+))?(?=, (?:\w+: |\*)|$)")
"""A parameter of a signature as nanobind writes it: its name, and its default if it has one."""


def signatures(name: str) -> list[str]:
    """Return every overload of ``ttnn.name`` as its refusal of nonsense writes it."""
    import ttnn

    operation: Any = ttnn
    for part in name.split(".")[1:]:
        operation = getattr(operation, part, None)
    try:
        operation(*[object()] * 16)
    except Exception as refused:
        lines = [line.strip() for line in str(refused).splitlines()]
        return [line[line.index("(") + 1 : line.rindex(")")] for line in lines if re.match(r"\w+\(.*: ", line)]
    return []


def _parameters(overload: str) -> dict[str, Any]:
    """Return the parameters of an overload with their defaults."""
    return {match[1]: _value(match[2]) for match in _PARAMETER.finditer(overload)}


def _by_position(overload: str) -> list[str]:
    """Return those that may be given by position."""
    return [match[1] for match in _PARAMETER.finditer(re.split(r"(?:^|, )\*, ", overload)[0])]


def _value(text: str | None) -> Any:
    if text is None:
        return REQUIRED
    try:
        value = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text  # a name of ttnn's
    return tuple(value) if isinstance(value, list) else value


def same(rule: Any, theirs: Any) -> bool:
    """Return whether a rule's default may stand for ttnn's: None leaves to it what is no number, or always given."""
    if theirs == REQUIRED or (rule is None and not isinstance(theirs, int | float)):
        return rule is None
    if isinstance(rule, bool) or isinstance(theirs, bool):
        return rule is theirs or (rule is None and isinstance(theirs, bool))
    if isinstance(rule, int | float) and isinstance(theirs, int | float):
        return math.isclose(rule, theirs, rel_tol=1e-6)
    return rule == theirs


def parameters_of(rule: Any) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of a rule and of the function that it is made from; None if they cannot be known."""
    parameters = dict(inspect.signature(rule).parameters)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        closure = rule.__wrapped__.__closure__ or ()
        functions = [cell.cell_contents for cell in closure if inspect.isfunction(cell.cell_contents)]
        if not functions:
            return None  # of torch, without a signature; or it reads them itself
        parameters |= inspect.signature(functions[0]).parameters
    return parameters


def unnamed(name: str, rule: Any, overloads: list[dict[str, Any]]) -> list[str]:
    """Return the arguments that an overload wants and the rule does not take by their keyword."""
    from tt_impl.mock.rules.backward import OPERANDS
    from tt_impl.mock.rules.registry import ALSO_CALLED, neutral

    parameters = parameters_of(rule)
    if parameters is None:
        return []
    known = {*parameters, *(OPERANDS if name.endswith("_bw") else ())}
    also = ALSO_CALLED.get(name, {})
    wanted = {key for overload in overloads for key, default in overload.items() if default == REQUIRED}
    return sorted(key for key in wanted if not neutral(key, name) and also.get(key, key) not in known)


def misplaced(name: str, rule: Any, overloads: list[str]) -> list[str]:
    """Return the arguments that an overload has in another place than the rule, the first of each overload.

    What begins with an underscore is looked at by no rule, and what comes behind ``*args`` a rule reads itself.
    """
    from tt_impl.mock.rules.registry import ALSO_CALLED

    parameters = [p for p in inspect.signature(rule).parameters.values() if p.name != "call"]
    places = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    reads_itself = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    also = ALSO_CALLED.get(name, {})
    wrong = []
    for overload in overloads:
        pairs = zip_longest(map(lambda key: also.get(key, key), _by_position(overload)), places)
        for theirs, ours in pairs:
            if theirs is None or (ours is None and reads_itself):
                break
            if theirs != ours and not (ours or "").startswith("_"):
                wrong.append(theirs)
                break
    return wrong


def compared() -> dict[str, Any]:
    """Compare all rules."""
    from tt_impl.mock import rules  # noqa: F401 - registers them
    from tt_impl.mock.calls.shadow import RULES

    count = 0
    different = []
    missing = {}
    elsewhere = {}
    for name, rule in RULES.items():
        written = signatures(name)
        overloads = [_parameters(overload) for overload in written]
        if keys := misplaced(name, rule, written):
            elsewhere[name] = keys
        if keys := unnamed(name, rule, overloads):
            missing[name] = keys
        for parameter in (parameters_of(rule) or dict(inspect.signature(rule).parameters)).values():
            theirs = [overload[parameter.name] for overload in overloads if parameter.name in overload]
            if parameter.default is inspect.Parameter.empty or not theirs:
                continue
            if {*theirs} == {REQUIRED} and len(theirs) < len(overloads):
                continue  # the others have none
            count += 1
            if not any(same(parameter.default, value) for value in theirs):
                different.append([name, parameter.name, str(parameter.default), str(theirs)])
    different += _of_numerics()
    return {"compared": count, "different": different, "unnamed": missing, "misplaced": elsewhere}


def _of_numerics() -> list[list[str]]:
    """Return the defaults of numeric rules that are others than those of the rules."""
    from tt_impl.mock.numerics.kernel import ROUNDED
    from tt_impl.mock.rules.registry import RULES

    return [
        [f"{name} rounded", key, str(ours.default), str(theirs.default)]
        for name, numeric in ROUNDED.items()
        for key, ours in inspect.signature(numeric).parameters.items()
        if (theirs := (parameters_of(RULES[name]) or {}).get(key)) is not None and theirs.default != ours.default
    ]


if __name__ == "__main__":
    print(json.dumps(compared()))
