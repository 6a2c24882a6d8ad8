"""What ``tt_impl.api.run`` refuses before anything is started; that it computes is shown by the command line's test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refsim.errors import UserError
from refsim.options import RunOptions
from tt_impl import api

OPTIONS = RunOptions.of(mesh="n300", parallel="tp2", backend="ttnn-mock", dtype="bf16")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"options": OPTIONS, "mesh": "n300"}, "give options or mesh, not both"),
        ({"parallel": "tp2"}, "a run needs a mesh"),
        ({"mesh": "n300", "parallel": "tp2", "dtype": "fp32"}, "stores bf16, not fp32"),
        ({"mesh": "n300", "parallel": "tp2", "backend": "cpu"}, "is not a ttnn one"),
        ({"mesh": "n300", "parallel": "sp2", "ring_order": "gather"}, "has --ring-order step only"),
        ({"options": OPTIONS}, "checkpoint '.*nowhere' does not exist"),
    ],
)
def test_refused_in_one_sentence(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        api.run(tmp_path / "nowhere", inputs=tmp_path / "in.safetensors", **given)
