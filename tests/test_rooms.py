"""The product lies in rooms: few modules a folder, few at a root, and no two rooms that import each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tree import ROOT, files, imports, sources

MOST_MODULES = 20
"""Beside ``__init__`` in one folder."""
MOST_AT_A_ROOT = 4
ONE_A_FAMILY = ("tt_impl/mock/rules",)
"""Folders with a file a family of operations, as many as there are."""
PARENTS = ("parity", "tt_impl", "refsim.timing")


def crowded(paths: list[str]) -> list[str]:
    """The folders of these files with too many modules."""
    counts = Counter(str(Path(path).parent) for path in paths if not path.endswith("__init__.py"))
    return sorted(folder for folder, n in counts.items() if n > MOST_MODULES and folder not in ONE_A_FAMILY)


def two_way(parent: str, texts: dict[str, tuple[str, bool]]) -> set[tuple[str, str]]:
    """Pairs of rooms of a package that import each other when they are loaded, each in the order of the alphabet."""
    depth = parent.count(".") + 1
    arrows = set()
    for module, (source, is_package) in texts.items():
        for found in imports(module, source, is_package=is_package):
            parts, others = module.split("."), found.name.split(".")
            if not found.lazy and found.name.startswith(f"{parent}.") and len(parts) > depth:
                arrows.add((parts[depth], others[depth]))
    return {(a, b) for a, b in arrows if a < b and (b, a) in arrows}


def test_no_folder_is_crowded():
    assert crowded([path.relative_to(ROOT).as_posix() for path in files()]) == []


def test_a_crowded_folder_is_found():
    names = [f"tt_impl/mock/m{number}.py" for number in range(MOST_MODULES)]
    assert crowded([*names, "tt_impl/mock/__init__.py"]) == []
    assert crowded([*names, "tt_impl/mock/one_more.py"]) == ["tt_impl/mock"]
    assert crowded([name.replace("mock", "mock/rules") for name in (*names, "tt_impl/mock/one_more.py")]) == []


@pytest.mark.parametrize("package", ["parity", "tt_impl"])
def test_few_files_lie_at_a_root(package):
    assert len(list((ROOT / package).glob("*.py"))) <= MOST_AT_A_ROOT


@pytest.mark.parametrize("parent", PARENTS)
def test_rooms_stand_on_one_another(parent):
    texts = sources(parent.replace(".", "/"))
    assert len({module.split(".")[parent.count(".") + 1] for module in texts if module != parent}) > 3
    assert two_way(parent, texts) == set()


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"p.a.x": "from p.b import y", "p.b.y": "from p.a import x"}, {("a", "b")}),
        ({"p.a.x": "from p.b import y", "p.b.y": "def f():\n    from p.a import x"}, set()),
        ({"p.a.x": "from p.b import y", "p.b.y": "import p.c.z", "p.c.z": "import p.a.x"}, set()),
        ({"p.a.x": "import p.a.z", "p.a.z": "import p.a.x"}, set()),
        ({"p.b.x": "if TYPE_CHECKING:\n    from p.a import y", "p.a.y": "import p.b.x"}, {("a", "b")}),
    ],
)
def test_rooms_that_import_each_other_are_found(texts, found):
    assert two_way("p", {name: (source, False) for name, source in texts.items()}) == found
