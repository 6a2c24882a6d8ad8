"""Parameters of a user's own chips, from profiler files: what they find, what they do not, what they refuse."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from refsim.base.errors import UserError
from refsim.cli.app import app
from refsim.timing.cost import device_ops
from refsim.timing.cost.fitted import get_params, read_calibration
from refsim.timing.fit import calibrate, search
from refsim.timing.read.device_op import DeviceOp
from refsim.timing.read.tensors import OpTensor
from tests.json_output import loads

STORED = get_params("wormhole_b0")
CHIP = replace(STORED, tile_ns=1000.0, launch_ns=8000.0)
"""The machine that the files below are of: slower tiles, a longer launch."""


def rows(sizes: range, device: str = "0") -> list[dict[str, str]]:
    """Element-wise operations of one tile and of many tiles a core, as ``CHIP`` runs them."""
    found = []
    for size in sizes:
        x = OpTensor((1, 1, 32 * size, 2048), "bf16", "DEV_0_L1_INTERLEAVED", "TILE", 32 * size)
        ns = device_ops.price(DeviceOp("Unary", "wormhole_b0", 64, "HiFi2", (x,), (x,)), CHIP).ns
        row = {"OP CODE": "Unary", "DEVICE ID": device, "DEVICE ARCH": "wormhole_b0", "CORE COUNT": "64"}
        row |= {"DEVICE KERNEL DURATION [ns]": f"{ns}", "MATH FIDELITY": "HiFi2", "ATTRIBUTES": ""}
        for name in ("INPUT_0", "OUTPUT_0"):
            for axis, length in zip("WZYX", x.shape, strict=True):
                row[f"{name}_{axis}_PAD[LOGICAL]"] = f"{length}[{length}]"
            row |= {f"{name}_DATATYPE": "BFLOAT16", f"{name}_MEMORY": x.memory, f"{name}_LAYOUT": "TILE"}
        found.append(row)
    return found


def write(path: Path, *found: dict[str, str]) -> Path:
    pd.DataFrame(found).to_csv(path, index=False)
    return path


def test_what_files_say_is_found_and_the_rest_is_kept_and_named(tmp_path: Path) -> None:
    unknown = rows(range(1, 2))[0] | {"OP CODE": "MadeUp"}
    made = calibrate.fit([write(tmp_path / "a.csv", *rows(range(1, 60)), unknown)])
    assert made.params.tile_ns == pytest.approx(CHIP.tile_ns, rel=0.02)
    assert made.params.launch_ns == pytest.approx(CHIP.launch_ns, rel=0.05)
    assert set(made.determined) == {"tile_ns", "launch_ns"}
    assert "relay_gbps" in made.undetermined and made.params.relay_gbps == STORED.relay_gbps
    assert "gap_ns" in made.undetermined, "the host's gaps are not those under a trace"
    assert made.unclassified == {"MadeUp": 1}
    assert made.held_out and made.after < 0.02 < made.before
    assert "Not determined by these files" in calibrate.text(made)


def test_gaps_under_a_trace_are_taken(tmp_path: Path) -> None:
    traced = [row | {"METAL TRACE ID": "1", "OP TO OP LATENCY [ns]": "900"} for row in rows(range(1, 20))]
    host = [row | {"METAL TRACE ID": "", "OP TO OP LATENCY [ns]": "90000"} for row in rows(range(20, 40))]
    assert calibrate.fit([write(tmp_path / "a.csv", *traced, *host)]).params.gap_ns == 900


def test_what_is_held_out_is_in_no_file_that_is_fitted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operations, in two files and at two times, are one; those held out have no part in the fit."""
    judged: list[set[DeviceOp]] = []
    whole = calibrate._loss
    monkeypatch.setattr(calibrate, "_loss", lambda p, pairs: judged.append({o for o, _ in pairs}) or whole(p, pairs))
    files = [write(tmp_path / f"{i}.csv", *rows(range(1, 40), device=str(i))) for i in range(2)]
    made = calibrate.fit(files)
    assert made.shapes + made.held_out == 39 and made.held_out >= 3
    assert judged and all(not calibrate.is_held_out(op) for ops in judged for op in ops)


