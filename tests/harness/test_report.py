"""The files of a report: what they hold, and that those who are to open them find what they look for."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from refsim.base.errors import UserError
from refsim.timing.cost import device_ops
from refsim.timing.fit.measured import trace
from tests.harness import words
from tests.harness.conftest import HAS_TTNN, REASON
from tests.harness.suites import run_suite
from tt_impl.harness.pytest import summary
from tt_impl.harness.pytest.verdicts import Verdict
from tt_impl.harness.reports import index, markdown

REPORTS = "reports"


def path_of(measured: dict[str, Any], program: str, suffix: str = ".json") -> Path:
    return Path(measured["folder"]) / REPORTS / f"tests_x.py_{program}_t3k{suffix}"


def report_of(measured: dict[str, Any], program: str) -> dict[str, Any]:
    return json.loads(path_of(measured, program).read_text(encoding="utf-8"))


def test_every_call_is_an_operation(measured: dict[str, Any]) -> None:
    found = report_of(measured, "costs")
    assert found["schema"] == 1 and found["name"] == "tests/x.py::costs[t3k]"
    ops = [op["op"] for op in found["operations"]]
    assert ops[-6:] == [
        *("ttnn.linear", "ttnn.gelu", "ttnn.layer_norm", "ttnn.all_gather", "ttnn.reduce_scatter", "ttnn.sum"),
    ]
    assert [op["number"] for op in found["operations"]] == list(range(len(ops)))
    linear = found["operations"][ops.index("ttnn.linear")]
    assert [t["shape"] for t in linear["inputs"]] == [[1, 1, 2048, 1024], [1024, 4096]]
    assert linear["outputs"][0]["shape"] == [1, 1, 2048, 4096] and linear["error"] is None
    assert re.fullmatch(r"tests/harness/measured\.py:\d+", linear["where"])


def test_digests_tell_values_apart(measured: dict[str, Any]) -> None:
    """Two calls of the same operation on the same values leave the same digest; another factor another one."""
    values = [
        op["outputs"][0]["value"] for op in report_of(measured, "holes")["operations"] if op["op"] == "ttnn.multiply"
    ]
    digests = [value["digest"] for value in values]
    assert len(set(digests)) == len(digests) == 16
    loop = [
        op["outputs"][0]["value"]
        for op in report_of(measured, "clean_loop")["operations"]
        if op["op"] == "ttnn.all_gather"
    ]  # fmt: skip
    assert len({value["digest"] for value in loop}) == 1
    assert values[3]["absmax"] == 3.0 and values[3]["differ"] == 1 and values[0]["rms"] == 0.0
    assert len(values[3]["sample"]) == 64 and max(map(abs, values[3]["sample"])) <= 3.0


def test_collectives_in_order(measured: dict[str, Any]) -> None:
    found = [(c["collective"], c["axis"], c["bytes"]) for c in report_of(measured, "costs")["collectives"]]
    size = 2048 * 1024 * 2
    assert found == [("all_gather", 1, size), ("reduce_scatter", 1, size)]


def test_leaks_are_findings(measured: dict[str, Any]) -> None:
    assert [f["kind"] for f in report_of(measured, "leaking_loop")["findings"]] == ["leak", "leak"]
    assert report_of(measured, "clean_loop")["findings"] == []


def test_markdown_says_that_times_are_predicted(measured: dict[str, Any]) -> None:
    text = path_of(measured, "leaking_loop", ".md").read_text(encoding="utf-8")
    assert "not measured" in text and "no kernel was run" in text
    assert "- leak: ttnn.all_gather at tests/harness/measured.py:" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"meshes": []}, "operations on no mesh, on a mock mesh: no kernel was run.\n"),
        ({"values": False}, "no kernel was run. Values off: nothing about values was shown.\n"),
        (
            {"numerics": {"level": "fast", "rounded": {"ttnn.add": 1}, "once": {}}},
            "no kernel was run. numerics fast: 1 operations rounded as the kernels do, 0 of 1 kinds rounded once.\n",
        ),
        (
            {"fallbacks": {"ttnn.x": 2}},
            "Answered by ttnn's own golden functions, which proves nothing of their values: `ttnn.x` x2.\n",
        ),
        ({"memory.unknown_layouts": 2}, "Of 2 programs ttnn would not tell the circular buffers.\n"),
        ({"memory.traces": ["the trace holds 3."]}, "At the end the trace holds 3.\n"),
        (
            {"memory.kernel_binaries": {"programs": 3, "bytes": 3 << 19, "source": "so"}},
            "kernel binaries of 3 programs, about 1.5 MiB of DRAM on each device (so).\n",
        ),
        ({"name": "another"}, "# another\n\n"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_people_are_told(change: dict[str, Any], said: str, measured: dict[str, Any]) -> None:
    """A sentence that stands in a report with the change, and not without it."""
    report = report_of(measured, "costs")
    assert said not in markdown.program(report)
    for name, value in change.items():
        *path, last = name.split(".")
        (report[path[0]] if path else report)[last] = value
    assert said in markdown.program(report)


def test_reports_word_for_word(measured: dict[str, Any]) -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in sorted((Path(measured["folder"]) / REPORTS).glob("tests*.md"))
    ]
    texts.append((Path(measured["folder"]) / REPORTS / "index.md").read_text(encoding="utf-8"))
    words.check("reports.txt", words.by_source("\n".join(texts)))


@pytest.mark.parametrize(("program", "suffix"), [("costs", ".csv"), ("halves", ".trace.json"), ("peak", ".json")])
def test_files_of_a_report_in_whole(program: str, suffix: str, measured: dict[str, Any]) -> None:
    text = path_of(measured, program, suffix).read_text(encoding="utf-8")
    if suffix != ".csv":
        text = json.dumps(json.loads(text, object_hook=_without_bits), indent=1) + "\n"
    words.check(f"{program}{suffix}", words.by_source(text))


def _without_bits(part: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a processor may round otherwise."""
    return {name: sorted(value) if name == "value" and value else value for name, value in part.items()}


