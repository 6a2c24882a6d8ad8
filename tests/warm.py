"""Python commands in forks of one warm process, for tests that run many.

Such a command is a process of its own, with its own folder, environment, output and exit code; it only does not import
torch, diffusers and the commands once more, which takes longer than most commands. What is about how Python starts is
run in a process that does.

    test ==requests, with open files==> warm process with one thread --fork--> command, leader of a session

What a command would start anew, a fork server or torchrun's ranks, it forks. All workers of one run of pytest have the
same warm process, which the first to need it starts, and which ends when the last of them has hung up.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import os
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from refsim.base import processes
from refsim.runtime.ranks import messages

ROOT = Path(__file__).resolve().parents[1]
PRELOAD = (
    "diffusers.models.autoencoders.autoencoder_kl",
    "diffusers.models.transformers.transformer_sd3",
    "diffusers.pipelines.cogvideo.pipeline_cogvideox",
    "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
    "diffusers.pipelines.wan.pipeline_wan",
    "parity.measure.layers",
    "parity.cases.oracles.library",
    "parity.cli.parity",
    "parity.run.worker",
    "refsim.timing.predict.replay",
    "torch.distributed.run",
    "transformers.models.t5.modeling_t5",
)
"""What commands import late; also all modules of commands, and what a fork server of ranks imports."""
_SERVERS = ("refsim.runtime.ranks.forkserver", "tt_impl.run.worker")
_RUN = os.environ.setdefault("REFSIM_TESTS_RUN", str(os.getpid()))
"""The run of pytest that this process belongs to: its first process has said so to those it starts."""
START_S = 60.0
"""The longest that one waits for the warm process of the others to be there or gone."""
_ADDRESS = f"\0refsim-tests-{_RUN}-{ROOT}"[:100]
"""Of the run's warm process, in the kernel's names of sockets."""
_OUT_OF_THE_WAY = 500
"""File descriptors from here on are nobody's."""


class Process:
    """A fork of the warm process, with what is used of :class:`subprocess.Popen`."""

    def __init__(self, request: dict[str, Any], files: Mapping[int, int]) -> None:
        """Run what the request says with ``files``: file descriptors there, and those here that they are."""
        variables = {"cwd": os.getcwd(), "env": dict(os.environ)}
        request = variables | {"files": [*files]} | request
        self.pid = _asked(request, [*files.values()])["pid"]
        self._code: int | None = None
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; negative where a signal ended it."""
        if self._code is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a fork of the warm process", timeout or 0.0)
            finally:
                os.close(ended)
            self._code = _asked({"reap": self.pid})["code"]
        return self._code

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None


def run(
    *words: object, cwd: object = None, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS``, which are ``-m module ...`` or ``file.py ...``, and return what it printed.

    Args:
        cwd: its folder, by default this process's.
        env: all its environment variables, by default this process's.
        timeout: seconds after which it is killed, with all that it started.
    """
    request = {"words": [*map(str, words)], "cwd": str(cwd or os.getcwd()), "env": dict(env or os.environ)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = {1: out.fileno(), 2: err.fileno()}
        for file in files.values():
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        process = Process(request, files)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        said = [os.pread(file, os.fstat(file).st_size, 0).decode() for file in files.values()]
    return subprocess.CompletedProcess(words, code, *said)


def words(command: str) -> list[str]:
    """Return what :func:`run` takes for a line of a document, which runs Python or a command of the environment."""
    name, *rest = shlex.split(command)
    return rest if name == "python" else ["-m", name, *rest]


def start(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    pass_fds: Iterable[int] = (),
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: BinaryIO | None = None,
) -> Process:
    """Do what ``refsim.base.processes.start`` does, in a fork of the warm process."""
    files = {fd: fd for fd in (1, 2, *pass_fds)}
    pipes = {number: os.pipe() for number, asked in enumerate((stdin, stdout)) if asked == subprocess.PIPE}
    for number, (reads, writes) in pipes.items():
        files[number] = writes if number else reads
    if stderr is not None:
        files[2] = stderr.fileno()
    process = Process({"call": [module, *arguments], "env": {**os.environ, **env}}, files)
    for number, (reads, writes) in pipes.items():
        os.close(files[number])
        if number:
            process.stdout = open(reads, "rb")
        else:
            process.stdin = open(writes, "wb")
    return process


def forked_servers() -> None:
    """Have the processes that ranks and programs of ttnn are forked from be forks of the warm process from now on."""
    anew = processes.start

    def started(module: str, *arguments: str, **more: Any) -> Any:
        return (start if module in _SERVERS else anew)(module, *arguments, **more)

    processes.start = started


def python(folder: Path) -> Path:
    """Return a program in ``folder`` that is Python to those who call it, ``-m module ...``, and asks for a fork."""
    file = folder / "python"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import warm; warm.become(sys.argv[1:])"
    file.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -c {shlex.quote(code)} "$@"\n')
    file.chmod(0o755)
    return file


def become(words: list[str]) -> NoReturn:
    """Be, to whoever started this process, ``python WORDS``."""
    sys.exit(Process({"words": words}, {1: 1, 2: 2}).wait())


@functools.cache
def _server() -> socket.socket:
    ours = socket.socket(socket.AF_UNIX)
    atexit.register(ours.close)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(_ADDRESS)
            except OSError:  # it is there
                with contextlib.suppress(ConnectionRefusedError):  # or has just ended
                    ours.connect(_ADDRESS)
                    return ours
                time.sleep(0.01)  # of what has ended the name is free at once: nothing tells when
                continue
            listener.listen()
            ours.connect(_ADDRESS)
            command, variables = processes.command("tests.warm", "serve", str(listener.fileno()))
            env = {**variables, "PYTHONPATH": os.pathsep.join([str(ROOT), variables["PYTHONPATH"]])}
            subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, pass_fds=[listener.fileno()])
            return ours
    raise TimeoutError(f"the warm process of the tests neither answers nor ends in {START_S:.0f} s")


