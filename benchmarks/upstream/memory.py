"""Memory of tt_dit's transformers at full depth and published widths, on a Galaxy of each kind, without values.

Upstream's own test of each model runs with random weights that take no memory, and nothing is computed; shapes,
programs and allocations are ttnn's. What a case showed is a line of ``memory.jsonl``: the peaks of DRAM and L1 with the
lines of the tree that own them, how it ended, and the CPU's seconds.
"""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.upstream.jobs import DIT, Job, command, environment, own_version
from benchmarks.upstream.seed import read
from refsim.files.tables import as_markdown

LINES = "memory.jsonl"
LIMIT_S = 1800.0
OWNERS = 4
MIB = 2**20


@dataclass(frozen=True)
class Whole:
    """A model at the size of a test: ``test`` is its id below tt_dit's tests, without the architecture."""

    model: str
    size: str
    test: str
    mesh: str

    @property
    def path(self) -> str:
        """The case's id in the tree."""
        file, _, case = self.test.partition("[")
        return f"{DIT}/models/{file}[{'blackhole' if self.mesh.startswith('bh') else 'wormhole_b0'}-{case}"


def _both(model: str, size: str, test: str) -> list[Whole]:
    """Return the case on both Galaxies; ``{}`` in its id is ``wh`` or ``bh``."""
    return [Whole(model, size, test.format(kind), mesh) for kind, mesh in (("wh", "galaxy"), ("bh", "bh-galaxy"))]


_WAN = "wan2_2/test_transformer_wan.py::test_wan_transformer_model"
_MOCHI = "mochi/test_transformer_mochi.py::test_mochi_transformer_model"
_LONG = "device_params0-no_load_cache-no_test_attention_mask-long_seq-4x8sp1tp0-False"
_FLUX = "flux1/test_transformer_flux1.py::test_transformer"
_QWEN = "qwenimage/test_transformer_qwenimage.py::test_transformer"
CASES = (
    *_both("Wan2.2 14B", "720p", f"{_WAN}[14b-720p-{{}}_4x8sp1tp0-False]"),
    *_both("Wan2.2 14B", "480p", f"{_WAN}[14b-480p-{{}}_4x8sp1tp0-False]"),
    *_both("Wan2.2 5B", "720p", f"{_WAN}[5b-720p-{{}}_4x8sp1tp0-False]"),
    *_both("Mochi 1", "44,520 tokens", f"{_MOCHI}[{_LONG}]"),
    *_both("FLUX.1 dev", "1024 x 1024", f"{_FLUX}[device_params0-flux_dev-1-4096-512-4x8sp0tp1]"),
    *_both("Qwen-Image", "1024 x 1024", f"{_QWEN}[device_params0-not_traced-1-128-128-512-4x8sp0tp1]"),
)


def run(tree: Path, out: Path, only: str) -> None:
    """Run the cases without a line in ``out`` whose mesh, model and size hold ``only``; append a line each."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / LINES
    done = {(row["mesh"], row["model"], row["size"]) for row in read(path)}
    for case in CASES:
        if (case.mesh, case.model, case.size) in done or only not in f"{case.mesh} {case.model} {case.size}":
            continue
        row = _run_one(tree, case)
        with open(path, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        print(f"{case.mesh} {case.model} {case.size}: {row['ended']} ({row['cpu_s']:.0f} s of CPU)", flush=True)


def _run_one(tree: Path, case: Whole) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        job = Job(
            f"memory-{case.mesh}",
            (case.path,),
            (
                *(f"--ttnn-mock={case.mesh}", "--ttnn-mock-values=off", "--ttnn-mock-weights=random"),
                *("-p", "benchmarks.upstream.full", f"--ttnn-report={folder}/report"),
            ),
            {"TT_DIT_CACHE_DIR": f"{folder}/cache"},
        )
        before = _cpu_seconds()
        lines = Path(folder, "lines")
        subprocess.run(
            command(job, lines, LIMIT_S), cwd=tree, env=environment(tree, job), capture_output=True, check=False
        )
        row = {"mesh": case.mesh, "model": case.model, "size": case.size, "test": case.path, "by": own_version()}
        row["cpu_s"] = round(_cpu_seconds() - before, 1)
        verdicts = read(lines)
        reports = sorted(Path(folder, "report").glob("models_*.json"))
        peaks = _peaks(json.loads(reports[0].read_text(encoding="utf-8"))) if reports else {}
        return row | peaks | {"ended": _ended(verdicts[-1]) if verdicts else "no verdict"}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _ended(verdict: dict[str, Any]) -> str:
    """Say how a case ended: to its end, up to an assertion that nobody can judge without values, or what refused it."""
    if verdict["outcome"] == "passed" or verdict["category"] == "unjudged":
        return "to its end"
    return " ".join((verdict["message"] or verdict["category"]).split())[:200]


def _peaks(report: dict[str, Any]) -> dict[str, Any]:
    """Return peaks of DRAM, of one device, with their owners, and of a core's L1, buffers of programs included."""
    memory = max(report["memory"]["meshes"], key=lambda mesh: mesh["DRAM"]["peak"]["bytes"])  # a submesh, maybe
    peak = memory["DRAM"]["peak"]
    banks = memory["DRAM"]["banks"]
    owners = [
        {"where": owner["where"], "count": owner["count"], "mib": owner["bytes_per_bank"] * banks / MIB}
        for owner in peak["live"][:OWNERS]
    ]
    l1 = memory["L1"]["with_programs"]["bytes"]
    return {
        "dram_mib": peak["bytes"] / MIB,
        "dram_of_mib": banks * memory["DRAM"]["bank_bytes"] / MIB,
        "at": peak["where"],
        "owners": owners,
        "l1_kib": l1 / 1024,
        "operations": len(report["operations"]),
    }


def section(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines of the report: peaks and owners of every case."""
    table = []
    for row in rows:
        owners = "; ".join(f"{o['count']} x `{o['where']}` {o['mib']:.0f}" for o in row.get("owners", ()))
        dram = f"{row['dram_mib']:,.0f} of {row['dram_of_mib']:,.0f}" if "dram_mib" in row else "-"
        l1 = f"{row['l1_kib']:,.0f}" if "l1_kib" in row else "-"
        ended = row["ended"].replace("|", "/")
        table.append((row["model"], row["size"], row["mesh"], ended, f"{row['cpu_s']:.0f}", dram, l1, owners or "-"))
    header = (
        "model",
        "size",
        "mesh",
        "ended",
        "CPU s",
        "peak DRAM, MiB",
        "peak L1, KiB",
        "owners at the peak of DRAM, MiB",
    )
    return [
        "tt_dit's tests of whole transformers at full depth and published widths, weights random and lazy, values off "
        "(`--ttnn-mock-values off`): what ttnn's allocator says of one device, by the lines of the tree that own it. "
        "No DRAM of these models is published to set beside it: the one number that is, MiniMax-H3's, is of a model "
        "that neither this project nor this tree has.",
        "",
        as_markdown(table, header),
    ]  # fmt: skip
