"""Our SD3.5 block beside tt_dit's: operations and bytes per block, and the values of both and of refsim.

    counts    4096 image and 333 prompt tokens, no values: what each program asks of ttnn on the same mesh
    values    few tokens, the same random weights and inputs: ours, theirs and refsim by PCC

``TT_METAL_TREE=/path/to/tt-metal python -m benchmarks.tt_dit --out reports/ops`` writes sd35-large.json and
sd35-large.md; without that checkout there is nothing to compare with, which is said, and no file is written. The tables
name the commit, by a digest of tt_dit's files.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from parity.cases.checkpoints import MODELS
from parity.cases.inputs import generator, rounded
from parity.cases.store import CheckpointStore
from parity.measure.metrics import one_minus_pcc
from refsim.base.options import RunOptions
from refsim.files import output
from refsim.files.keys import Loose
from refsim.files.tables import as_markdown
from refsim.runtime import launch
from tt_impl.reports import ops
from tt_impl.run.launch import Worker

MODEL = "sd35-large"
CASE = "sd35_large_block"
TOKENS = (4096, 333)
FEW = (256, 77)
COMMITS = {"8d027b904171472e": "622c6fb9"}
"""Commits by the digest of their tt_dit."""
KEYS = ("operations", "fused", "collectives", "read_bytes", "written_bytes", "link_bytes")
MIB = 1024 * 1024


def tree(part: str = "models/tt_dit") -> Path | None:
    """Return the checkout that TT_METAL_TREE names, or None where it names none that has such a ``part``."""
    folder = os.environ.get("TT_METAL_TREE", "")
    return Path(folder).absolute() if folder and (Path(folder) / part).is_dir() else None


WITHOUT = "skipped: TT_METAL_TREE names no checkout of tt-metal; clone it at 622c6fb9 and give its path."


def commit(checkout: Path) -> str:
    """Return the commit of a checkout by what its tt_dit says, or that it is another one."""
    digest = hashlib.sha256()
    for path in sorted((checkout / "models" / "tt_dit").rglob("*.py")):
        digest.update(path.relative_to(checkout).as_posix().encode() + b"\0" + path.read_bytes())
    short = digest.hexdigest()[:16]
    return COMMITS.get(short, f"not 622c6fb9 (sha256 of tt_dit {short})")


def block_inputs(tokens: tuple[int, int], features: int, seed: int) -> dict[str, Tensor]:
    """``spatial`` (1, N, D), ``prompt`` (1, L, D), ``time`` (1, D) before silu, which bf16 can hold."""
    g = generator(seed, "tt_dit")
    shapes = {"spatial": (1, tokens[0], features), "prompt": (1, tokens[1], features), "time": (1, features)}
    return rounded({name: torch.randn(shape, generator=g) for name, shape in shapes.items()}, "bf16")


def compare(
    checkout: Path, *, mesh: str = "t3k", parallel: str = "sp2_tp4", values: bool = True, seed: int = 0
) -> dict[str, Any]:
    """Return counts of both blocks and, with ``values``, how far the three answers are apart (1 - PCC)."""
    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    config = MODELS[CASE].config
    sizes = {"heads": config["num_attention_heads"], "head_dim": config["attention_head_dim"]}
    sizes["features"] = sizes["heads"] * sizes["head_dim"]
    with CheckpointStore() as store, Worker() as worker, tempfile.TemporaryDirectory() as name:
        checkpoint = store.folder(CASE, seed)
        folder = Path(name)
        weights = folder / "weights.safetensors"
        safetensors.torch.save_file(_weights_of_block(checkpoint), weights)

        def theirs(inputs: dict[str, Tensor], *, values: bool) -> Any:
            safetensors.torch.save_file(inputs, folder / "theirs.safetensors")
            arguments = {"tree": str(checkout), "weights": str(weights), "sizes": sizes}
            arguments["inputs"] = str(folder / "theirs.safetensors")
            return worker.execute("tt_impl.programs.tt_dit:program", options, arguments, values=values)

        ours = ops.count(MODEL, options, size="1024", batch=1, run=worker.execute)
        mine = next(block for block in ours.report["blocks"] if block["kind"] == "block")
        other = theirs(block_inputs(TOKENS, sizes["features"], seed), values=False).report
        result = {
            "model": MODEL,
            "mesh": mesh,
            "parallel": parallel,
            "tokens": list(TOKENS),
            "commit": commit(checkout),
        }
        result |= {"ran": ours.ran, "ours": mine, "theirs": other}
        if values:
            inputs = block_inputs(FEW, sizes["features"], seed)
            answers = {"theirs": theirs(inputs, values=True).tensors}
            with_silu = inputs | {"time": rounded({"t": torch.nn.functional.silu(inputs["time"])}, "bf16")["t"]}
            safetensors.torch.save_file(with_silu, folder / "ours.safetensors")
            arguments = {"checkpoint": str(checkpoint), "inputs": str(folder / "ours.safetensors"), "index": 0}
            answers["ours"] = worker.execute("tt_impl.pipelines.block:program", options, arguments).tensors
            answers["refsim"] = launch.execute(
                "refsim.pipelines.block:program", options.but(backend="cpu"), arguments
            ).tensors
            result["values"] = {"tokens": list(FEW), "one_minus_pcc": _apart(inputs, answers)}
    return result


def _weights_of_block(checkpoint: Path) -> dict[str, Tensor]:
    """Return the block's tensors by their names within the block."""
    prefix = "transformer_blocks.0."
    tensors: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(path)
    return {name.removeprefix(prefix): x.contiguous() for name, x in tensors.items() if name.startswith(prefix)}


