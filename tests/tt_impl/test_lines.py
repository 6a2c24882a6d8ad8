"""Lines of the device programs, recorded in the processes that run them."""

from __future__ import annotations

from parity.mutation import measure, tree

CASE = "clip_plain_tiny64-n300-tp2-heads-bf16"


def test_lines_of_a_device_program_are_recorded():
    files = tree.files_under(["tt_impl/layers", "tt_impl/parallel"])
    with tree.copied(files) as copy:
        asked = measure.Asked(files, expr=CASE, backend="ttnn-mock")
        found = measure.measured(asked, copy, None, lambda case: None)
        linear = copy.read("tt_impl/layers/linear.py").splitlines()
    assert not found.troubled and len(found.cases) == 1
    executed = found.lines("tt_impl/layers/linear.py")
    assert any("ttnn." in linear[line - 1] for line in executed)
    assert not any(linear[line - 1].lstrip().startswith("raise") for line in executed)
