"""Whether the program expects the error that is on its way: the call stands in a block of ``pytest.raises``."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from types import FrameType

_EXPECTING = ("raises", "assertRaises", "assertRaisesRegex")


def error_is_expected() -> bool:
    """Whether a frame of the stack is inside ``with pytest.raises(...)``, or ``self.assertRaises(...)``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        line = frame.f_lineno
        if any(first <= line <= last for first, last in _blocks(frame.f_code.co_filename)):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _blocks(path: str) -> tuple[tuple[int, int], ...]:
    """Return first and last line of the blocks of a file that expect an error; none of what is no Python file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not any(name in text for name in _EXPECTING):
            return ()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return ()
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With) and any(map(_expects, node.items))]
    return tuple((block.lineno, block.end_lineno or block.lineno) for block in blocks)


def _expects(item: ast.withitem) -> bool:
    call = item.context_expr
    function = call.func if isinstance(call, ast.Call) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in _EXPECTING