def _apart(inputs: dict[str, Tensor], answers: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, float]]:
    """1 - PCC of every pair of answers, of each stream and of what the block added to it."""
    apart = {}
    for one, two in (("ours", "refsim"), ("theirs", "refsim"), ("ours", "theirs")):
        row = {}
        for stream in ("spatial", "prompt"):
            a, b, before = (t[stream].float() for t in (answers[one], answers[two], inputs))
            row[stream] = one_minus_pcc(a, b)
            row[f"added_{stream}"] = one_minus_pcc(a - before, b - before)
        apart[f"{one} to {two}"] = row
    return apart


def table(result: dict[str, Any]) -> str:
    """Markdown: totals, then both programs' operations."""
    ours = result["ours"]["totals"]
    theirs = result["theirs"]["totals"]
    lines = [
        f"# {result['model']}: one block, beside tt_dit's",
        "",
        f"{result['tokens'][0]} image and {result['tokens'][1]} prompt tokens, {result['mesh']} {result['parallel']}, "
        f"batch 1, bf16; tt_dit at {result['commit']}. Counted on {result['ran']}:",
        "device operations, and bytes of the tensors that an operation reads and writes in one device's DRAM, each",
        "once. Nothing here is a time.",
        "",
    ]
    rows = []
    for key in KEYS:
        a, b = ((f"{t[key] / MIB:.1f} MiB" if key.endswith("bytes") else str(t[key])) for t in (ours, theirs))
        rows.append((key.replace("_bytes", "").replace("link", "received over links"), a, b))
    rows.append(("L1 peak of a core", *(f"{t['l1_bytes'] // 1024} KiB" for t in (ours, theirs))))
    lines.append(as_markdown(rows, ("per block", "ours", "tt_dit")))
    if "values" in result:
        n, text = result["values"]["tokens"]
        lines += ["", f"## 1 - PCC, {n} + {text} tokens, the same weights and inputs", ""]
        pairs = result["values"]["one_minus_pcc"]
        streams = list(next(iter(pairs.values())))
        judged = ((pair, *(f"{row[s]:.1e}" for s in streams)) for pair, row in pairs.items())
        lines.append(as_markdown(judged, (None, *streams)))
        lines += ["", "tt_dit's feed-forward has the erf GELU, diffusers' and ours the tanh one."]
    for title, part in (("Ours", result["ours"]), ("tt_dit", result["theirs"])):
        operations = (
            (
                *(row["count"], row["op"].removeprefix("ttnn."), ", ".join(row["fuses"])),
                *(f"{row[key] * row['count'] / MIB:.2f}" for key in KEYS[3:]),
            )
            for row in part["operations"]
        )
        columns = ("count", "operation", "fuses", "MiB read", "written", "received")
        lines += ["", f"## {title}", "", as_markdown(operations, columns)]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for sd35-large.json and sd35-large.md")
    parser.add_argument("--mesh", default="t3k")
    parser.add_argument("--parallel", default="sp2_tp4")
    parser.add_argument("--no-values", action="store_true", help="count only")
    options = parser.parse_args(argv)
    checkout = tree()
    if checkout is None:
        print(WITHOUT, file=sys.stderr)
        return 0
    result = compare(checkout, mesh=options.mesh, parallel=options.parallel, values=not options.no_values)
    print(table(result))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        output.write(options.out / f"{MODEL}.json", (output.document(Loose(result)) + "\n").encode())
        output.write(options.out / f"{MODEL}.md", table(result).encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
