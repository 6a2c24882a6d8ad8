"""The command line as a person or a CI system meets it: real processes, exit codes, one sentence."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

from refsim import cli
from refsim.base import processes
from refsim.cli import process
from refsim.runtime import launch
from refsim.runtime.watch import measured_trace
from tests import warm
from tests.json_output import loads
from tests.refsim import trace_form
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.sd35 import make_inputs, make_model, save


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    model, inputs = make_model(), make_inputs()
    save(model, folder / "checkpoint")
    save_file(inputs, folder / "in.safetensors")
    with torch.no_grad():
        save_file({"sample": model(**inputs, return_dict=False)[0]}, folder / "expected.safetensors")
    return folder


def refsim(*words: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return warm.run("-m", *launcher, "refsim", *words)


def run_words(files, *words: object) -> list[object]:
    return [
        "run",
        files / "checkpoint",
        "--inputs",
        files / "in.safetensors",
        "--out",
        files / "out.safetensors",
        *words,
    ]


def test_meshes():
    rows = loads("meshes", refsim("meshes", "--json").stdout)["meshes"]
    assert {"n150", "n300", "t3k", "t3k-1x8", "tg", "galaxy", "bh-galaxy"} <= {r["name"] for r in rows}
    table = refsim("meshes")
    assert table.returncode == 0
    assert all(r["name"] in table.stdout for r in rows)


def test_run_writes_sample_guided_and_trace(files):
    done = refsim(
        *run_words(files, "--mesh", "t3k", "--parallel", "cfg2_sp2_tp2", "--guidance", 4.5),
        *("--trace", files / "trace.jsonl", "--json"),
    )
    assert done.returncode == 0, done.stderr
    summary = loads("run", done.stdout)
    assert summary["replicas_equal"] and summary["ranks"] == 8
    assert summary["math"] == "storage"
    assert summary["transport"] == "shared"
    out, expected = load_file(files / "out.safetensors"), load_file(files / "expected.safetensors")["sample"]
    assert relative_rmse(out["sample"], expected) <= 5e-6
    uncond, cond = expected.chunk(2)
    assert relative_rmse(out["guided"], uncond + 4.5 * (cond - uncond)) <= 5e-6
    events = [json.loads(line) for line in (files / "trace.jsonl").read_text().splitlines()]
    wanted = {"rank", "step", "op", "shapes", "dtype", "bytes", "buffer", "start", "end"}
    assert all(wanted <= e.keys() for e in events)
    assert {e["rank"] for e in events} == set(range(8))
    assert sum(e["bytes"] for e in events if e["op"] == "send") == sum(summary["bytes_by_collective"].values())
    _check_measured(trace_form.read(measured_trace.trace_events(events, "tiny").text()))


def _check_measured(document):
    """Ops are named by their modules, an arrow leads from every send to its receive, times are said to be measured."""
    events = document["traceEvents"]
    assert "measured" in document["otherData"]["title"]
    assert all("measured" in e["args"]["name"] for e in events if e["name"] == "process_name")
    spans = [e for e in events if e["ph"] == "X"]
    names = {e["name"] for e in spans}
    assert names >= {
        "block 1 / attn.to_q+to_k+to_v: linear", "block 2 / ff.net.2: reduce_scatter", "block 0 / attn2: sdpa",
        "block 1 / attn: ring_attention", "proj_out: all_gather", "context_embedder: linear",
    }  # fmt: skip
    assert not [name for name in names if "linear" in name and "." not in name and "embedder" not in name]
    qkv = next(e for e in spans if e["name"] == "block 1 / attn.to_q+to_k+to_v: linear")["args"]
    assert len(qkv["shapes"]) == 4 and qkv["bytes"] == 4 * sum(map(math.prod, qkv["shapes"]))
    ops = Counter(e["args"]["op"] for e in spans)
    arrows = trace_form.arrows(document)
    assert len(arrows) == ops["send"] == ops["recv"] > 0 and all(a["pid"] != b["pid"] for a, b in arrows)
    assert {e["pid"] for e in events if e["ph"] == "C"} == set(range(8))


def test_torchrun_gives_the_same_bits(files):
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "-m")
    words = ["--mesh", "n300", "--parallel", "tp2"]
    assert process.run_command([str(w) for w in run_words(files, *words, "--trace", files / "trace.json")]) == 0
    assert "measured" in trace_form.read((files / "trace.json").read_text())["otherData"]["title"]
    mine = load_file(files / "out.safetensors")["sample"]
    done = refsim(*run_words(files, *words), launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert torch.equal(load_file(files / "out.safetensors")["sample"], mine)


@pytest.fixture(params=[("0", "refsim"), ("1", "refsim, rank 1")], ids=["0", "1"])
def rank_of_two(request, monkeypatch):
    """The name of this process on stderr, as torchrun's rank 0 or 1 of two."""
    rank, name = request.param
    monkeypatch.setattr(process, "_RANK_0_FIRST_S", 0.0)
    for variable, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(variable, value)
    return name


