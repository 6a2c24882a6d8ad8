"""A torch module beside a TTNN program: the layer that goes wrong is named, and nothing that is only fused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import warm
from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.tt_impl.worker import ROOT, launch

pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ran = launch("tests.harness.beside", folder=tmp_path_factory.mktemp("beside"))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


def test_a_right_program_is_in_line_everywhere(compared: dict[str, Any]) -> None:
    rows = compared[""]["rows"]
    blocks = [f"{i}{part}" for i in range(2) for part in (".norm", ".up", ".act", ".down", "")]
    assert [row[0] for row in rows] == [*blocks, "(module)"]
    assert all(state == "ok" and pcc > 0.9999 and error < 0.006 for _, state, _, pcc, error, _ in rows)
    assert [row[2] for row in rows[:4]] == ["ttnn.layer_norm", "ttnn.linear", "ttnn.gelu", "ttnn.add"]
    assert rows[1][5] == "dim 2 over axis 0, dim 3 over axis 1"


@pytest.mark.parametrize(
    ("mistake", "layer", "op"),
    [
        ("epsilon", "1.norm", "ttnn.layer_norm"),  # PCC 0.9998
        ("bias", "1.up", "ttnn.linear"),
        ("activation", "1.act", "ttnn.relu"),  # PCC 0.998
        ("order", "1.down", "ttnn.add"),
        ("all_reduce", "1.down", "ttnn.add"),
        ("scale", "1", "ttnn.add"),  # after the layer that is right
    ],
)
def test_the_layer_with_the_mistake_is_named(compared: dict[str, Any], mistake: str, layer: str, op: str) -> None:
    found = compared[mistake]
    assert found["first"] == layer and found["place"].startswith(f"{op} at tests/harness/beside.py:")
    states = [row[1] for row in found["rows"]]
    assert states[-1] == "OUT OF LINE" and set(states[:-1]) == {"ok"}
    assert f"{layer} is the first layer out of line: PCC " in found["text"]


def test_a_fused_activation_is_no_mistake(compared: dict[str, Any]) -> None:
    rows = {row[0]: row for row in compared["fused"]["rows"]}
    assert compared["fused"]["first"] is None
    assert [rows[f"{i}.up"][1] for i in (0, 1)] == ["?", "?"] and rows["1.act"][1:3] == ["ok", "ttnn.linear"]
    assert "9 layers in line, 2 without a counterpart" in compared["fused"]["text"]


def test_taps_are_binding(compared: dict[str, Any]) -> None:
    assert compared["tapped"]["first"] is None
    assert compared["wrong tap"]["first"] == "1.up" and "ttnn.gelu" in compared["wrong tap"]["place"]


def test_a_program_whose_end_fits_nothing_is_not_in_line(compared: dict[str, Any]) -> None:
    """It was compared with nothing, so nothing says that it is right."""
    found = compared["another shape"]
    assert found["first"] == "(module)" and {row[1] for row in found["rows"][:-1]} == {"-"}
    assert found["text"].endswith("(module) has no counterpart: no result of the program has the elements of 2x64x64.")


def test_comparisons_word_for_word(compared: dict[str, Any]) -> None:
    """Figures to a tenth: processors round differently."""
    text = words.by_source("\n\n".join(found["text"] for found in compared.values()))
    words.check("compared.txt", re.sub(r"\d+\.\d{2,}", lambda figure: f"{float(figure[0]):.1f}", text))


def test_example(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ran = warm.run("examples/compare_with_torch.py", "--bug", cwd=ROOT, env=environment)
    assert ran.returncode == 1, ran.stderr[-2000:]
    assert (
        "act is the first layer out of line" in ran.stdout
        and "ttnn.relu at examples/compare_with_torch.py:" in ran.stdout
    )


@pytest.mark.parametrize(
    ("parts", "mesh", "how"),
    [
        (lambda x: [x[..., :2], x[..., 2:], x[..., :2], x[..., 2:]], (2, 2), "dim 2 over axis 1"),
        (
            lambda x: [x[:, :2] / 2, x[:, 2:] / 2, x[:, :2] / 2, x[:, 2:] / 2],
            (2, 2),
            "summed over axis 0, dim 1 over axis 1",
        ),
        (lambda x: [x, x], (1, 2), "whole on each"),
        (lambda x: [x.reshape(2, 4, 2, 2).permute(0, 2, 1, 3)], (1, 1), "heads joined"),
    ],
)
def test_parts_are_joined(parts: Any, mesh: tuple[int, int], how: str) -> None:
    from tt_impl.harness.comparison.compose import wholes

    x = torch.randn(2, 4, 4)
    fitting = [w.how for w in wholes(parts(x), mesh, x.shape) if torch.allclose(w.value, x.reshape(-1))]
    assert fitting == [how]


def test_channels_last() -> None:
    from tt_impl.harness.comparison.compose import wholes

    x = torch.randn(2, 3, 4, 5)
    rows = x.permute(0, 2, 3, 1).reshape(1, 1, 40, 3)
    assert "NHWC rows" in [w.how for w in wholes([rows], (1, 1), x.shape) if torch.equal(w.value, x.reshape(-1))]
    assert list(wholes([rows], (1, 1), torch.Size((7, 3)))) == []