def test_trace(measured: dict[str, Any]) -> None:
    """Chrome's format: every event has a phase, a process and, but for names, a time; nothing of a device overlaps."""
    trace = json.loads(path_of(measured, "costs", ".trace.json").read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    assert "not measured" in trace["otherData"]["source"]
    assert all(set(e) >= {"ph", "pid", "name"} for e in events)
    assert all(e["ts"] >= 0 for e in events if e["ph"] != "M") and {e["ph"] for e in events} == {*"MXiC"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(pid for pid in names if pid < 8) == list(range(8)) and all("predicted" in n for n in names.values())
    for device in range(8):
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == device]
        assert len(spans) == 6 and all(b[0] >= a[1] for a, b in pairwise(spans))
    unpriced = [e for e in events if e["ph"] == "i" and e.get("cat") == "unpriced"]
    assert {e["args"]["no price"] for e in unpriced} == {"no formula"} and len(unpriced) == 8
    levels = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"].endswith("DRAM")]
    assert max(levels) == mesh_peak(measured) and levels != sorted(levels)


def test_calls_and_levels_are_where_their_programs_are(measured: dict[str, Any]) -> None:
    trace = json.loads(path_of(measured, "costs", ".trace.json").read_text(encoding="utf-8"))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    of_device = {e["args"]["call"]: (e["ts"], e["dur"]) for e in spans if e["pid"] == 0}
    host = {e["args"]["call"]: (e["ts"], e["dur"]) for e in spans if e["pid"] > 8}
    assert host == of_device and len(host) == 6
    ends = {round(start + took, 3) for start, took in host.values()}
    assert {e["ts"] for e in trace["traceEvents"] if e["ph"] == "C"} >= ends


def mesh_peak(measured: dict[str, Any]) -> int:
    return report_of(measured, "costs")["memory"]["meshes"][0]["DRAM"]["peak"]["bytes_per_bank"]


COLUMNS = (
    *("OP CODE", "OP TYPE", "GLOBAL CALL COUNT", "DEVICE ID", "DEVICE ARCH", "ATTRIBUTES", "MATH FIDELITY"),
    *("CORE COUNT", "AVAILABLE WORKER CORE COUNT", "OP TO OP LATENCY [ns]", "DEVICE FW DURATION [ns]"),
    *("DEVICE KERNEL DURATION [ns]", "HOST START TS", "INPUT_0_MEMORY", "INPUT_1_DATATYPE", "OUTPUT_0_LAYOUT"),
    *("INPUT_0_W_PAD[LOGICAL]", "OUTPUT_0_X_PAD[LOGICAL]"),
)
"""Those that tt-perf-report 1.4.1 reads."""


def test_csv_has_the_columns_of_a_profiler(measured: dict[str, Any]) -> None:
    with path_of(measured, "costs", ".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(COLUMNS) <= set(rows[0])
    product = rows[0]
    assert (product["OP CODE"], product["DEVICE ARCH"]) == ("MatmulDeviceOperation", "wormhole_b0")
    assert (product["INPUT_1_Y_PAD[LOGICAL]"], product["INPUT_1_X_PAD[LOGICAL]"]) == ("1024[1024]", "4096[4096]")
    assert product["INPUT_0_MEMORY"] == "DEV_0_DRAM_INTERLEAVED"
    assert all("'duration': 'predicted'" in row["ATTRIBUTES"] and "," not in row["ATTRIBUTES"] for row in rows)
    assert [row["OP CODE"] for row in rows if not row["DEVICE KERNEL DURATION [ns]"]] == ["ReduceDeviceOperation"]


def test_csv_is_read_back_to_the_same_prices(measured: dict[str, Any]) -> None:
    """By the reader of real profiler files; a collective's links are no column, so they are left out."""
    found = {m.op.name: (m.op, m.ns) for m in trace(path_of(measured, "costs", ".csv"))}
    for name in ("MatmulDeviceOperation", "UnaryDeviceOperation", "LayerNormDeviceOperation"):
        op, ns = found[name]
        assert device_ops.price(op).ns == pytest.approx(ns, rel=1e-3)


@pytest.fixture
def database(measured: dict[str, Any]) -> sqlite3.Connection:
    folder = path_of(measured, "costs", ".visualizer")
    assert json.loads((folder / "config.json").read_text())["report_name"] == "tests/x.py::costs[t3k]"
    return sqlite3.connect(folder / "db.sqlite")


def test_visualizer_finds_operations_and_their_tensors(database: sqlite3.Connection) -> None:
    rows = database.execute("SELECT operation_id, name FROM operations WHERE 1=1 ORDER BY operation_id").fetchall()
    linear = next(number for number, name in rows if name == "ttnn.linear")
    query = (
        "SELECT t.shape, t.dtype, t.layout, t.memory_config, t.buffer_type FROM tensors t "
        "JOIN {0}_tensors i ON t.tensor_id = i.tensor_id WHERE i.operation_id = ? ORDER BY i.{0}_index"
    )
    inputs = database.execute(query.format("input"), [linear]).fetchall()
    assert [row[0] for row in inputs] == ["Shape([1, 1, 2048, 1024])", "Shape([1024, 4096])"]
    shape, dtype, layout, config, memory = database.execute(query.format("output"), [linear]).fetchone()
    assert (shape, dtype, layout, memory) == ("Shape([1, 1, 2048, 4096])", "DataType.BFLOAT16", "Layout.TILE", 0)
    assert re.match(r"^MemoryConfig\((.*)\)$", config) and "TensorMemoryLayout::INTERLEAVED" in config
    (trace,) = database.execute("SELECT stack_trace FROM stack_traces WHERE operation_id = ?", [linear]).fetchone()
    assert re.match(r'^\s*File "tests/harness/measured\.py", line \d+, in ', trace)


def test_visualizer_finds_the_buffers_after_each_operation(
    database: sqlite3.Connection, measured: dict[str, Any]
) -> None:
    query = "SELECT operation_id, SUM(max_size_per_bank) FROM buffers WHERE buffer_type = 0 GROUP BY operation_id"
    sums = dict(database.execute(query).fetchall())
    assert max(sums.values()) == mesh_peak(measured)
    (cores, banks) = database.execute("SELECT num_compute_cores, l1_num_banks FROM devices").fetchone()
    assert (cores, banks) == (64, 64)
    assert database.execute("SELECT COUNT(*) FROM errors").fetchone() == (0,)


def test_tables_of_the_visualizer(database: sqlite3.Connection) -> None:
    """All but addresses and the text of traces, which hold numbers of lines."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    tables = {}
    for name in names:
        rows = [list(row) for row in database.execute(f"SELECT * FROM {name}")]
        tables[name] = [len(rows), *rows[:12]]
    text = "".join(f"{name} {json.dumps(rows)}\n" for name, rows in tables.items())
    words.check("costs.visualizer.txt", words.by_source(re.sub(r'\\", line ', ":", text)))


def test_index_over_all_programs(measured: dict[str, Any]) -> None:
    folder = Path(measured["folder"]) / REPORTS
    rows = json.loads((folder / "index.json").read_text(encoding="utf-8"))["programs"]
    assert {row["name"] for row in rows} == {f"tests/x.py::{name}[t3k]" for name in measured if name != "folder"}
    row = next(row for row in rows if row["file"] == "tests_x.py_leaking_loop_t3k.json")
    assert row["findings"] == {"leak": 2} and row["unpriced"] == 0 and row["ns"] == sorted(row["ns"])
    assert "[tests/x.py::costs[t3k]](tests_x.py_costs_t3k.md)" in (folder / "index.md").read_text(encoding="utf-8")


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ('{"schema": 7, "operations": []}', '{"schema": 1}', '[{"schema": 1, "operations": []}]'):
        path.write_text(text)
        with pytest.raises(UserError, match=r"x.json' is no report of schema 1; write it again with ttnn_report=DIR\."):
            index.load(path)
    path.write_text("{")
    for bad, why in ((path, "Expecting property name"), (tmp_path / "nowhere", r"\[Errno 2\] No such file")):
        with pytest.raises(UserError, match=rf"{bad.name}' is no report: {why}.*; ttnn_report=DIR writes them\.$"):
            index.load(bad)


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_a_program_that_was_not_metered_has_no_report() -> None:
    from tt_impl.harness.reports.write import content

    with pytest.raises(UserError, match=r"^a report needs a program watched with report=True; "):
        content(cast("Any", SimpleNamespace(meter=None)), "program", None)


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_plugin_writes_a_report_for_every_test(tmp_path: Path) -> None:
    ran = run_suite(tmp_path, "--ttnn-mock=n150", "--ttnn-report=../reports", "-k", "matmul", files=("test_values.py",))
    assert ran.code == 0, ran.out[-3000:]
    (row,) = json.loads((tmp_path / "reports/index.json").read_text())["programs"]
    assert row["name"] == "test_values.py::test_matmul[device_params0]" and row["ns"][1] > 0
    assert "predicted times: ../reports/index.md" in ran.out
    found = json.loads((tmp_path / "reports" / row["file"]).read_text())
    assert [op["op"] for op in found["operations"]][-2:] == ["ttnn.matmul", "ttnn.to_torch"]
    assert found["meshes"][0]["arch"] == "wormhole_b0" and found["operations"][0]["where"].startswith("test_values.py:")


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    from tt_impl.harness.reports.write import try_to_write

    (tmp_path / "taken").write_text("a file where the folder should be")
    said = try_to_write(tmp_path / "taken", "program", cast("Any", None), [])["unreported"]
    assert re.match(r"UserError: --ttnn-report '.*/taken' is no folder", said)
    found = [Verdict(name, "passed", "own", unreported=said) for name in "ab"]
    assert "2 tests have no report, although it was asked for:" in summary.lines(found)


@pytest.mark.skipif(not HAS_TTNN, reason=REASON)
def test_two_tests_never_share_a_report(tmp_path: Path) -> None:
    """Names that are equal as files, or are cut to the same one, get files of their own, the same in every run."""
    from tt_impl.harness.reports.write import _stem, file_name

    long = "test_x.py::test_a[" + "-".join(str(i) for i in range(120)) + "]"
    names = [
        "a.py::test[1-(2,4)]",
        "a.py::test[1-(2, 4)]",
        long.replace("40-41", "4041"),
        long.replace("42-43", "4243"),
    ]
    for name, file in (("a b/c", "a_b_c"), ("???", "program"), ("x" * 180, "x" * 180), ("_x-1=2.y_", "x-1=2.y")):
        assert file_name(name) == file
    assert file_name("x" * 100 + "y" * 81) == "x" * 80 + ".." + "x" * 17 + "y" * 81
    for _ in range(2):
        for name in names:
            stem = _stem(tmp_path, name)
            (tmp_path / f"{stem}.json").write_text(json.dumps({"schema": 1, "name": name, "meshes": []}))
    assert len({_stem(tmp_path, name) for name in names}) == len(names) == len(list(tmp_path.iterdir()))


def test_the_index_of_a_run_has_its_programs_only(measured: dict[str, Any], tmp_path: Path) -> None:
    for name in ("costs", "holes"):
        shutil.copy(path_of(measured, name), tmp_path)
    index.index(tmp_path, [path_of(measured, "costs").name])
    (row,) = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))["programs"]
    assert row["name"] == "tests/x.py::costs[t3k]" and row["unknown_layouts"] == 0
    shown = markdown.index([row | {"unknown_layouts": 2}])
    assert f"| at least {row['l1_peak_bytes'] / 1024:.1f} |" in shown
    assert "at least" not in (tmp_path / "index.md").read_text(encoding="utf-8")


def made_up() -> dict[str, Any]:
    """A report with something of everything, and with more launches than are shown."""
    peak = {"bytes": 3 << 20, "bytes_per_bank": 2048, "op": "ttnn.add", "where": "a.py:3"}
    live = {"op": "ttnn.exp", "where": "a.py:4", "shape": [1, 32], "dtype": "BFLOAT16", "count": 2}
    holes = {"share": 0.125, "smallest_largest_free_per_bank": 5120}
    usage = {"banks": 12, "bank_bytes": 9216, "end_bytes_per_bank": 1024, "fragmentation": holes, "with_programs": peak}
    full = usage | {"peak": peak | {"live": [live | {"bytes_per_bank": 4096}]}}
    empty = usage | {"peak": peak | {"live": []}}
    launch = {"op": "ttnn.add", "device_op": "Binary", "where": "a.py:3", "bound": "dram"}
    times = [{"low_ns": 1000.0 * i, "ns": 2000.0 * i, "high_ns": 4000.0 * i} for i in range(1, 18)]
    launches = [launch | {"where": f"a.py:{i}"} | time for i, time in enumerate(times)]
    collective = {"op": "ttnn.all_gather", "where": "a.py:7", "collective": "all_gather", "axis": 1, "bytes": 64}
    ended = {
        "sentence": "this run ended out of memory.", "memory": "L1", "memories": {}, "advice": ["free it."],
        "traces": [], "kernel_binaries": {"programs": 0},
    }  # fmt: skip
    return {
        "name": "program", "operations": [0] * 3, "values": False, "fallbacks": {"ttnn.x": 2, "ttnn.y": 1},
        "meshes": [{"shape": [2, 4], "arch": "wormhole_b0"}, {"shape": [1, 1], "arch": "blackhole"}],
        "numerics": {"level": "fast", "rounded": {"ttnn.add": 2}, "once": {}},
        "findings": [{"kind": "leak", "sentence": "a.py:3 leaks."}, {"kind": "freed", "sentence": "it is gone."}],
        "cost": {
            "ns": 2500.0, "low_ns": 1500.0, "high_ns": 3500.0, "source": "a model", "priced": 17, "launches": 19,
            "unpriced": [{"device_op": "Other", "count": 2, "reason": "no formula"}],
        },
        "launches": [*launches, launches[3], launch | {"unpriced": "no formula"}],
        "memory": {
            "meshes": [
                {"mesh": 0, "devices": [0, 1, 2], "DRAM": full, "L1": empty, "L1_SMALL": empty},
                {"mesh": 1, "devices": [0, 2], "DRAM": empty, "L1": full},
                {"mesh": 2, "devices": [5]},
            ],
            "ended": ended, "unknown_layouts": 3, "traces": ["one lives.", "another lives."],
            "kernel_binaries": {"programs": 2, "bytes": 3 << 20, "source": "an estimate"},
        },
        "collectives": [collective | {"topology": "Ring", "links": 2}, collective | {"axis": None}],
    }  # fmt: skip


def test_made_up_reports_word_for_word() -> None:
    report = made_up()
    nothing = {"ended": None, "unknown_layouts": 0, "traces": [], "kernel_binaries": {"programs": 0}, "meshes": []}
    plain = report | {
        "meshes": [], "numerics": {}, "values": True, "fallbacks": {}, "findings": [], "launches": [],
        "collectives": [], "memory": nothing, "cost": report["cost"] | {"unpriced": []},
    }  # fmt: skip
    row = {
        "name": "program", "file": "a.json", "operations": 3, "collectives": 2, "ns": [1500.0, 2500.0, 3500.0],
        "unpriced": 2, "dram_peak_bytes": 3 << 20, "l1_peak_bytes": 2048, "unknown_layouts": 1,
        "findings": {"leak": 2, "freed": 1},
    }  # fmt: skip
    rows = [row, row | {"findings": {}, "unknown_layouts": 0}]
    words.check("markdown.txt", markdown.program(report) + markdown.program(plain) + markdown.index(rows))
