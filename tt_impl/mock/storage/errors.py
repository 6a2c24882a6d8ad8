"""What the shadow says when it cannot tell a value."""

from __future__ import annotations

from refsim.base.errors import RefsimError


class ShadowError(RefsimError):
    """The shadow cannot tell the value of a tensor; ``op`` is the operation to blame (``ttnn.add``), if any."""

    def __init__(self, message: str, op: str = "") -> None:
        super().__init__(message)
        self.op = op


_OWN_KERNELS = frozenset({"ttnn.generic_op", "ttnn.experimental.prepare_generic_op"})


_PACKED = frozenset(f"ttnn.experimental.{name}" for name in ("moe_compute", "moe_gpt", "selective_reduce_combine"))


class MissingRule(ShadowError):
    """No rule says what the operation computes."""

    def __init__(self, op: str) -> None:
        why = f"{op} has no shadow rule."
        if op in _OWN_KERNELS:
            why = (
                f"{op} runs kernels of the program itself, in C++: the mock runs none, so nobody knows what they write."
            )
        elif op in _PACKED:
            why = (
                f"{op} works on rows and weights in an order of cores and banks that only its kernels know; "
                "ttnn documents none that the mock could follow."
            )
        super().__init__(why, op)


class RefusedOption(ShadowError):
    """There is a rule, but it does not know an argument of this call."""

    def __init__(self, op: str, what: str) -> None:
        super().__init__(f"the shadow rule of {op} does not know {what}.", op)
        self.what = what


class FailedRule(ShadowError):
    """The rule of an operation fails on a call that ttnn takes: a mistake of the mock."""

    def __init__(self, op: str, error: Exception) -> None:
        message = " ".join(str(error).split())[:200].removesuffix(".")
        super().__init__(f"the shadow rule of {op} fails on this call with {type(error).__name__} ({message}).", op)


class UnseenValue(ShadowError):
    """An operation reads memory whose value nobody saw being written, or that a replay of a trace wrote over."""

    def __init__(self, op: str, what: str, lost: bool = False) -> None:
        why = (
            "it was allocated after a trace was captured, on memory that ttnn.execute_trace then wrote"
            if lost
            else "it was made before the shadow began or by a function that the shadow does not see"
        )
        super().__init__(f"{op} reads a {what} without a value: {why}.", op)


class UnknownPadding(ShadowError):
    """An operation reads what lies beyond a tensor's shape in its last tiles, and nothing told what is there."""

    def __init__(self, op: str, what: str) -> None:
        super().__init__(
            f"{op} reads a {what} with padding of tiles that no operation has set; "
            "set it with ttnn.fill_implicit_tile_padding or ttnn.pad before.",
            op,
        )
