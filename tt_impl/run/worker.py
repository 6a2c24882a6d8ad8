"""The process that runs one job: opens the mesh, runs the program, writes the answer next to the job.

The worker imports ttnn, reads folders with a ``job.json`` from stdin, line by line, forks a process for each and prints
that process's exit code; when the launcher is gone it kills that process and removes the folders. ttnn can end a
process (a segmentation fault in its dispatch code, an abort), so nothing but a job lives in there; the launcher
(``tt_impl.run.launch``) reads what is left: ``answer.json`` and ``out.safetensors``, or ``last_op``.

A program is a function of (device, options, arguments by name) that returns tensors by name, or a pair of a
report (JSON values) and such tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import safetensors.torch

from refsim.base import processes
from refsim.base.jobs import Job, failure, injected, named
from refsim.base.options import RunOptions
from refsim.base.padded import noting
from refsim.models.registry import open_checkpoint
from tt_impl.run import copies, progress
from tt_impl.run.backends import get_backend, stand_in
from tt_impl.run.mesh import open_mesh

_BACKTRACE = re.compile(r"\s*backtrace:")  # of C++, at the end of ttnn's messages; it stays in the traceback


def run_job(folder: Path) -> None:
    """Run the job in a folder and write ``answer.json`` there."""
    try:
        answer = {"ok": True, **_run(json.loads((folder / "job.json").read_text(encoding="utf-8")), folder)}
    except Exception as e:
        answer = failure(e)
        answer["message"] = _BACKTRACE.split(answer["message"])[0]
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _run(message: dict[str, Any], folder: Path) -> dict[str, Any]:
    job = Job.from_json(message["job"])
    job.enter_folder()
    options = job.options
    arguments = dict(job.arguments)
    if "checkpoint" in arguments:
        arguments["checkpoint"] = open_checkpoint(arguments["checkpoint"], options.variant, options.lora)
    if "inputs" in arguments:
        arguments["inputs"] = safetensors.torch.load_file(arguments["inputs"])
    with injected(options.fault):
        return _run_program(message, options, arguments, folder)


def _run_program(
    message: dict[str, Any], options: RunOptions, arguments: dict[str, Any], folder: Path
) -> dict[str, Any]:
    program = named(message["job"]["program"])
    with open_mesh(options.mesh, message["kind"]) as mesh:
        from tt_impl.trace.intercept import intercepted
        from tt_impl.trace.record import Recorder

        recorder = Recorder(folder / "last_op")
        progress.write_to(folder)
        with contextlib.ExitStack() as stack:
            shadow = None
            if message["values"]:
                shadow = stack.enter_context(get_backend(message["kind"]).values(options.numerics))
            stack.enter_context(intercepted(recorder))
            if message["optable"]:
                from tt_impl.trace.optable import OpTable

                table = OpTable()
                stack.enter_context(intercepted(table))
            padded = stack.enter_context(noting())
            differing = stack.enter_context(copies.noting())
            result = program(mesh.device, options, **arguments)
        report, tensors = result if isinstance(result, tuple) else ({}, result)
        safetensors.torch.save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "out.safetensors")
        answer = {"ran": mesh.describe(), "ops": recorder.ops, "collectives": recorder.collectives(), "report": report}
        answer["padded"] = [vars(one) for one in padded]
        answer["copies"] = [vars(one) for one in differing]
        if options.numerics != "off" and shadow is not None:
            answer["numerics"] = shadow.numerics.counts()
        if message["optable"]:
            answer |= {"optable": table.rows, "resources": table.summary()}
        return answer


def main(run_dir: str) -> None:
    """Fork a process per line of stdin; ttnn is imported before, meshes are opened after.

    When the launcher hangs up, the running process is killed and ``run_dir`` removed.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ttnn prints is no answer
    children: list[int] = []

    def clean_up() -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it ended just now
            processes.kill(children)
        shutil.rmtree(run_dir, ignore_errors=True)

    with processes.ending_with(sys.stdin.fileno(), clean_up):
        import ttnn  # noqa: F401 - so that no job waits for it

        shared = False
        for line in sys.stdin:
            folder = Path(line.rstrip("\n"))
            if not shared and _is_mock(folder):
                stand_in().share()
                shared = True
            children.append(_fork(folder))
            code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
            children.clear()
            print(code, file=answers, flush=True)


def _is_mock(folder: Path) -> bool:
    """Whether the job in ``folder`` asks for a mesh that is not there."""
    return json.loads((folder / "job.json").read_text(encoding="utf-8"))["kind"] == "mock"


def _fork(folder: Path) -> int:
    """Fork a process that runs the job in ``folder`` and ends; return its id."""
    worker = os.getpid()
    child = os.fork()
    if child:
        return child
    processes.die_with(worker)
    processes.be_first_to_go()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    code = 1
    try:
        run_job(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # ttnn's own farewell takes longer than a small program; the launcher removes the files
