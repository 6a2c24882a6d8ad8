"""The rules of the project that are about files and not about numbers: see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tree import PRODUCT, ROOT, circles, files, graph, sources

MOST_LINES = 60
"""Of a function, ``def`` to its end; statements and parameters are counted by ruff (see ``pyproject.toml``)."""


def too_large(source: str) -> list[str]:
    """One line for every function of a file above the limit, nested ones and methods too."""
    return list(_too_large(ast.parse(source), ""))


def _too_large(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (child.end_lineno or child.lineno) - child.lineno + 1
            if lines > MOST_LINES:
                yield f"{prefix}{child.name} has {lines} lines"
        yield from _too_large(child, name)


def several_assignments(source: str) -> list[int]:
    """Lines that assign several values at once: ``a, b = x, y`` and ``a = b = x``.

    Unpacking of one value is one assignment, and so is a pair in which a later value needs an earlier target as it was
    before: ``a, b = b, a + b``.
    """
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign) and _several(node)]


def _several(node: ast.Assign) -> bool:
    target, value = node.targets[0], node.value
    if len(node.targets) > 1:
        return True
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)):
        return False
    targets = [ast.unparse(one) for one in target.elts]
    needs = [{ast.unparse(part) for part in ast.walk(one) if isinstance(part, ast.expr)} for one in value.elts]
    return not any(targets[i] in needs[j] for j in range(len(needs)) for i in range(j))


def pyproject(pattern: str) -> list[str]:
    """What the pattern finds at starts of lines of ``pyproject.toml`` (Python 3.10 has no reader of TOML)."""
    return re.findall(rf"^{pattern}", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


def test_no_function_is_too_large():
    found = {path.relative_to(ROOT).as_posix(): too_large(path.read_text(encoding="utf-8")) for path in files()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_one_assignment_a_line():
    lines = {
        path.relative_to(ROOT).as_posix(): several_assignments(path.read_text(encoding="utf-8")) for path in files()
    }
    assert {name: numbers for name, numbers in lines.items() if numbers} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("a, b = x, y", [1]),
        ("a = b = 0", [1]),
        ("a, b = b, a", []),
        ("a, b = b, a + b", []),
        ("a, b = f(x)", []),
        ("a.x, a.y = b, a.z", [1]),
    ],
)
def test_several_assignments_are_seen(source, lines):
    assert several_assignments(source) == lines


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n" + "    x = 1\n" * 60, ["f has 61 lines"]),
        ("def f():\n" + "    x = 1\n" * 59, []),
        ("class A:\n    def f(self):\n" + "        x = 1\n" * 60, ["A.f has 61 lines"]),
        ("def f():\n    async def g():\n" + "        x = 1\n" * 60, ["f has 62 lines", "f.g has 61 lines"]),
    ],
    ids=["just too long", "just right", "method", "nested"],
)
def test_a_large_function_is_found(source, found):
    assert too_large(source) == found


def test_no_circle_of_imports():
    assert circles(graph(sources())) == []


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a": "import b", "b": "import c", "c": "from a import x"}, [["a", "b", "c"]]),
        ({"a": "import b", "b": "import c", "c": "import d", "d": ""}, []),
        ({"a": "import b", "b": "def f():\n    import a"}, [["a", "b"]]),
        ({"p.": "", "p.a": "from p import b", "p.b": "def f():\n    from . import a"}, [["p.a", "p.b"]]),
        ({"p.": "", "p.a": "from q.b import x", "q.": "", "q.b": "def f():\n    import p.a"}, []),
        ({"p.": "from p.a import x", "p.a": "import p\nx = 1"}, [["p", "p.a"]]),
        ({"a": "import a", "b": ""}, []),
    ],
)
def test_a_circle_is_found(texts, found):
    """A name that ends in a dot is a package."""
    modules = {name.removesuffix("."): (source, name.endswith(".")) for name, source in texts.items()}
    assert circles(graph(modules)) == found


def test_product_patches_nothing():
    """``unittest`` (its ``mock``) belongs into tests and faults, which change the product from outside."""
    used = [
        path.relative_to(ROOT).as_posix()
        for path in files("refsim", "tt_impl", "parity")
        if re.search(r"\bunittest\b", path.read_text(encoding="utf-8"))
    ]
    assert [name for name in used if not name.startswith("parity/faults/")] == []


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "docs/words.md"])
def test_a_project_people_can_join_has(name):
    assert (ROOT / name).is_file()


def test_the_licence_is_the_one_that_is_declared():
    assert pyproject('license = "(.+)"$') == ["Apache-2.0"]
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert len(text.split()) == 1581  # the words of the licence's text as its authors publish it, appendix included


def test_there_is_one_version():
    code = "import refsim; print(refsim.__version__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    version = ran.stdout.strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert pyproject("version = (.+)") == ['{ attr = "refsim.__version__" }']
    assert pyproject("dynamic = (.+)") == ['["version"]']
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)[:2] == ["Unreleased", version]


@pytest.mark.parametrize("package", PRODUCT)
def test_a_package_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()


def test_every_data_file_is_in_the_wheel():
    """What lies between the modules must match a pattern of ``package-data``, or an installed copy lacks it."""
    patterns = ast.literal_eval(pyproject(r'"\*" = (\[.+\])$')[0])
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True)
    data = [Path(name) for name in listed.stdout.split() if not name.endswith(".py")]
    assert any(path.suffix == ".json" for path in data)
    assert [path for path in data if not any(path.match(pattern) for pattern in patterns)] == []
    assert [path for path in data if not (ROOT / path.parent / "__init__.py").is_file()] == []


def constraints() -> dict[str, str]:
    """Package -> version, of ``constraints.txt``."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#")]
    return {one.name: str(one.specifier).removeprefix("==") for one in wanted}


