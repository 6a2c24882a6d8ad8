"""What two reports differ in: the first of every kind, by call and line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from refsim.base.errors import UserError
from refsim.files.keys import as_json
from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.json_output import loads
from tests.tt_impl.worker import launch
from tt_impl.harness.comparison.diff import Tolerance, diff, pcc


def value(digest: str, sample: list[float]) -> dict[str, Any]:
    rms = (sum(x * x for x in sample) / len(sample)) ** 0.5
    return {"digest": digest, "differ": 1, "nan": 0, "absmax": max(map(abs, sample)), "rms": rms, "sample": sample}


def tensor(shape: list[int], found: dict[str, Any] | None = None) -> dict[str, Any]:
    kinds = {"dtype": "BFLOAT16", "layout": "TILE", "memory": "DRAM", "sharding": None}
    return {"shape": shape, "value": found} | kinds


def call(number: int, op: str, shape: tuple[int, ...] = (64, 64), digest: str = "") -> dict[str, Any]:
    result = tensor(list(shape), value(digest or op, [1.0, -2.0, 3.0, 0.5]))
    return {"number": number, "op": op, "where": f"a.py:{number}", "inputs": [tensor(list(shape))], "outputs": [result]}


def crossing(number: int, name: str = "all_gather", **more: Any) -> dict[str, Any]:
    place = {"number": number, "op": f"ttnn.{name}", "where": f"a.py:{number}"}
    return place | {"collective": name, "axis": 1, "bytes": 4096, "topology": "Linear", "links": 1} | more


def report(*ops: str) -> dict[str, Any]:
    peak = {"bytes": 1000, "op": ops[0], "where": "a.py:0", "event": 0}
    return {
        "operations": [call(i, op) for i, op in enumerate(ops)],
        "collectives": [crossing(1)],
        "memory": {"meshes": [{"DRAM": {"peak": dict(peak)}, "L1": {"with_programs": dict(peak)}}]},
        "cost": {"ns": 10_000.0, "busy_ns": {"0": 9_900.0, "1": 9_900.0}},
    }


A = ("linear", "gelu", "all_gather", "add")


def kinds(found: Any) -> list[str]:
    return [d.kind for d in found.differences]


def test_a_program_is_the_same_as_itself_elsewhere_in_its_file() -> None:
    moved = report(*A)
    for op in moved["operations"]:
        op["where"] = "b.py:99"
    found = diff(report(*A), moved)
    assert found.same and found.text() == "the same; predicted 10.0 us -> 10.0 us."


def test_a_call_left_out_and_one_put_in() -> None:
    found = diff(report(*A), report("linear", "all_gather", "add", "reduce_scatter"))
    assert [c["op"] for c in found.only_a] == ["gelu"] and [c["op"] for c in found.only_b] == ["reduce_scatter"]
    assert kinds(found) == ["operation"]
    assert found.differences[0].sentence == "only A calls gelu (call 1 at a.py:1)."
    assert "- gelu [[64, 64]] at a.py:1" in found.text() and "+ reduce_scatter" in found.text()


@pytest.mark.parametrize("count", [12, 13])
def test_no_more_than_a_dozen_calls_are_named(count: int) -> None:
    """All are there."""
    found = diff(report("a"), report("a", *(f"b{number}" for number in range(count))))
    text = found.text().splitlines()
    assert len(found.only_b) == count and sum(line.startswith("  + b") for line in text) == 12
    assert [line for line in text if line.startswith("  + and")] == ["  + and 1 more"] * (count - 12)


def test_calls_that_are_many_are_matched_all_the_same() -> None:
    found = diff(report(*["add"] * 250), report(*["add"] * 250, "gelu"))
    assert found.only_a == [] and [c["op"] for c in found.only_b] == ["gelu"]


def test_the_first_value_with_its_correlation() -> None:
    b = report(*A)
    b["operations"][1]["outputs"][0]["value"] = value("other", [1.0, 2.0, 3.0, 0.5])
    b["operations"][3]["outputs"][0]["value"] = value("more", [0.0, 0.0, 0.0, 1.0])
    (found,) = diff(report(*A), b).differences
    assert found.kind == "value" and found.a["op"] == found.b["op"] == "gelu"
    assert f"PCC {pcc([1.0, -2.0, 3.0, 0.5], [1.0, 2.0, 3.0, 0.5]):.6f} over 4 sampled" in found.sentence


def test_values_that_nobody_knows_are_not_called_the_same() -> None:
    a, b = report(*A), report(*A)
    b["operations"][1]["outputs"][0]["value"] = None
    (found,) = diff(a, b).differences
    assert found.kind == "value" and found.sentence.endswith(": its value is known to A only.")
    assert diff(b, a).differences[0].sentence.endswith(": its value is known to B only.")
    again = diff(b, copy.deepcopy(b))
    assert again.same and again.unknown == 1
    assert again.text().endswith("; 1 results are known to neither run and were not compared.")


def test_rounding_passes_with_a_tolerance_only() -> None:
    b = report(*A)
    b["operations"][1]["outputs"][0]["value"] = value("other", [1.001, -2.0, 3.0, 0.5])
    assert not diff(report(*A), b).same
    assert diff(report(*A), b, Tolerance(pcc=0.999)).same
    b["operations"][1]["outputs"][0]["value"] = value("near", [1.1, -2.0, 3.0, 0.5])
    exact = pcc([1.0, -2.0, 3.0, 0.5], [1.1, -2.0, 3.0, 0.5])
    assert diff(report(*A), b, Tolerance(pcc=exact)).same
    assert kinds(diff(report(*A), b, Tolerance(pcc=exact + 1e-9))) == ["value"]
    b["operations"][1]["outputs"][0]["value"] = value("twice", [2.0, -4.0, 6.0, 1.0])  # PCC 1, but twice as large
    assert kinds(diff(report(*A), b, Tolerance(pcc=0.999))) == ["value"]


def test_shape_and_dtype_of_the_same_call() -> None:
    b = report(*A)
    b["operations"][0]["outputs"][0]["shape"] = [64, 128]
    b["operations"][3]["outputs"][0] |= {"dtype": "BFLOAT8_B", "memory": "L1"}
    found = diff(report(*A), b)
    assert kinds(found) == ["shape", "dtype", "placement"] and not found.only_a
    assert "[64, 64] -> [64, 128]" in found.differences[0].sentence


@pytest.mark.parametrize("change", [{"axis": 0}, {"bytes": 8192}, {"links": 2}, {"collective": "all_reduce"}])
def test_a_collective_that_moves_otherwise(change: dict[str, Any]) -> None:
    b = report(*A)
    b["collectives"][0] |= change
    (found,) = diff(report(*A), b).differences
    assert found.kind == "collective" and str(next(iter(change.values()))) in found.sentence


def test_an_overlap_that_was_lost() -> None:
    a, b = report(*A), report(*A)
    a["collectives"][0]["within"] = "ttnn.experimental.all_gather_minimal_matmul_async"
    b["cost"]["ns"] = 20_000.0
    found = diff(a, b)
    assert kinds(found) == ["fusion", "time", "overlap"]
    assert "+100.0%" in found.differences[1].sentence and "99% -> 50%" in found.differences[2].sentence


def test_memory_within_its_tolerance() -> None:
    b = report(*A)
    b["memory"]["meshes"][0]["DRAM"]["peak"]["bytes"] = 1090
    assert kinds(diff(report(*A), b)) == ["memory"]
    assert diff(report(*A), b, Tolerance(memory=0.1)).same


def test_peaks_of_l1_are_with_its_programs() -> None:
    """Circular buffers count in L1, and of DRAM the tensors; of several meshes the one that has most."""
    b = report(*A)
    mesh = b["memory"]["meshes"][0]
    mesh["L1"]["peak"] = {"bytes": 1, "op": "x", "where": "y", "event": 7}
    mesh["DRAM"]["with_programs"] = {"bytes": 1, "op": "x", "where": "y", "event": 7}
    assert diff(report(*A), b).same
    mesh["L1"]["with_programs"]["bytes"] = 999
    (found,) = diff(report(*A), b).differences
    assert (
        found.sentence
        == "peak of L1 of the fullest core: 1000 bytes (linear at a.py:0) -> 999 bytes (linear at a.py:0)."
    )
    b["memory"]["meshes"].insert(0, {"DRAM": {"peak": {"bytes": 2000, "op": "add", "where": "a.py:3", "event": 3}}})
    mesh["L1"]["with_programs"]["bytes"] = 1000
    (found,) = diff(report(*A), b).differences
    assert found.sentence == "peak of DRAM of a device: 1000 bytes (linear at a.py:0) -> 2000 bytes (add at a.py:3)."
    assert (found.a["number"], found.b) == (0, {"number": 3, "op": "add", "where": "a.py:3"})


def test_calls_are_put_beside_each_other_by_shape_then_by_name() -> None:
    """A call of other shapes has its partner, unless one of the same shapes stands there."""
    a, b = report(*A), report(*A)
    for tensor in (*b["operations"][1]["inputs"], *b["operations"][1]["outputs"]):
        tensor["shape"] = [64, 32]
    found = diff(a, b)
    assert kinds(found) == ["shape"] and found.differences[0].sentence.startswith(
        "result 0 of gelu at a.py:1 -> a.py:1"
    )
    b["operations"].insert(1, call(9, "gelu"))
    found = diff(a, b)
    assert [c["number"] for c in found.only_b] == [1] and found.differences[
        0
    ].sentence == "only B calls gelu (call 1 at a.py:1)."


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "said"),
    [
        ({"nan": 0}, {"nan": 2}, 0.0, "0 -> 2 elements are not numbers"),
        ({}, {}, 0.0, None),
        ({"rms": 1.0}, {"rms": 1.04}, 0.9, None),
        ({"rms": 1.0}, {"rms": 1.06}, 0.9, "PCC 1.000000 over 2 sampled elements, rms 1 -> 1.06"),
        ({}, {"sample": [1.0, -1.0]}, 0.9, "PCC -1.000000 over 2 sampled elements, rms 1 -> 1"),
        ({"sample": [1.0, 1.0]}, {"sample": [1.0, 2.0]}, 0.9, "PCC 0.000000 over 2 sampled elements, rms 1 -> 1"),
    ],
)
def test_how_values_differ(old: dict, new: dict, tolerance: float, said: str | None) -> None:
    from tt_impl.harness.comparison.diff import _values

    value = {"digest": "a", "nan": 0, "rms": 1.0, "sample": [-1.0, 1.0]}
    assert _values(value | old, value | {"digest": "b"} | new, Tolerance(pcc=tolerance)) == said
    assert _values(value, value | {"nan": 7}, Tolerance()) is None  # of one digest all is equal


def test_how_much_devices_wait() -> None:
    a, b = report(*A), report(*A)
    b["cost"]["busy_ns"] = {"0": 9_500.0, "1": 9_300.0}
    assert diff(a, b).same  # a twentieth less is nothing
    b["cost"]["busy_ns"] = {"0": 9_900.0, "1": 8_000.0}
    assert kinds(diff(a, b)) == ["overlap"] and kinds(diff(b, a)) == []
    b["cost"]["busy_ns"] = {"0": 99_000.0, "1": 99_000.0}
    assert diff(b, b).same and diff(a, b).same


def test_every_difference_word_for_word() -> None:
    """Two reports with differences of every kind, and those of one collective more, both ways round."""
    a = report("linear", "gelu", "all_gather", "add", "split")
    b = report("linear", "relu", "all_gather", "add", "split")
    b["cost"] = {"ns": 12_500.0, "busy_ns": {"0": 9_900.0, "1": 5_000.0}}
    b["memory"]["meshes"][0]["DRAM"]["peak"] = {"bytes": 1500, "op": "add", "where": "a.py:3", "event": 3}
    for op in a["operations"]:
        op["where"] = f"old/{op['where']}"
    linear, _, gathered, added, split = (op["outputs"][0] for op in b["operations"])
    linear["value"] = value("other", [1.0, 2.0, 3.0, 0.5])
    gathered |= {"dtype": "BFLOAT8_B", "layout": "ROW_MAJOR", "sharding": "BLOCK_SHARDED"}
    added["shape"] = [64, 128]
    split["value"] = a["operations"][4]["outputs"][0]["value"] = None
    a["collectives"] = [crossing(1), crossing(2, "all_reduce", within="ttnn.matmul", topology=None, links=None)]
    b["collectives"] = [crossing(1), crossing(3, "reduce_scatter", axis=0, topology="Ring", links=2)]
    more = report("linear")
    more["collectives"].append(crossing(7, "all_reduce"))
    more["operations"][0]["outputs"].append(tensor([1]))
    found = [diff(a, b), diff(a, b, Tolerance(pcc=-1.0, memory=0.5, time=0.25)), diff(report("linear"), more)]
    found.append(diff(more, report("linear")))
    texts = [f"{one.text()}\n{json.dumps(as_json(one), indent=1)}\n" for one in found]
    words.check("difference.txt", "\n".join(texts))


@pytest.mark.parametrize("fallback", [False, True])
def test_a_script_is_run_for_its_report(fallback: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from tt_impl.harness.comparison import versions

    ran = []

    def run(command: list[str], **how: Any) -> Any:
        ran.append(command)
        folder = Path(command[command.index("--report") + 1])
        (folder / "x.json").write_text(json.dumps(report("add") | {"schema": 1}))
        (folder / "x.trace.json").write_text("{}")
        return SimpleNamespace(returncode=code, stdout='{"message": "no.\\nmore"}')

    monkeypatch.setattr(versions.subprocess, "run", run)
    script = tmp_path / "script.py"
    script.write_text("")
    code = 0
    assert versions.report_of(script, "n300", fallback)["operations"][0]["op"] == "add"
    code = 1
    with pytest.raises(UserError, match=r"script.py' does not run to its end on n300: no\.$"):
        versions.report_of(script, "n300", fallback)
    with pytest.raises(UserError, match=r"there is no script '.*nowhere.py';"):
        versions.report_of(tmp_path / "nowhere.py", "n300", fallback)
    words = ran[0][ran[0].index("ttnn") :]
    assert words[:5] == ["ttnn", "run", "--mesh", "n300", "--report"]
    assert words[6:] == ["--json", *["--fallback"] * fallback, str(script)]
    for answer in ("", "{}", "no json"):
        assert versions._reason(answer) == "see above"


def test_real_reports(measured: dict[str, Any]) -> None:
    """Of one program twice, of its leaking version, and of halves that wait for each other."""
    found = {
        name: json.loads((Path(measured["folder"]) / "reports" / f"tests_x.py_{name}_t3k.json").read_text())
        for name in ("clean_loop", "leaking_loop", "halves", "serial_halves")
    }
    again = diff(found["clean_loop"], copy.deepcopy(found["clean_loop"]))
    assert again.same
    leaking = diff(found["clean_loop"], found["leaking_loop"])
    assert {"operation", "memory"} <= set(kinds(leaking)) and "value" not in kinds(leaking)
    assert {c["op"] for c in leaking.only_b} == {"ttnn.create_global_semaphore", "ttnn.add"}
    serial = diff(found["halves"], found["serial_halves"], Tolerance(memory=1.0))
    assert {"time", "overlap"} <= set(kinds(serial)) and "collective" not in kinds(serial)
    assert "100% -> 50%" in serial.text()


def command(folder: Path, *words: str) -> Any:
    return launch("refsim", "ttnn", "diff", *words, folder=folder)


def test_command_on_reports(tmp_path: Path) -> None:
    """0 for the same, 1 for another one, 2 for what is no report; JSON on request."""
    for name, content in (("a", report(*A)), ("b", report(*A[:-1])), ("c", {})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content | ({"schema": 1} if content else {})))
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    assert command(tmp_path, a, a).returncode == 0
    ran = command(tmp_path, a, b, "--json")
    assert ran.returncode == 1 and loads("ttnn diff", ran.stdout)["only_a"][0]["op"] == "add"
    ran = command(tmp_path, a, c)
    assert ran.returncode == 2 and "no report of schema 1" in ran.stderr


SCRIPT = """
import torch, ttnn
mesh = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 1))
x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
ttnn.to_torch(ttnn.{op}(x, 3.0))
ttnn.close_mesh_device(mesh)
"""


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_command_on_scripts(tmp_path: Path) -> None:
    for op in ("add", "multiply"):
        (tmp_path / f"{op}.py").write_text(SCRIPT.format(op=op))
    scripts = [str(tmp_path / f"{op}.py") for op in ("add", "multiply")]
    ran = command(tmp_path, "--mesh", "n150", *scripts)
    assert ran.returncode == 1, ran.stderr
    assert "- ttnn.add [[32, 32]]" in ran.stdout and "+ ttnn.multiply [[32, 32]]" in ran.stdout
    (tmp_path / "fails.py").write_text("raise ValueError('nothing to do')\n")
    ran = command(tmp_path, "--mesh", "n150", str(tmp_path / "fails.py"), scripts[0])
    assert ran.returncode == 2 and "does not run to its end on n150: nothing to do." in ran.stderr
