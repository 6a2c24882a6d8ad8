"""The process that runs one job: opens the mesh, runs the program, writes the answer next to the job.

ttnn can end a process (a segmentation fault in its dispatch code, an abort), so nothing but a job lives in here; the
launcher (``tt_impl.launch``) reads what is left: ``answer.json`` and ``out.safetensors``, or ``last_op``.

A program is a function of (device, mesh spec, config, arguments by name) that returns tensors by name, or a pair of a
report (JSON values) and such tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import safetensors.torch

from refsim.checkpoint import Checkpoint
from refsim.config import DiTParallelConfig, ParallelFactor
from refsim.errors import UserError
from refsim.mesh import get_mesh

_BACKTRACE = re.compile(r"\s*backtrace:")  # of C++, at the end of ttnn's messages; it stays in the traceback


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        answer = {"ok": True, **_run(job, folder)}
    except UserError as e:
        answer = {"ok": False, "kind": "user", "message": str(e)}
    except Exception as e:
        answer = {
            "ok": False,
            "kind": "error",
            "message": f"{type(e).__name__}: {_BACKTRACE.split(str(e))[0]}",
            "traceback": traceback.format_exc(),
        }
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    from tt_impl.mesh import open_mesh

    spec = get_mesh(job["mesh"])
    factors = {k: (f, tuple(a) if isinstance(a, list) else a) for k, (f, a) in job["config"].items()}
    config = DiTParallelConfig(**{k: ParallelFactor(f, a) for k, (f, a) in factors.items()})
    arguments = dict(job["arguments"])
    if "checkpoint" in arguments:
        arguments["checkpoint"] = Checkpoint(arguments["checkpoint"])
    if "inputs" in arguments:
        arguments["inputs"] = safetensors.torch.load_file(arguments["inputs"])
    if job["fault"]:
        module, _, function = job["fault"].partition(":")
        getattr(importlib.import_module(module), function)()
    module, _, function = job["program"].partition(":")
    program = getattr(importlib.import_module(module), function)
    with open_mesh(spec, job["kind"]) as mesh:
        from tt_impl.mock.intercept import intercepted
        from tt_impl.record import Recorder

        recorder = Recorder(folder / "last_op")
        with contextlib.ExitStack() as stack:
            if job["kind"] == "mock" and job["values"]:
                from tt_impl.mock.shadow import shadow_values

                stack.enter_context(shadow_values())
            stack.enter_context(intercepted(recorder))
            if job["optable"]:
                from tt_impl.optable import OpTable

                table = OpTable()
                stack.enter_context(intercepted(table))
            result = program(mesh.device, spec, config, **arguments)
        report, tensors = result if isinstance(result, tuple) else ({}, result)
        safetensors.torch.save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "out.safetensors")
        answer = {
            "ran": mesh.describe(),
            "ops": recorder.ops,
            "collectives": recorder.collectives(),
            "report": report,
        }
        if job["optable"]:
            answer |= {"optable": table.rows, "resources": table.summary()}
        return answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
