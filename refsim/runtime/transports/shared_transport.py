"""Transfers between ranks of one host: a receiver copies straight out of the sender's memory, without a socket.

    sender's tensor ==================== one copy ====================> receiver's tensor
           |                                                                  |
           |-------------- "so many bytes lie at this address" -------------->|   notes, written into the pipe of the
           |<------------- "I have them" -------------------------------------|   rank they are for, which sleeps on it

What fits into a note is written into it: its sender is done at once, as on a device, whose writes nobody answers. With
``eager`` off it is not, and whoever waits for a send waits until its peer has received: so does every run with seeded
delays, which finds programs that would hang with larger tensors.

The copy is Linux's ``process_vm_readv``, made by the receiver before each of its ops and while it waits for any
transfer. Whoever waits moves every transfer that it has posted, so ranks whose transfers depend on each other get on in
whatever order they wait. The notes keep the order of memory, too: a rank reads only what it has a note of.

Nothing has a name or outlives a rank, however that ends: pipes are opened through ``/proc``, no memory is set apart. A
pipe that nobody reads any more says that its rank has ended, or has given up and hung up on everybody (as gloo does).

Unlike with gloo, nothing is written into a posted receive in the middle of an op: a race of the program is in the
hazard log as ever, but shows in values less often.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import time
from collections import deque
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from refsim.base.access import out_of_descriptors
from refsim.base.errors import UserError
from refsim.runtime.transports import world
from refsim.runtime.transports.transport import (
    GlooTransport,
    Message,
    Transfer,
    Transport,
    check_contiguous,
    comm_error,
    diverged,
)
from refsim.runtime.watch.calls import MOST_BYTES, NONE

_NOTE = struct.Struct("=IBBQQBB")  # who writes it, channel, what it says, address, size, dtype, bytes of the call
_OFFER, _HAVE, _BYTES = range(3)
_MOST_IN_NOTE = (
    select.PIPE_BUF - _NOTE.size - MOST_BYTES
)  # what the kernel writes at once, whoever else writes into that pipe
_PIPE_BYTES = 1 << 16  # what a pipe holds on most machines
_PR_SET_PTRACER = 0x59616D61
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Stream:
    """The transfers with a peer in one direction of a channel, oldest first."""

    def __init__(self, peer: int, channel: int, *, sends: bool) -> None:
        self.peer = peer
        self.channel = channel
        self.sends = sends
        self.queue: deque[_SharedTransfer] = deque()
        self.noted = 0  # of the sends, those that the peer has a note of
        # to be received: address, header, bytes where the note has them
        self.offers: deque[tuple[int, Message, bytes | None]] = deque()


class _SharedTransfer:
    """A transfer that its stream moves; :class:`Transfer` of the shared transport."""

    def __init__(self, transport: SharedTransport, stream: _Stream, tensor: Tensor, call: bytes) -> None:
        self.stream = stream
        self.tensor = tensor
        self.done = False
        self.message = Message.of(tensor, call)
        self._transport = transport

    @property
    def what(self) -> str:
        return "send to" if self.stream.sends else "receive from"

    def wait(self) -> None:
        self._transport.wait(self)


class SharedTransport:
    """Transfers between all ranks of a run, which are processes of this host.

    Args:
        addresses: of every rank, its process id and the descriptor that writes into its pipe.
        pipe: this rank's end of its own pipe.
    """

    name: ClassVar[str] = "shared"

    def __init__(self, rank: int, addresses: list[list[int]], pipe: int) -> None:
        self.rank = rank
        self.world_size = len(addresses)
        self.timeout_s = 0.0
        self.eager = True
        self._addresses = addresses
        self._pipe = pipe
        self._pipes: dict[int, int] = {}
        self._streams: dict[tuple[int, int, bool], _Stream] = {}
        self._busy: dict[_Stream, None] = {}  # those with transfers
        self._full: set[int] = set()  # ranks whose pipe takes no note now
        self._cut = b""
        self._hung_up = False

    def isend(self, tensor: Tensor, dst: int, channel: int = 0, call: bytes = NONE) -> Transfer:
        return self._post(tensor, dst, channel, call, sends=True)

    def irecv(self, tensor: Tensor, src: int, channel: int = 0, call: bytes = NONE) -> Transfer:
        return self._post(tensor, src, channel, call, sends=False)

    def _post(self, tensor: Tensor, peer: int, channel: int, call: bytes, *, sends: bool) -> Transfer:
        stream = self._stream(peer, channel, sends=sends)
        transfer = _SharedTransfer(self, stream, tensor, call)
        check_contiguous(tensor, transfer.what, peer)
        try:
            if peer not in self._pipes:
                self._pipes[peer] = _open_pipe(*self._addresses[peer])
        except OSError as e:
            if out_of_descriptors(e):
                raise
            raise comm_error(transfer.what, peer, "lost the connection", self.timeout_s) from e
        stream.queue.append(transfer)
        self._busy[stream] = None
        if sends:
            self._move(stream)
        return transfer

    def wait(self, transfer: _SharedTransfer) -> None:
        """Move whatever can be moved until ``transfer`` is complete; ``CommError`` as :class:`Transfer` says."""
        peer = transfer.stream.peer
        gone = self._hung_up
        until = time.monotonic() + self.timeout_s
        self.progress()
        while not transfer.done:
            left_s = until - time.monotonic()
            if gone or left_s <= 0:
                self._hang_up()
                raise comm_error(transfer.what, peer, "lost the connection" if gone else "timed out", self.timeout_s)
            gone = self._sleep(peer, left_s)
            self.progress()  # a rank that is gone may have left notes

    def _sleep(self, peer: int, longest_s: float) -> bool:
        """Sleep until there is something to do; whether ``peer`` is gone."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        for rank in {peer, *self._full}:
            poll.register(self._pipes[rank], select.POLLOUT if rank in self._full else 0)
        return bool(dict(poll.poll(longest_s * 1e3)).get(self._pipes[peer], 0) & select.POLLERR)

    def progress(self) -> None:
        """Read what others have noted, then move what can be moved; ``CommError`` if a sender has ended meanwhile."""
        if self._hung_up or not self._busy:
            return
        with contextlib.suppress(BlockingIOError):
            self._take(self._cut + os.read(self._pipe, _PIPE_BYTES))
        self._full.clear()
        for stream in list(self._busy):
            self._move(stream)

    def _take(self, notes: bytes) -> None:
        """Give each note to its stream; keep the beginning of one that is cut, where a pipe holds more than is read."""
        at = 0
        while at + _NOTE.size <= len(notes):
            rank, channel, says, address, size, dtype, call_size = _NOTE.unpack_from(notes, at)
            begin = at + _NOTE.size + call_size
            end = begin + (size if says == _BYTES else 0)
            if end > len(notes):
                break
            stream = self._stream(rank, channel, sends=says == _HAVE)
            if says == _HAVE:
                stream.queue.popleft().done = True
                stream.noted -= 1
            else:
                message = Message(dtype, size, notes[begin - call_size : begin])
                stream.offers.append((address, message, notes[begin:end] if says == _BYTES else None))
            at = end
        self._cut = notes[at:]

    def _move(self, stream: _Stream) -> None:
        """Offer what is to be sent, or copy what has been offered, as far as the peer's pipe takes the notes."""
        while stream.sends and stream.noted < len(stream.queue):
            transfer = stream.queue[stream.noted]
            if self.eager and transfer.tensor.nbytes <= _MOST_IN_NOTE:
                if not self._note(stream, _BYTES, transfer):
                    return
                transfer.done = True
                del stream.queue[stream.noted]
            else:
                if not self._note(stream, _OFFER, transfer):
                    return
                stream.noted += 1
        while stream.offers and stream.queue:
            address, sent, payload = stream.offers[0]
            transfer = stream.queue[0]
            tensor = transfer.tensor
            if sent != transfer.message:
                self._hang_up()
                raise diverged(self.rank, stream.peer, transfer.message, sent)
            if payload is not None:
                ctypes.memmove(tensor.data_ptr(), payload, sent.nbytes)
            else:
                try:
                    _read(self._addresses[stream.peer][0], address, tensor)
                except OSError as e:  # the sender has just ended, or given up and freed what it offered
                    self._hang_up()
                    raise comm_error("receive from", stream.peer, "lost the connection", self.timeout_s) from e
                if not self._note(stream, _HAVE, transfer):
                    return  # it is copied again once the pipe takes the note: the sender waits until then
            stream.offers.popleft()
            stream.queue.popleft().done = True
        if not stream.queue:
            self._busy.pop(stream, None)

    def _note(self, stream: _Stream, says: int, transfer: _SharedTransfer) -> bool:
        """Offer a tensor to the peer, hand it its bytes, or say that this rank has it; False if the pipe is full."""
        dtype, size, call = transfer.message if says != _HAVE else (0, 0, b"")
        address = transfer.tensor.data_ptr()
        note = _NOTE.pack(self.rank, stream.channel, says, address, size, dtype, len(call)) + call
        try:
            os.write(self._pipes[stream.peer], note + ctypes.string_at(address, size) if says == _BYTES else note)
        except BlockingIOError:
            self._full.add(stream.peer)
            return False
        except BrokenPipeError:
            return says == _HAVE
        return True

    def _hang_up(self) -> None:
        """Have whoever waits for this rank notice that it has given up."""
        if not self._hung_up:
            self._hung_up = True
            os.close(self._pipe)

    def _stream(self, peer: int, channel: int, *, sends: bool) -> _Stream:
        key = peer, channel, sends
        if key not in self._streams:
            self._streams[key] = _Stream(peer, channel, sends=sends)
        return self._streams[key]