_ONE_AT_A_TIME = threading.Lock()
"""Threads share the connection: a request and its answer are one piece."""


def _asked(request: dict[str, Any], files: list[int] | None = None) -> dict[str, Any]:
    with _ONE_AT_A_TIME:
        messages.send(_server(), request, fds=files)
        return messages.receive(_server())[0]


# The warm process -----------------------------------------------------------------------------------------------------


def main(what: str, *arguments: str) -> None:
    """Serve, or run Python."""
    {"serve": _serve, "python": lambda *words: _end(_code_of([*words]))}[what](*arguments)


def _serve(listener_fd: str) -> None:
    """Serve whoever connects to the socket ``listener_fd`` until nobody is left."""
    listener = socket.socket(fileno=int(listener_fd))
    with processes.one_thread():
        _import()
    gc.freeze()
    clients = [listener.accept()[0]]
    while clients:
        for ready in select.select([listener, *clients], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
                continue
            try:
                _answer(ready)
            except (EOFError, ConnectionError):
                clients.remove(ready)
                ready.close()


def _answer(client: socket.socket) -> None:
    request, files = messages.receive(client)
    if "reap" in request:
        status = os.waitpid(request["reap"], 0)[1]
        messages.send(client, {"code": os.waitstatus_to_exitcode(status)})
        return
    pid = os.fork()
    if not pid:
        _be(request, files)
    for file in files:
        os.close(file)
    messages.send(client, {"pid": pid})


def _import() -> None:
    from refsim.cli import commands
    from refsim.runtime.ranks import forkserver

    names = [module.name for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")]
    for name in (*forkserver.PRELOAD, *names, *PRELOAD):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _be(request: dict[str, Any], files: list[int]) -> None:
    """Become what is asked for; this never returns."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        _open(dict(zip(request["files"], files, strict=True)))
        sys.stdin = open(0, closefd=False)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None
        first = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:] = [*first, *(place for place in sys.path if place not in first)]
        processes.start = functools.partial(_start, processes.start)
        SubprocessHandler._popen = lambda _, command, env: _Rank(command, env)
        code = _code_of(functools.partial(_call, *request["call"]) if "call" in request else request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """End as Python does, but for what it would tidy up."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class _Rank(processes.Forked):
    """What torchrun's agent starts, ``python -u WORDS``, in a fork of the agent."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        super().__init__("tests.warm", ("python", *command[2:]), env)

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None


def _open(files: dict[int, int]) -> None:
    """Have these files under these numbers, and no input but one of them."""
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for number, file in files.items()}
    os.closerange(3, _OUT_OF_THE_WAY)
    for number, file in ({0: os.open(os.devnull, os.O_RDONLY)} | moved).items():
        os.dup2(file, number)
    os.closerange(_OUT_OF_THE_WAY, _OUT_OF_THE_WAY + len(files))


def _start(start: Callable[..., Any], module: str, *arguments: str, **more: Any) -> Any:
    """Fork what ``refsim.base.processes.start`` would start in a Python of its own, while there is one thread."""
    return (processes.fork if processes.threads() == 1 else start)(module, *arguments, **more)


def _call(module: str, *arguments: str) -> None:
    importlib.import_module(module).main(*arguments)


def _code_of(asked: Callable[[], None] | list[str]) -> int:
    try:
        if callable(asked):
            asked()
        elif asked[0] == "-m":
            sys.argv[:] = asked[1:]
            sys.path.insert(0, os.getcwd())
            sys.modules.pop(asked[1], None)  # or runpy warns
            runpy.run_module(asked[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = asked
            sys.path.insert(0, os.path.dirname(os.path.abspath(asked[0])))
            runpy.run_path(asked[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    return 0
