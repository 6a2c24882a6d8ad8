"""Python commands in forks of one warm process, for tests that run many.

Such a command is a process of its own, with its own folder, environment, output and exit code; it only does not import
torch, diffusers and the commands once more, which takes longer than most commands. What is about how Python starts is
run in a process that does.

    test ==requests, JSON lines==> warm process with one thread --fork--> command
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from refsim.base import processes

ROOT = Path(__file__).resolve().parents[1]
PRELOAD = (
    "diffusers.models.transformers.transformer_sd3",
    "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
    "parity.run.suite",
    "parity.run.worker",
    "parity.measure.layers",
    "parity.cases.oracles.library",
    "refsim.timing.predict.replay",
    "torch.distributed.run",
)
"""What commands import late; also all modules of commands, and what a fork server of ranks imports."""


def run(
    *words: object, cwd: object = None, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS``, which are ``-m module ...`` or ``file.py ...``, and return what it printed.

    Args:
        cwd: its folder, by default this process's.
        env: all its environment variables, by default this process's.
        timeout: seconds after which it is killed, with all that it started; the code is then that of the signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        request = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "files": files,
            "timeout": timeout,
        }
        server = _server()
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the warm process died"
        return subprocess.CompletedProcess(words, json.loads(answer), *(Path(file).read_text() for file in files))


def words(command: str) -> list[str]:
    """What :func:`run` takes for a line of a document, which runs Python or a command of the environment."""
    name, *rest = shlex.split(command)
    return rest if name == "python" else ["-m", name, *rest]


@functools.cache
def _server() -> Any:
    command, variables = processes.command("tests.warm")
    env = {**variables, "PYTHONPATH": os.pathsep.join([str(ROOT), variables["PYTHONPATH"]])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)
    atexit.register(lambda: (server.stdin.close(), server.wait()))
    return server


def main() -> None:
    """Serve the process at the other ends of stdin and stdout until it closes them."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with processes.one_thread():
        _import()
    gc.freeze()
    for line in requests:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            requests.close()
            os.close(answers)
            _run(**{name: request[name] for name in ("words", "cwd", "env", "files")})
        os.write(answers, json.dumps(_wait(pid, request["timeout"])).encode() + b"\n")


def _import() -> None:
    from refsim.cli import commands
    from refsim.runtime.ranks import forkserver

    names = [module.name for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")]
    for name in (*forkserver.PRELOAD, *names, *PRELOAD):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _wait(pid: int, timeout: float) -> int:
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], timeout)[0]:
        os.killpg(pid, signal.SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run(words: list[str], cwd: str, env: dict[str, str], files: list[str]) -> None:
    """Be the command, in this fork; it never returns."""
    code = 1
    try:
        os.setsid()
        for file, target in zip(files, (1, 2), strict=True):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), target)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        of_env = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:] = [*of_env, *(place for place in sys.path if place not in of_env)]
        processes.start = functools.partial(_start, processes.start)
        code = _called(words)
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _start(start: Callable[..., Any], module: str, *arguments: str, **more: Any) -> Any:
    """Fork what ``refsim.base.processes.start`` would start in a Python of its own, while there is one thread."""
    return (processes.fork if processes.threads() == 1 else start)(module, *arguments, **more)


def _called(words: list[str]) -> int:
    is_module = words[0] == "-m"
    sys.argv[:] = words[is_module:]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0])))
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    return 0
