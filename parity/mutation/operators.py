"""What a mutation changes: each operator takes a node of the syntax tree and gives nodes to stand in its place.

They are the mistakes that are made in such programs and that reviews have found: two operands or arguments the wrong
way round, a border one off, another dim or mesh axis, a call that is missing, another constant, a comparison that takes
the border the other way, a mask that is not passed on, two parts in the other order, a lower precision.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

Operator = Callable[[ast.AST], Iterator[ast.AST]]
N = TypeVar("N", bound=ast.AST)

OPERATORS: dict[str, Operator] = {}
"""By name, with hyphens."""


def operator(function: Operator) -> Operator:
    OPERATORS[function.__name__.replace("_", "-")] = function
    return function


def _with(node: N, **fields: object) -> N:
    """Copy a node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _name(node: ast.AST) -> str:
    """Return the last name of what is called: ``cat`` of ``torch.cat``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _swapped(parts: list[N], at: int = 0) -> list[N]:
    """Exchange one of the parts and its neighbour."""
    return [*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]]


@operator
def swapped_operands(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.MatMult):
        if not _is_text(node.left):
            yield _with(node, left=node.right, right=node.left)


_OTHER: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_OTHER |= {ast.FloorDiv: ast.Mod, ast.And: ast.Or, ast.Or: ast.And}


@operator
def other_operator(node: ast.AST) -> Iterator[ast.AST]:
    operands = [getattr(node, name, None) for name in ("left", "right", "value")]
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _OTHER:
        if not any(operand is not None and _is_text(operand) for operand in operands):
            yield _with(node, op=_OTHER[type(node.op)]())


@operator
def missing_term(node: ast.AST) -> Iterator[ast.AST]:
    """Leave out a bias, a scale or an epsilon; only where both sides have one type."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        if not _is_text(node.left) and not _is_text(node.right):
            yield node.left
            if isinstance(node.op, ast.Add | ast.Mult):
                yield node.right


@operator
def rounded_up(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        yield ast.UnaryOp(ast.USub(), _with(node, left=ast.UnaryOp(ast.USub(), node.left)))


_BORDERS = ("range", "narrow", "min", "max", "slice", "arange")


@operator
def off_by_one(node: ast.AST) -> Iterator[ast.AST]:
    """Make an integer, the border of a slice, or an argument that is a number of rows, one too large or too small."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
        if node.value > 0:
            yield ast.Constant(node.value - 1)
    if isinstance(node, ast.Slice):
        for field in ("lower", "upper"):
            if (border := getattr(node, field)) is not None and not isinstance(border, ast.Constant):
                for op in (ast.Add(), ast.Sub()):
                    yield _with(node, **{field: ast.BinOp(border, op, ast.Constant(1))})
    if isinstance(node, ast.Call) and _name(node.func) in _BORDERS:
        for i, argument in enumerate(node.args):
            if isinstance(argument, ast.Name | ast.Attribute | ast.BinOp):
                less = ast.BinOp(argument, ast.Sub(), ast.Constant(1))
                yield _with(node, args=[*node.args[:i], less, *node.args[i + 1 :]])


_BY_DIM = set(
    "cat stack sum mean chunk split softmax transpose unsqueeze squeeze flatten unflatten narrow permute movedim roll "
    "select argmax amax logsumexp repeat_interleave flip concat reshape_heads Shard".split()
)
_AXES = {"sp": "tp", "tp": "sp", "ring": "ulysses", "ulysses": "ring", "sp_axis": "tp_axis", "tp_axis": "sp_axis"}


@operator
def wrong_dim(node: ast.AST) -> Iterator[ast.AST]:
    """Take the neighbour of a tensor's dim, or the other axis of the mesh."""
    if isinstance(node, ast.keyword) and node.arg in ("dim", "axis", "dims", "keepdim_dim"):
        for value in _other_dims(node.value):
            yield _with(node, value=value)
    if isinstance(node, ast.Call) and _name(node.func) in _BY_DIM:
        for i, argument in enumerate(node.args):
            for value in _other_dims(argument):
                yield _with(node, args=[*node.args[:i], value, *node.args[i + 1 :]])
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _AXES:
        yield ast.Constant(_AXES[node.value])
    if isinstance(node, ast.Attribute) and node.attr in _AXES and isinstance(node.ctx, ast.Load):
        yield _with(node, attr=_AXES[node.attr])


def _other_dims(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        if type(node.operand.value) is int:
            yield ast.UnaryOp(ast.USub(), ast.Constant(node.operand.value + 1))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value - 1 if node.value > 0 else 1)
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
        for at in range(len(node.elts) - 1):
            yield _with(node, elts=_swapped(node.elts, at))


@operator
def changed_constant(node: ast.AST) -> Iterator[ast.AST]:
    """Take ten times an epsilon, another factor, a switch the other way."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        value = node.value * 10 if 0 < abs(node.value) < 1e-2 else node.value * 1.1 if node.value else 1.0
        yield ast.Constant(float(f"{value:.12g}"))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node.operand


_BORDER_THE_OTHER_WAY = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}


@operator
def flipped_comparison(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield _with(node, ops=[*node.ops[:i], _BORDER_THE_OTHER_WAY[type(op)](), *node.ops[i + 1 :]])


@operator
def negated_condition(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        if node.generators[-1].ifs:
            yield _with(node, generators=[*node.generators[:-1], _with(node.generators[-1], ifs=[])])


_SHAPE_IS_KEPT = re.compile(
    r"(float|double|bfloat16|to|typecast|clamp_?|clip|relu|silu|gelu|tanh|sigmoid|logsigmoid|exp|log|sqrt|rsqrt|square|"
    r"abs|softmax|softplus|masked_fill|flip|roll|round|floor|ceil|cumsum|reversed|all_reduce|contiguous_rows|"
    r"_?(\w+_)?(norm|act|activation|rope|rotary|rotate|rotated|turn|turned|modulate|mask|masked|scaled|scale))$"
)
_MODULES = {"torch", "F", "ttnn", "math", "np", "self", "functools"}


@operator
def missing_call(node: ast.AST) -> Iterator[ast.AST]:
    """Leave out what is called on a tensor and keeps its shape, or a statement that is only a call."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    if isinstance(node, ast.Call) and _SHAPE_IS_KEPT.match(_name(node.func)):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and ast.unparse(owner).partition(".")[0] not in _MODULES:
            yield owner
        elif node.args and not isinstance(node.args[0], ast.Starred):
            yield node.args[0]


_MATTERS = re.compile(
    r"(\w*mask|is_causal|causal|valid|logical_\w+|scale|eps|epsilon|bias|approximate|dtype|start|offset|shift|gate|"
    r"activation|weight|\w+_tokens|joint_\w+|padding|value)$"
)


@operator
def dropped_argument(node: ast.AST) -> Iterator[ast.AST]:
    """Drop a mask, a number of real rows, a scale or an epsilon."""
    if isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg and _MATTERS.match(keyword.arg):
                yield _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])


