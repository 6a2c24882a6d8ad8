"""Every kind of mistake is found at its line and operation, and the correct version of each program gives nothing."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.harness.programs import branches, cached, mistakes, padding, replays, seeded
from tests.tt_impl.worker import launch

pytestmark = pytest.mark.skipif(not HAS_TTNN, reason=REASON)
PROGRAMS = {name: module for module in (mistakes, branches, padding, replays, cached) for name in module.EXPECTED}
NOTES = (
    *("buffer_filled_on_the_way", "mask_of_a_slice", "parts_of_a_sum_composed"),
    *("latents_that_grow", "cache_under_trace", "ring_by_default"),
)
"""Programs whose finding is a note although its kind is one of errors."""
LINKS = {frozenset(pair): 2 for pair in ((0, 1), (1, 2), (2, 3))}
"""Four devices in a line."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("findings")
    for modules in (("mistakes", "padding", "replays", "cached", "seeded"), ("branches",)):
        ran = launch("tests.harness.watching", "t3k", str(folder), *modules, folder=folder, timeout=170)
        assert ran.returncode == 0, ran.stderr[-3000:]
    written = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return {name: ran for programs in written for name, ran in programs.items()}


def marked_line(name: str) -> int:
    """The line of a program that is marked as the one to name; of its ``gather``, where the program has none."""
    module = PROGRAMS[name]
    for function in (getattr(module, name), getattr(module, "gather", mistakes.gather)):
        lines, first = inspect.getsourcelines(function)
        for i, line in enumerate(lines):
            if "# here" in line:
                return first + i
    raise AssertionError(f"no line of {name} is marked")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mistake_is_found(name: str, found: dict[str, Any]) -> None:
    kind, op = PROGRAMS[name].EXPECTED[name]
    file = PROGRAMS[name].__name__.replace(".", "/") + ".py"
    ran = found[f"{name} wrong"]
    assert ran["error"] is None, ran["error"]
    found_there = [(f["kind"], f["op"], f["where"]) for f in ran["findings"]]
    assert found_there == [(kind, op, f"{file}:{marked_line(name)}")], ran["findings"]
    notes = {"unused-result", "submeshes-differ"}
    note = kind in notes or name in NOTES
    assert ran["findings"][0]["severity"] == ("note" if note else "error")
    sentence = ran["findings"][0]["sentence"]
    assert sentence.endswith(".") and "\n" not in sentence, sentence


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_correct_one_is_fine(name: str, found: dict[str, Any]) -> None:
    ran = found[f"{name} right"]
    assert ran["error"] is None, ran["error"]
    assert ran["findings"] == []


@pytest.mark.parametrize("name", seeded.EXPECTED)
def test_a_mistake_put_into_our_own_layers_is_named(name: str, found: dict[str, Any]) -> None:
    for how in ("wrong", "right"):
        ran = found[f"{name} {how}"]
        assert ran["error"] is None, ran["error"]
        errors = [(f["kind"], f["op"]) for f in ran["findings"] if f["severity"] == "error"]
        assert errors == ([seeded.EXPECTED[name]] if how == "wrong" else []), ran["findings"]


@pytest.mark.parametrize("module", [mistakes, branches, padding, replays, cached], ids=lambda module: module.__name__)
def test_findings_word_for_word(module: Any, found: dict[str, Any]) -> None:
    names = [f"{name} {version}" for name in module.EXPECTED for version in ("wrong", "right")]
    findings = {name: found[name]["findings"] for name in names}
    words.check(f"{module.__name__.rpartition('.')[2]}.json", words.all_told(findings))


def test_every_kind_has_a_program(found: dict[str, Any]) -> None:
    from tt_impl.harness.checks import KINDS

    made = {f["kind"] for ran in found.values() for f in ran["findings"]}
    # ttnn itself opens no such mesh with a fabric of one dimension; kernel-resources has one in tests/kernels,
    # trace-region in test_exhausted.py, the others in suite/test_strict.py
    assert KINDS.keys() - made == {"not-neighbours", "not-finite", "refused", "kernel-resources", "trace-region"}


