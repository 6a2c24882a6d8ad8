"""What the documents say about files, names and shapes holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tree import PRODUCT, ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TOP = "|".join([*PRODUCT, "tests", "docs", "examples", "reports"])


def names(path: Path) -> set[str]:
    """The functions, classes and constants at the top of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = [name for name in re.findall(rf"`((?:{TOP})/[\w./]*)`", text) if "/NAME" not in name]
    assert [name for name in named if not (ROOT / name).exists()] == []


def drawn(document: str) -> dict[str, str]:
    """Folder -> what the first drawing of a document says of it; two spaces of indentation are one level."""
    drawing = document.partition("```\n")[2].partition("```")[0]
    said: dict[str, str] = {}
    above: list[str] = []
    for line in drawing.splitlines():
        named, _, text = line.strip().partition("  ")
        folders = named.split()
        if not folders or not all(folder.endswith("/") for folder in folders):
            continue  # a sentence that goes on
        level = (len(line) - len(line.lstrip())) // 2
        above[level:] = [folders[-1]]
        said |= {"".join([*above[:level], folder]).rstrip("/"): text.strip() for folder in folders}
    return said


def folders_of_the_product() -> set[str]:
    """Every package of the product but one folder a model, whose names are the models' own."""
    packages = {
        path.parent.relative_to(ROOT).as_posix() for name in PRODUCT for path in ROOT.glob(f"{name}/**/__init__.py")
    }
    return {package for package in packages if not re.match(r"(refsim|tt_impl)/models/", package)}


def test_the_drawing_of_the_house_is_the_house():
    said = drawn((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert sorted(said) == sorted(folders_of_the_product())
    assert [folder for folder, text in said.items() if not text] == []


def test_a_wrong_drawing_is_seen():
    assert drawn("```\nparity/   judges\n  cases/ run/   two\n         and on\n  none/\n```") == {
        "parity": "judges",
        "parity/cases": "two",
        "parity/run": "two",
        "parity/none": "",
    }


def test_names_in_the_walk_are_in_their_files():
    """``| 3 | `file` `name` |``: the file has a function, class or constant of that name at its top."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w./]+)` `(\w+)` \|", text, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if row[1] not in names(ROOT / row[0])] == []


def test_shapes_of_the_walk_are_those_of_the_model():
    """The published model, read on meta tensors as rank 0 runs it; the device's tile and chunk sizes are options."""
    from refsim.base.options import RunOptions
    from refsim.models.registry import get_published
    from refsim.timing.read.reading import read_published

    _, model = get_published("sd35-large")
    options = RunOptions.of(mesh="t3k", parallel="cfg2_sp2_tp2", dtype="bf16")
    ops = read_published(model, model.sizes["1024"], options).ops
    block = [op for op in ops if op.stage == "block 0"]
    norm = next(op for op in block if op.name == "layer_norm")
    fused = next(op for op in block if op.name == "linear" and op.output[1:2] != (1,) and len(op.output) == 3)
    heads = [op.output for op in block if op.name == "rms_norm"]
    attention = next(op for op in block if op.kind == "sdpa")
    shards = next(op for op in block if op.name == "ring_attention").inputs
    walk = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## The same q in TTNN")[0]
    q_rows, k_rows = options.chunk_sizes
    q_chunk = (*attention.inputs[0][:2], q_rows, attention.inputs[0][3])
    k_block = (*shards[0][:2], k_rows, shards[0][3])
    wanted = {
        7: [norm.inputs[0], fused.inputs[0]],
        8: [fused.output, heads[0]],
        9: [heads[0], heads[2]],
        11: [attention.inputs[0], shards[0]],
        12: [k_block],
        13: [q_chunk, q_chunk[:3]],
        14: [heads[0], heads[2]],
        15: [norm.inputs[0]],
    }
    rows = dict(re.findall(r"^\| (\d+) \| (.*)$", walk, re.MULTILINE))
    said = {number: rows[str(number)] + (rows["6"] if number == 7 else "") for number in wanted}
    assert {number: [s for s in shapes if str(tuple(s)) not in said[number]] for number, shapes in wanted.items()} == {
        number: [] for number in wanted
    }


def test_faults_that_are_named_exist():
    from parity.faults.run import FAULTS

    named = [name for path in DOCUMENTS for name in re.findall(r"fault `([\w-]+)`", path.read_text(encoding="utf-8"))]
    assert len(named) > 20
    assert [name for name in named if name not in FAULTS] == []