_NOT_EXCHANGED = re.compile(r"(\w+\.)?_?(device|ctx|weights|name|cls|config|options)$")


def _are_alike(pair: list[ast.expr]) -> bool:
    """Whether two neighbours may be taken for each other: nobody takes the device for a tensor, and lives on."""
    plain = all(isinstance(part, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.BinOp) for part in pair)
    return plain and not any(_NOT_EXCHANGED.match(ast.unparse(part)) for part in pair)


COMMUTES = set(
    "min max ttnn.add ttnn.multiply torch.minimum torch.maximum torch.logaddexp torch.logaddexp2 compute.add "
    "elementwise.add elementwise.multiply".split()
)
"""Functions whose arguments may stand in any order."""


def _commutes(call: ast.Call) -> bool:
    """Whether the order of arguments says nothing: ``x.transpose(1, 2)`` is ``x.transpose(2, 1)``."""
    name = ast.unparse(call.func)
    return name in COMMUTES or (name.endswith(".transpose") and len(call.args) == 2)


@operator
def swapped_arguments(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nothing for what may stand in any order."""
    if isinstance(node, ast.Call) and not _commutes(node):
        for at in range(len(node.args) - 1):
            if _are_alike(node.args[at : at + 2]):
                yield _with(node, args=_swapped(node.args, at))


@operator
def reversed_order(node: ast.AST) -> Iterator[ast.AST]:
    """Exchange two neighbours of a list or a tuple."""
    if isinstance(node, ast.List | ast.Tuple) and 2 <= len(node.elts) <= 4:
        for at in range(len(node.elts) - 1):
            if _are_alike(node.elts[at : at + 2]):
                yield _with(node, elts=_swapped(node.elts, at))


_LOWER = {"float64": "float32", "float32": "bfloat16", "bfloat16": "float32", "bfloat8_b": "bfloat4_b"}


@operator
def other_dtype(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Attribute) and node.attr in _LOWER and isinstance(node.value, ast.Name):
        yield _with(node, attr=_LOWER[node.attr])


_ALIKE = {"max": "min", "amax": "amin", "sin": "cos", "floor": "ceil", "any": "all", "silu": "gelu", "zeros": "ones"}
_ALIKE |= {other: name for name, other in _ALIKE.items()} | {"argmax": "argmin", "logaddexp": "maximum", "exp": "exp2"}
_ALIKE |= {"rsqrt": "sqrt", "tanh": "sigmoid", "round": "floor"}


@operator
def other_function(node: ast.AST) -> Iterator[ast.AST]:
    """Take a function of the same kind; an approximation of gelu for the other."""
    if isinstance(node, ast.Call) and (name := _name(node.func)) in _ALIKE:
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield _with(node, func=_with(node.func, **{field: _ALIKE[name]}))
    if isinstance(node, ast.keyword) and node.arg == "approximate" and isinstance(node.value, ast.Constant):
        yield _with(node, value=ast.Constant("none" if node.value.value == "tanh" else "tanh"))