@pytest.mark.parametrize("devices,said", [((0, 1, 2, 3), []), ((0, 2, 1, 3), ["not-neighbours"])])
def test_devices_in_an_order_without_links(devices: tuple[int, ...], said: list[str]) -> None:
    from tt_impl.harness.checks.find import find
    from tt_impl.mock.log.events import Event, EventLog, TensorUse

    use = TensorUse("0", 1, 0, (32, 32), "BFLOAT16", "TILE", "DRAM", None, 2048, devices, 1, (1, 4))
    crossing = {"collective": "all_gather", "axis": 1, "bytes": 2048, "topology": "Linear", "links": None}
    log = EventLog()
    log.events = [Event(0, "ttnn.all_gather", "program.py:1", [use], [], {}, [crossing])]
    found = [(finding.kind, finding.severity) for finding in find(log, LINKS) if finding.kind != "unused-result"]
    assert found == [(kind, "note") for kind in said]


def test_links_of_the_cluster_that_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tt_impl.harness.checks.fabric import CLUSTER_DESCRIPTOR, cluster_links

    path = tmp_path / "cluster.yaml"
    monkeypatch.delenv(CLUSTER_DESCRIPTOR, raising=False)
    assert cluster_links() is None
    monkeypatch.setenv(CLUSTER_DESCRIPTOR, str(path))
    assert cluster_links() is None
    path.write_text("chips: {0: [0, 0, 0, 0]}\n")
    assert cluster_links() == {}
    ends = "[{chip: %d, chan: 0}, {chip: %d, chan: 1}]"
    path.write_text(f"ethernet_connections: [{', '.join(ends % pair for pair in ((0, 1), (1, 0), (1, 2)))}]\n")
    assert cluster_links() == {frozenset((0, 1)): 2, frozenset((1, 2)): 1}


@pytest.mark.parametrize(("op", "kinds"), [("ttnn.experimental.recv_async", []), ("ttnn.relu", ["never-written"] * 2)])
def test_what_is_received_later_is_written(op: str, kinds: list[str]) -> None:
    """The values come when they are sent, after the call; an operation that reads the tensor then reads them."""
    from tt_impl.harness.checks.buffers import never_written
    from tt_impl.mock.log.events import Event, EventLog, TensorUse
    from tt_impl.mock.storage.values import ProgramValues

    use = TensorUse("0", 1, 0, (32, 32), "BFLOAT16", "TILE", "DRAM", None, 2048, (0,), 1, (1, 1))
    log = EventLog(ProgramValues())
    made = Event(0, "ttnn.allocate_tensor_on_device", "program.py:1", [], [use])
    log.events = [made, *(Event(n, name, f"program.py:{n}", [use]) for n, name in ((1, op), (2, "ttnn.relu")))]
    assert [finding.kind for finding in never_written(log)] == kinds


def test_alike_findings_are_one() -> None:
    """Of a kind, an operation, a line and a severity; the first in the program, with how many there are."""
    from tt_impl.harness.checks.finding import Finding, once

    same = [Finding("freed", f"{n}.", "ttnn.add", "a.py:1", n) for n in (5, 3, 9)]
    others = [
        Finding("refused", "x.", "ttnn.add", "a.py:1", 4), Finding("freed", "x.", "ttnn.exp", "a.py:1", 6),
        Finding("freed", "x.", "ttnn.add", "a.py:2", 7), Finding("freed", "x.", "ttnn.add", "a.py:1", 8, "note"),
    ]  # fmt: skip
    assert others[0].count == 1
    found = once([*others, *same])
    assert [(f.number, f.count, f.sentence) for f in found] == [
        (3, 3, "3."), (4, 1, "x."), (6, 1, "x."), (7, 1, "x."), (8, 1, "x.")
    ]  # fmt: skip
    assert str(found[0]) == "a.py:1: error: freed: 3. (3 times)" and str(found[1]) == "a.py:1: error: refused: x."
