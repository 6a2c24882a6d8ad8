"""``refsim ttnn coverage``: what the mock knows of the operations that sources name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refsim.base.errors import UserError
from refsim.cli.app import app
from tests.harness.conftest import HAS_TTNN, REASON
from tests.json_output import loads
from tt_impl.harness.reports.coverage import coverage, evidence, names_of_ttnn

needs_ttnn = pytest.mark.skipif(not HAS_TTNN, reason=REASON)
SOURCE = """
import ttnn as tt
from ttnn import add, experimental
from ttnn.experimental import rotary_embedding as rotate
import numpy as np
import ttnn.experimental as more
import ttnn.transformer

multiply = tt.mul

def program(x, op=add):
    x = op(x, tt.relu(x))
    y = multiply(experimental.typecast(x, tt.bfloat16), rotate(x, x, x))
    z = getattr(tt, "sub")(y, np.add(1, 2))
    more.paged(ttnn.transformer.attend(x))
    return tt.MeshShape(1, 2), tt.no_such_operation(z), x.reshape(1), add(x, x)
"""


def test_names_are_found_whatever_they_are_called() -> None:
    names = {(name, line) for name, line, _ in names_of_ttnn(ast.parse(SOURCE))}
    assert names >= {
        *(("ttnn.mul", 9), ("ttnn.add", 11), ("ttnn.relu", 12), ("ttnn.experimental.typecast", 13)),
        *(("ttnn.mul", 13), ("ttnn.experimental.rotary_embedding", 13), ("ttnn.sub", 14), ("ttnn.add", 16)),
        *(("ttnn.experimental.paged", 15), ("ttnn.transformer.attend", 15)),
    }
    assert not any("reshape" in name or "np" in name for name, _ in names)


@needs_ttnn
def test_every_operation_has_its_evidence(tmp_path: Path) -> None:
    """Known by a rule or not, absent from this ttnn, or no operation; what is no Python is told."""
    (tmp_path / "program.py").write_text(SOURCE)
    (tmp_path / "wrong.py").write_text("def f(:")
    found = coverage([tmp_path])
    told = {called.name: (called.evidence, called.count) for called in found.operations}
    assert told["ttnn.add"] == ("rule", 2) and told["ttnn.no_such_operation"] == ("absent", 1)
    assert "ttnn.MeshShape" not in told and "ttnn.bfloat16" not in told
    assert found.files == 1 and len(found.unread) == 1 and "wrong.py" in found.unread[0]
    text = found.text().splitlines()
    assert text[0] == "| operation | evidence | named | first |" and text[2].startswith(
        "| `ttnn.experimental.paged` | absent | 1 |"
    )
    total = text.index(f"{found.known} of {len(found.operations)} operations are known to the mock (1 files).")
    assert text[total - 1] == "" and text[total + 1] == "absent: this ttnn has no such name."
    assert text[-1].startswith(f"not read: {tmp_path / 'wrong.py'}: ")
    assert found.operations[0].where.endswith("program.py:15") and not found.complete


@needs_ttnn
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ttnn.add", "rule"),
        ("ttnn.from_torch", "transfer"),
        ("ttnn.as_tensor", "transfer"),
        ("ttnn.rand", "emulated"),
        ("ttnn.experimental.send_async", "emulated"),
        ("ttnn.quantize", "golden function"),
        ("ttnn.to_dtype", "none (golden function denied)"),
        ("ttnn.generic_op", "none"),
    ],
)
def test_what_is_known_of_an_operation(name: str, known: str) -> None:
    assert evidence(name) == known


@needs_ttnn
def test_the_command(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import ttnn\nttnn.add(1, 2)\nttnn.add(3, 4)\n")
    done = CliRunner().invoke(app, ["ttnn", "coverage", str(program), "--json"])
    told = loads("ttnn coverage", done.stdout)
    assert (done.exit_code, told["known"], told["operations"][0]["count"]) == (0, 1, 2)
    program.write_text("import ttnn\nttnn.generic_op([])\n")
    done = CliRunner().invoke(app, ["ttnn", "coverage", str(program)])
    assert done.exit_code == 1 and "`ttnn.generic_op` | none" in done.stdout
    with pytest.raises(UserError, match="there is no"):
        coverage([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^there is no Python file; name some, or folders with some\.$"):
        coverage([tmp_path / "empty"])