def test_constraints_are_within_the_ranges():
    """Of every package that has a range with an end, which is one that numbers may depend on."""
    quoted = re.findall(r'"([a-z][\w-]*[<>=][^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ranges = {r.name: r.specifier for r in map(Requirement, quoted) if "<" in str(r.specifier)}
    assert set(ranges) == set(constraints())
    assert [name for name, version in constraints().items() if version not in ranges[name]] == []


@pytest.mark.parametrize("name", ["diffusers", "transformers"])
def test_the_oldest_python_is_not_bound_to_what_it_cannot_have(name):
    """Of either the constrained version has no release for Python 3.10; the range has older ones."""
    wanted = map(
        Requirement, re.findall(r"^\w.+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    (marker,) = (one.marker for one in wanted if one.name == name)
    assert pyproject(r'^requires-python = "(.+)"$') == [">=3.10"]
    assert marker and [v for v in ("3.10", "3.11", "3.13") if marker.evaluate({"python_version": v})] == [
        "3.11",
        "3.13",
    ]


def test_constraints_are_the_versions_of_what_was_measured():
    made = json.loads((ROOT / "parity/measure/calibration.json").read_text(encoding="utf-8"))["made"]["versions"]
    assert {name: made[name].partition("+")[0] for name in constraints()} == constraints()


def test_sessions_install_the_project_with_the_constraints():
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    installs = [line for line in re.findall(r"session\.install\((.+)\)", noxfile) if '"-e"' in line]
    assert installs and all(line.startswith("*VERSIONS, ") for line in installs)
    assert 'VERSIONS = ("-c", "constraints.txt")' in noxfile


def test_commit_hooks_check_what_lint_checks():
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    pinned = ast.literal_eval(re.search(r"^LINTERS = (\(.*?\))$", noxfile, re.MULTILINE)[1])
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r'additional_dependencies: \["(.+?)"\]', hooks)) == set(pinned)


def test_words_are_sorted_and_defined_once():
    """And every word in italics, which says that it is defined here, is."""
    text = (ROOT / "docs/words.md").read_text(encoding="utf-8").partition("## Letters")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    words = [re.sub(r"\W", " ", row[0]).casefold() for row in rows[1:]]
    assert words == sorted(set(words))
    known = {part.casefold() for row in rows for part in row[0].split(", ")}
    known |= {plural for word in known for plural in (f"{word}s", f"{word}es", re.sub("y$", "ies", word))} | {"axes"}
    used = {word.casefold() for row in rows for word in re.findall(r"(?<!\*)\*([^*]+)\*", row[1])}
    assert used - known == set()


PARTS = {
    **dict.fromkeys(("zygote", "zygotes"), "fork server"),
    **dict.fromkeys(("twin", "twins"), "counterpart"),
    **dict.fromkeys(("wing", "wings"), "device backend"),
    **{
        "wire": "transport",
        "blame": "diagnosis",
        "said": "printed",
        "told": "reported",
        "today": "now",
        "helps": "hint",
    },
}
"""Private words that stand in no part of a name, and the field's word for each; ``docs/words.md`` has those."""
NAMES = {
    "found": "what it is: matches, metrics, shapes, result",
    "given": "arguments, inputs, options",
    "held": "tensors, shards, contents",
    "kept": "cache, remaining, columns",
    "own": "local, user_..., of this project",
    "truth": "expected",
    "telling": "progress, informative",
    "study": "recognition",
    "own text": "user_text",
    "own checkpoint": "user_checkpoint",
    "placed calls": "calls and their placements",
}
"""Private words that are no name of a thing by themselves, whatever underscores stand around them."""
PROSE = {
    **dict.fromkeys(("zygote", "zygotes"), "fork server"),
    **dict.fromkeys(("twin", "twins"), "counterpart"),
    **dict.fromkeys(("wing", "wings"), "device backend"),
    **{"own text": "the user's text", "truth": "what is right", "telling": "informative"},
}
"""Private words that stand in no docstring, comment, message, help text or document."""
SHOWN = {"refsim/cli/commands/plan.py": {"today"}, "tt_impl/reports/memory.py": {"kept"}}
"""The names of flags, and of what records show."""


def identifiers(source: str) -> set[str]:
    """Every name that a file defines or uses, in lower case with a space between its parts."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        for attribute in ("id", "attr", "arg", "name", "module", "asname"):
            if isinstance(name := getattr(node, attribute, None), str):
                names.update(name.split("."))
    return {re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", name).strip().casefold() for name in names}


def private_names(source: str) -> set[str]:
    """The private words among a file's names: a part of ``_old_zygote``, all of ``_found``, not ``not_found``."""
    names = identifiers(source)
    return (names & NAMES.keys()) | ({part for name in names for part in name.split()} & PARTS.keys())


def private_words(text: str) -> set[str]:
    """The private words of a text, whatever space is between two of them."""
    spaced = " ".join(text.casefold().split())
    return {word for word in PROSE if word in spaced and re.search(rf"\b{word}\b", spaced)}


def test_names_are_field_terms():
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        assert private_names(path.read_text(encoding="utf-8")) - SHOWN.get(name, set()) == set(), name


def test_texts_are_in_field_terms():
    documents = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    words = {path: private_words(path.read_text(encoding="utf-8")) for path in (*files(), *documents)}
    assert {path.relative_to(ROOT).as_posix(): private for path, private in words.items() if private} == {}


def test_a_private_word_is_found():
    source = "from a.wire import x as y\nclass MyZygote:\n    def f(self, twin=0): self.wing_count = said\n"
    assert private_names(source) == {"wire", "zygote", "twin", "wing", "said"}
    assert private_names("_found = not_found\nclass Held: pass\nimport a.study\nx.own_version") == {
        "found",
        "held",
        "study",
    }
    assert private_words("Ask the Wing: it is\n telling in its own\n    text.") == {"wing", "telling", "own text"}