def test_the_rank_of_torchrun_that_fails_says_so(capsys, rank_of_two):
    """Also where rank 0 has nothing to say: torchrun ends all ranks as soon as one has failed."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "nowhere", "--mesh", "moon", "--out", "x"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"{rank_of_two}: checkpoint 'nowhere' does not exist")


def test_another_number_of_ranks_than_the_mesh_has(files, capsys, rank_of_two):
    code = process.run_command([str(word) for word in run_words(files, "--mesh", "t3k", "--parallel", "sp2_tp4")])
    assert code == 2
    assert capsys.readouterr().err.startswith(f"{rank_of_two}: torchrun started 2 ranks but mesh t3k (2x4) has 8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--mesh", "t3k", "--parallel", "sp3_tp2"], "these would work"),
        (["--mesh", "moon"], "mesh 'moon' does not exist"),
        (["--mesh", "t3k", "--parallel", "sp2x"], "no parallel factor"),
        (["--mesh", "t3k-1x8", "--parallel", "sp8", "--attention", "ulysses", "--no-pad-heads"], "cannot split"),
        (["--mesh", "t3k", "--parallel", "cfg2_sp2_tp2", "--backend", "abacus"], "backend 'abacus'"),
        (["--mesh", "t3k", "--parallel", "cfg2_sp2_tp2", "--dtype", "fp8"], "fp8"),
        (["--mesh", "n300", "--parallel", "tp2", "--backend", "ttnn-mock", "--dtype", "fp32"], "stores bf16"),
        (
            ["--mesh", "n300", "--parallel", "sp2", "--backend", "ttnn-mock", "--ring-order", "gather"],
            "leave out --ring-order",
        ),
        (["--mesh", "n150", "--inputs", "nowhere.safetensors"], "does not exist"),
        (["--mesh", "n150", "--out", "nowhere/out.safetensors"], "create the folder"),
        (["--mesh", "n150", "--ring", "0"], "1 or more"),
        (["--mesh", "n150", "--prompt", "a cat"], "one model and no pipeline"),
        (["--mesh", "n150", "--check"], "--check is an option of pipelines"),
        (["--mesh", "n150", "--height", "512"], "--height is an option of pipelines"),
        (["--mesh"], "--mesh"),
        (["--colour", "red"], "--colour"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_sentence_and_exit_code_2(files, capfd, words, sentence):
    """In this process, where starting a rank would be an error; a process of its own says the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "execute", None)
        code = process.run_command([str(word) for word in run_words(files, *words)])
    said = capfd.readouterr()
    assert_refused(code, said.out, said.err, sentence)


def test_a_process_that_is_given_bad_input_says_so(files):
    """A Python of its own, from its start."""
    words = [sys.executable, "-m", "refsim", *run_words(files, "--mesh", "moon")]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    assert_refused(done.returncode, done.stdout, done.stderr, "mesh 'moon' does not exist")


def assert_refused(code, out, err, sentence):
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        (["SIGINT"], 130, "interrupted"),
        (["SIGINT"] * 3, 130, ""),
        (["SIGHUP"], 129, "hung up"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_a_signal_leaves_nothing_behind(files, tmp_path, sent, code, says):
    """Signals while ranks work: their exit code, and no process or file of the run left."""
    (tmp_path / "program.py").write_text(
        "import sys; from refsim import cli; from refsim.runtime import launch; real = launch.execute\n"
        "launch.execute = lambda program, options, *a: real(program, options.but(delay=(0, 2.0)), *a)\n"
        "cli.main(sys.argv[1:])"
    )
    (tmp_path / "temporary").mkdir()
    words = [str(tmp_path / "program.py"), *map(str, run_words(files, "--mesh", "n300", "--parallel", "tp2"))]
    request = {"words": words, "env": {**os.environ, "TMPDIR": str(tmp_path / "temporary")}}
    with (tmp_path / "stderr").open("w+") as stderr, contextlib.ExitStack() as at_last:
        process = warm.Process(request, {2: stderr.fileno()})
        at_last.callback(processes.end, process)
        ranks = _wait_for(lambda: _grandchildren(process.pid), timeout_s=90)
        for name in sent:
            os.kill(process.pid, signal.Signals[name])
            time.sleep(0.05)
        assert process.wait(timeout=60) == code
        said = (tmp_path / "stderr").read_text()
        assert says in said and len(said.splitlines()) == 1
    assert _wait_for(lambda: not any(_alive(pid) for pid in ranks))
    assert list((tmp_path / "temporary").iterdir()) == []


def _wait_for(condition, timeout_s: float = 30.0):
    """Poll until ``condition`` gives something true."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("timed out")


def _children(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(entry))
    return found


def _grandchildren(pid: int) -> list[int]:
    """Both ranks, once the fork server has forked them."""
    ranks = [rank for child in _children(pid) for rank in _children(child)]
    return ranks if len(ranks) == 2 else []


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
