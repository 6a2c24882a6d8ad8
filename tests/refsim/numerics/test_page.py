"""The examples of docs/numerics.md run, one after the other, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "numerics.md"


def test_examples(capsys):
    text = PAGE.read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page's own examples
    printed = capsys.readouterr().out.splitlines()
    said = re.search(r"prints 1 - PCC of (\S+) for 32 bits and (\S+) with a gain of (\S+) for 16 bits", text)
    assert said
    found = [re.search(r"1 - PCC (\S+), gain (\S+)", line) for line in printed[:2]]
    assert found[0][1] == said[1]
    assert found[1][1] == said[2]
    assert found[1][2].startswith(said[3])
    assert printed[2] == "torch.Size([1, 2, 96, 64])"
