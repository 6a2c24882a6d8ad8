"""Processes that fork others and end together: what the fork servers of both device backends have in common.

A fork server is a warm process with one thread: it has imported what is slow to import, forks a process when the
launcher asks for one, and is gone with everything it forked as soon as the launcher is gone.

    launcher ==control==> fork server --fork--> process
        hangs up              '----- kills ------'

What they do with the processes differs and stays apart. refsim's ranks (``refsim.runtime.ranks.forkserver``) join a
process
group, take many jobs over a socket each, and are watched together, since one rank's failure is told from the others'.
ttnn gets a process for every job (``tt_impl.run.worker``): it may end its process in any operation and keeps state of
the mesh it opened, so nothing is reused, and the answer is what the process left in a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from refsim.base import search_path

_MAIN = "import sys; sys.path[:] = [p for p in sys.path if p]; from {module} import main; main({arguments})"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""What libraries read as they are loaded."""
_PR_SET_PDEATHSIG = 1
_REAP_S = 5.0
_started: list[tuple[int, subprocess.Popen[bytes] | Forked]] = []
"""Who started it, since a forked child has its parent's list, and what."""


def start(module: str, *arguments: str, env: Mapping[str, str], **more: Any) -> subprocess.Popen[bytes]:
    """Run ``main(*arguments)`` of a module in a Python of its own, the leader of a session of its own.

    Args:
        module, arguments: see :func:`command`.
        env: environment variables besides this process's.
        more: of :class:`subprocess.Popen`.
    """
    words, variables = command(module, *arguments)
    process = subprocess.Popen(words, start_new_session=True, env={**variables, **env}, **more)
    _started.append((os.getpid(), process))
    return process


def fork(module: str, *arguments: str, env: Mapping[str, str], **more: Any) -> Forked:
    """Run ``main(*arguments)`` of a module in a fork of this process, the leader of a session of its own.

    It imports nothing again that this process has imported. Fork a process with one thread only: what another one
    imports at that moment would stay half imported, and locked.

    Args:
        env: environment variables besides this process's.
        more: ``pass_fds``, the files that it keeps, ``stdin``, ``stdout`` and ``stderr``, of :class:`subprocess.Popen`.
    """
    process = Forked(module, arguments, env, **more)
    _started.append((os.getpid(), process))
    return process


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have libraries that are imported within start no threads, so that this process may fork."""
    had = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in had.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def threads() -> int:
    """Count the threads of this process, those that Python does not know among them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def kill_started() -> None:
    """Kill what :func:`start` started in this process and has not ended, with all that it forked, and wait for it.

    For a signal handler: ``Popen.wait`` may be what the signal came upon, and waits for its own lock when called again.
    """
    pids = [process.pid for owner, process in _started if owner == os.getpid()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    until = time.monotonic() + _REAP_S
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < until:
                time.sleep(0.01)  # a wait without end would be one for whatever the kernel cannot kill yet


def command(module: str, *arguments: str, as_list: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a Python that runs ``main(*arguments)`` of a module.

    It imports from where this process does, but, unlike with ``python -m``, never from the current folder: a
    checkpoint's folder may hold a ``torch.py``.

    Args:
        as_list: ``main`` takes the arguments as one list.
    """
    home = str(Path(__file__).resolve().parents[2])
    trusted = search_path.trusted()
    path = [*trusted, *([] if home in trusted else [home])]
    code = _MAIN.format(module=module, arguments="sys.argv[1:]" if as_list else "*sys.argv[1:]")
    return [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def end(process: subprocess.Popen[bytes] | Forked, *, patience_s: float = 0.0) -> None:
    """Wait until a started process has ended, and from ``patience_s`` on kill it with all that it forked."""
    if patience_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _started[:] = [one for one in _started if one[1] is not process]


@contextlib.contextmanager
def ending_with(control: int, clean_up: Callable[[], None]) -> Iterator[None]:
    """End at once, after ``clean_up``, when the other side of ``control``, a socket or pipe, hangs up in this block.

    The kernel sends SIGIO when something happens there; a thread to watch it would make forking unsafe.
    """
    if not hasattr(fcntl, "F_SETOWN"):
        yield
        return
    hung_up = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(control, hung_up)
    owner = os.getpid()

    def look(*_: object) -> None:
        if os.getpid() == owner and any(events & hung_up for _, events in poll.poll(0)):
            clean_up()
            os._exit(0)

    signal.signal(signal.SIGIO, look)
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, owner)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    look()
    try:
        yield
    finally:
        fcntl.fcntl(control, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the closed socket ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def be_first_to_go() -> None:
    """Have the kernel, should memory run out, end this process rather than the launcher or somebody else's."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as f:
        f.write("1000")


def kill(pids: list[int]) -> list[int]:
    """Kill and reap children; the exit code of each, the signal's number with a minus where one ended it.

    A child that had ended before keeps the code it ended with.
    """
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def how_it_ended(code: int) -> str:
    """Say an exit code in words: ``was killed by SIGKILL`` or ``exited with code 3``."""
    if code >= 0:
        return f"exited with code {code}"
    known = -code in {s.value for s in signal.Signals}
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


class Forked:
    """A forked process, with what is used of :class:`subprocess.Popen`: it has the given files and environment."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        env: Mapping[str, str],
        *,
        pass_fds: tuple[int, ...] = (),
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: BinaryIO | None = None,
    ) -> None:
        self._code: int | None = None
        from_it, its_stdout = os.pipe() if stdout == subprocess.PIPE else (-1, -1)
        its_stdin, to_it = os.pipe() if stdin == subprocess.PIPE else (-1, -1)
        self.pid = os.fork()
        if self.pid:
            for fd in {its_stdin, its_stdout} - {-1}:
                os.close(fd)
            self.stdin = None if to_it < 0 else open(to_it, "wb")
            self.stdout = None if from_it < 0 else open(from_it, "rb")
            return
        code = 1
        try:
            os.setsid()
            os.environ |= env
            for fd, target in ((its_stdin, 0), (its_stdout, 1), (stderr.fileno() if stderr else -1, 2)):
                if fd >= 0:
                    os.dup2(fd, target)
            sys.stdin = open(0, closefd=False)
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd > 2 and fd not in pass_fds:
                    with contextlib.suppress(OSError):  # the one that lists
                        os.close(fd)
            importlib.import_module(module).main(*arguments)
            code = 0
        except BaseException:  # of a fork nothing may come back into the code that forked it
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            finally:
                os.close(ended)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code