def _open_pipe(pid: int, fd: int) -> int:
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _read(pid: int, address: int, into: Tensor) -> None:
    """Fill a contiguous tensor from another process's memory; ``OSError`` if it is gone or does not allow it."""
    done = 0
    one = ctypes.c_ulong(1)
    none = ctypes.c_ulong(0)
    while done < into.nbytes:
        size = into.nbytes - done
        here = _Span(into.data_ptr() + done, size)
        there = _Span(address + done, size)
        count = _LIBC.process_vm_readv(pid, ctypes.byref(here), one, ctypes.byref(there), one, none)
        if count <= 0:
            code = ctypes.get_errno() or errno.EFAULT
            raise OSError(code, os.strerror(code))
        done += count


class Door:
    """What others need in order to reach this rank, made before they are known.

    Attributes:
        numbers: its process id and the descriptor that writes into its pipe, both 0 where there is no Linux, then the
            address of a secret number and that number.
    """

    def __init__(self) -> None:
        self._secret = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.int64)
        self._pipe = -1
        mine = [0, 0]
        with contextlib.suppress(OSError, AttributeError):  # no Linux
            # Where Yama bounds tracing to descendants, whoever started this rank, and so all it started, may read it.
            _LIBC.prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), *[ctypes.c_ulong(0)] * 3)
            self._pipe, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            mine = [os.getpid(), end]
        self.numbers = [*mine, self._secret.data_ptr(), int(self._secret)]

    def leads_to(self, numbers: list[int]) -> bool:
        """Whether this rank reaches the one with these ``numbers``: its pipe, and its memory."""
        pid, fd, address, secret = numbers
        number = torch.zeros_like(self._secret)
        try:
            os.close(_open_pipe(pid, fd))
            _read(pid, address, number)
        except (OSError, AttributeError):
            return False
        return int(number) == secret  # on another host the number is another process's

    def opened(self, rank: int, numbers: list[list[int]], *, reached: bool) -> SharedTransport | None:
        """Return this rank's transport to all ranks, whose ``numbers`` these are; None, and nothing left open, unless
        every rank has ``reached`` its neighbour.
        """
        if reached:
            return SharedTransport(rank, [one[:2] for one in numbers], self._pipe)
        for descriptor in (self._pipe, self.numbers[1]) if self._pipe >= 0 else ():
            os.close(descriptor)
        return None


