"""The process that runs one job: opens the mesh, runs the program, writes the answer next to the job.

``python -m tt_impl.worker`` imports ttnn, reads folders with a ``job.json`` from stdin, line by line, forks a process
for each and prints that process's exit code. ttnn can end a process (a segmentation fault in its dispatch code, an
abort), so nothing but a job lives in there; the launcher (``tt_impl.launch``) reads what is left: ``answer.json`` and
``out.safetensors``, or ``last_op``.

A program is a function of (device, options, arguments by name) that returns tensors by name, or a pair of a
report (JSON values) and such tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import safetensors.torch

from refsim.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.options import RunOptions
from tt_impl.mock import environment

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

    options = RunOptions.from_json(job["options"])
    arguments = dict(job["arguments"])
    if "checkpoint" in arguments:
        arguments["checkpoint"] = Checkpoint(arguments["checkpoint"])
    if "inputs" in arguments:
        arguments["inputs"] = safetensors.torch.load_file(arguments["inputs"])
    if options.fault:
        module, _, function = options.fault.partition(":")
        getattr(importlib.import_module(module), function)()
    module, _, function = job["program"].partition(":")
    program = getattr(importlib.import_module(module), function)
    with open_mesh(options.mesh, job["kind"]) as mesh:
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
            result = program(mesh.device, options, **arguments)
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


def serve() -> None:
    """Fork a process per line of stdin; ttnn is imported before, meshes are opened after."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ttnn prints is no answer
    import tt_impl.mock.shadow  # noqa: F401 - and with it ttnn

    environment.share_runtime_root()
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        child = os.fork()
        if child == 0:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(fd, target)
            code = 1
            try:
                main(folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # ttnn's own farewell takes longer than a small program; the launcher removes the files
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    serve()