def test_the_same_file_twice_and_two_chips_are_refused(tmp_path: Path) -> None:
    one, same = (write(tmp_path / name, *rows(range(1, 9))) for name in ("one.csv", "same.csv"))
    with pytest.raises(UserError, match=r"same\.csv is the same as .*one\.csv; give each file once"):
        calibrate.fit([one, same])
    other = write(tmp_path / "bh.csv", *(row | {"DEVICE ARCH": "blackhole"} for row in rows(range(1, 9))))
    with pytest.raises(UserError, match="of blackhole and wormhole_b0; calibrate one"):
        calibrate.fit([one, other])
    with pytest.raises(UserError, match="no operation in these files has a price"):
        calibrate.fit([write(tmp_path / "x.csv", rows(range(1, 2))[0] | {"OP CODE": "MadeUp"})])


def test_time_and_plan_use_a_calibration_and_say_so(tmp_path: Path) -> None:
    own = tmp_path / "my_chip.json"
    slow = asdict(replace(STORED, relay_gbps=STORED.relay_gbps / 2, softmax_cycles=2 * STORED.softmax_cycles))
    own.write_text(json.dumps({"arch": "wormhole_b0", "params": slow}))
    words = ["plan", "sd35-medium", "--mesh", "n150", "--size", "512", "--attention", "ring", "--json"]
    plain, slower = (
        loads("plan", CliRunner().invoke(app, [*words, *more], catch_exceptions=False).stdout)["plans"][0]
        for more in ([], ["--calibration", str(own)])
    )
    assert slower["seconds"] > 1.1 * plain["seconds"]
    assert slower["calibration"].startswith("my_chip.json@") and len(plain["calibration"]) == 8
    time = ["time", "sd35-medium", "--mesh", "n150", "--size", "512", "--calibration", str(own)]
    shown = CliRunner().invoke(app, time, catch_exceptions=False).stdout
    assert "Calibration my_chip.json@" in shown and "ranges are those of the stored calibration" in shown
    for command in ("time", "plan"):
        with pytest.raises(UserError, match=r"my_chip\.json@\w+ is of wormhole_b0; the mesh has blackhole"):
            words = [command, "sd35-medium", "--mesh", "bh-p150", "--calibration", str(own)]
            CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"arch": "blackhole", "params": {"launch_ns": 1}}, "is no calibration"),
        ({"params": asdict(STORED)}, "is no calibration"),
        ({"arch": "wormhole_b0", "params": asdict(STORED) | {"tile_ns": -1}}, "tile_ns = -1"),
        ({"arch": "wormhole_b0", "params": asdict(STORED) | {"tile_ns": "fast"}}, "tile_ns = 'fast'"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, found: dict[str, object], why: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match=why):
        read_calibration(tmp_path / "x.json")


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    trace, out = write(tmp_path / "my.csv", *rows(range(1, 30))), tmp_path / "my_chip.json"
    words = ["calibrate", "--trace", str(trace), "--out", str(out)]
    assert "fitted on" in CliRunner().invoke(app, words, catch_exceptions=False).stdout
    told = loads("calibrate", CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert read_calibration(out).params.tile_ns == pytest.approx(CHIP.tile_ns, rel=0.02)
    written = json.loads(out.read_text())
    assert told == written
    assert written["from"] == ["my.csv"] and "relay_gbps" in written["kept"] and written["held_out"]["shapes"] > 0


def test_a_search_keeps_within_its_bounds() -> None:
    found = search.least(
        lambda v: abs(v["a"] - 5) + abs(v["b"] - 0.1), {"a": 1.0, "b": 1.0}, {"a": (0, 4), "b": (0, 9)}
    )
    assert found["a"] == 4 and found["b"] == pytest.approx(0.1, rel=0.02)
    assert search.least(lambda v: 0.0, {}, {}) == {}