def _join(gloo: GlooTransport) -> SharedTransport | None:
    """Return the transport of all ranks; None on every rank if one of them does not reach its neighbour."""
    door = Door()
    every = _numbers_of_all(gloo, door.numbers)
    reached = door.leads_to(every[(gloo.rank + 1) % gloo.world_size])
    return door.opened(gloo.rank, every, reached=all(one for (one,) in _numbers_of_all(gloo, [reached])))


def _numbers_of_all(gloo: GlooTransport, mine: list[int]) -> list[list[int]]:
    """Return the numbers of every rank, on every rank, by way of rank 0."""
    table = torch.zeros(gloo.world_size, len(mine), dtype=torch.int64)
    table[gloo.rank] = torch.tensor(mine)
    others = range(1, gloo.world_size)
    if gloo.rank == 0:
        for transfer in [gloo.irecv(table[rank], rank) for rank in others]:
            transfer.wait()
        for transfer in [gloo.isend(table, rank) for rank in others]:
            transfer.wait()
    else:
        gloo.isend(table[gloo.rank].clone(), 0).wait()
        gloo.irecv(table, 0).wait()
    return [[int(number) for number in row] for row in table]


_joined: tuple[object, SharedTransport | None] | None = None
"""The process group whose ranks have tried to read each other's memory (None of forked ranks, which need none), and
their transport if they may.
"""


def use(shared: SharedTransport | None) -> None:
    """Have :func:`connect` return this transport to forked ranks; None if they do not reach each other."""
    global _joined
    _joined = None, shared


def connect(wanted: str, timeout_s: float, *, eager: bool = True) -> Transport:
    """Return what moves a job's tensors; every rank calls this, in gloo's process group unless ``shared`` will do.

    Args:
        wanted: ``gloo``, ``shared``, or ``auto``: ``shared`` where the ranks may read each other's memory, else
            ``gloo``.
        eager: whether ``shared`` ends small sends at once.

    Raises:
        UserError: ``shared`` was wanted, but the ranks cannot read each other's memory.
    """
    global _joined
    if wanted == "gloo":
        return GlooTransport(timeout_s)
    group = dist.group.WORLD if world.forked is None else None
    if _joined is None or _joined[0] is not group:
        _joined = group, _join(GlooTransport(timeout_s))
    shared = _joined[1]
    if shared is None and wanted == "auto":
        return GlooTransport(timeout_s)
    if shared is None:
        raise UserError(
            "these ranks may not read each other's memory (several hosts, or a container without "
            "process_vm_readv); choose --transport gloo."
        )
    shared.timeout_s = timeout_s
    shared.eager = eager
    return shared
