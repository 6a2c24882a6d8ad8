"""Moving bytes between ranks: the interface of every transport, and gloo's sockets.

Only point-to-point transfers are asked for; every collective is built from them in ``refsim.ccl``. Ranks of one host
have a faster transport, :mod:`refsim.runtime.transports.shared_transport`.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from refsim.base.errors import CommError, DivergedError
from refsim.runtime.watch.calls import MOST_BYTES, NONE, text_of


class Transfer(Protocol):
    """A tensor on its way to or from a peer."""

    def wait(self) -> None:
        """Block until the transfer is complete; ``CommError`` names the peer if it is not within the timeout."""


class Transport(Protocol):
    """Point-to-point transfers of contiguous CPU tensors, in order per pair of ranks and channel (0 to 126).

    ``call`` is the header of the collective call that a transfer belongs to. It travels with the message, along with
    dtype and size, and a receiver that is at another call raises ``DivergedError`` in place of taking the bytes.
    """

    name: ClassVar[str]
    rank: int
    world_size: int

    def isend(self, tensor: Tensor, dst: int, channel: int = 0, call: bytes = NONE) -> Transfer: ...

    def irecv(self, tensor: Tensor, src: int, channel: int = 0, call: bytes = NONE) -> Transfer: ...

    def progress(self) -> None:
        """Move what can be moved now, of a transport that nothing else has do so; a rank calls this before each op."""


def check_contiguous(tensor: Tensor, what: str, peer: int) -> None:
    """Raise ``ValueError`` if a tensor cannot be moved as one piece of memory."""
    if not tensor.is_contiguous():
        raise ValueError(f"{what} rank {peer}: the tensor must be contiguous")


def comm_error(what: str, peer: int, how: str, timeout_s: float) -> CommError:
    """Return the error of a transfer that has waited in vain: ``receive from rank 1 timed out (bound 30 s)``."""
    return CommError(f"{what} rank {peer} {how} (bound {timeout_s:g} s)", peer=peer, timed_out=how == "timed out")


DTYPES = tuple(dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype)))
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
"""Numbers of torch's dtypes in headers: ranks of a run have the same torch."""


def diverged(rank: int, peer: int, mine: Message, theirs: Message) -> DivergedError:
    """Return the error of a rank that is at another call than the peer whose message it takes."""
    sent = str(theirs)
    taken = str(mine)
    if text_of(mine.call) == text_of(theirs.call) and mine[:2] == theirs[:2]:
        sent, taken = (f"{text} (call {one.number} of the group)" for text, one in ((sent, theirs), (taken, mine)))
    return DivergedError(f"rank {peer} sends {sent} where rank {rank} receives {taken}", peer=peer)


class Message(NamedTuple):
    """What a header says of a message; equal at both ends in every program whose ranks agree."""

    dtype: int
    nbytes: int
    call: bytes

    @classmethod
    def of(cls, tensor: Tensor, call: bytes) -> Message:
        return cls(DTYPE_CODES[tensor.dtype], tensor.nbytes, call)

    @property
    def number(self) -> str:
        return self.call.decode(errors="replace").partition(" ")[0]

    def __str__(self) -> str:
        name = str(DTYPES[self.dtype]).removeprefix("torch.")
        return f"{self.nbytes} bytes of {name} in {text_of(self.call)}"


_HEADER = struct.Struct(f"=BQB{MOST_BYTES}s")  # dtype, bytes of the payload, bytes of the call, the call


class _GlooTransfer:
    """A message under way: its header, then its payload.

    Args:
        check: what a receiver does with the header before it waits for the payload; None where it is sent.
    """

    def __init__(self, peer: int, what: str, timeout_s: float, check: Callable[[], None] | None) -> None:
        self._peer = peer
        self._what = what
        self._timeout_s = timeout_s
        self._check = check
        self._posted: list[tuple[dist.Work, Tensor]] = []

    def post(self, move: Callable[..., Any], tensor: Tensor, tag: int) -> None:
        """Have gloo move a tensor, whose memory it uses until this transfer has been waited for."""
        try:
            self._posted.append((move(tensor, self._peer, tag=tag), tensor))
        except RuntimeError as e:
            raise comm_error(self._what, self._peer, "lost the connection", self._timeout_s) from e

    def wait(self) -> None:
        (header, _), (payload, _) = self._posted
        if self._check is not None:
            self._finish(header)
            self._check()
        self._finish(payload)
        if self._check is None:  # whoever took the payload has taken the header before
            self._finish(header)

    def _finish(self, work: dist.Work) -> None:
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as e:
            reason = "timed out" if "imed out" in str(e) else "lost the connection"
            raise comm_error(self._what, self._peer, reason, self._timeout_s) from e


class GlooTransport:
    """gloo send / receive on the default process group; one tag counter per ordered pair of ranks and channel.

        tag    channel (7 bits) | header 0, payload 1 | hash of the payload's size (8) | counter (15)

    gloo ends the process where a message does not fit. With its size in the tag it never gets there, and the header,
    which always fits, says what is wrong.
    """

    name: ClassVar[str] = "gloo"

    def __init__(self, timeout_s: float) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._timeout_s = timeout_s
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()

    def isend(self, tensor: Tensor, dst: int, channel: int = 0, call: bytes = NONE) -> Transfer:
        check_contiguous(tensor, "send to", dst)
        header = torch.zeros(_HEADER.size, dtype=torch.uint8)
        message = Message.of(tensor, call)
        _HEADER.pack_into(header.numpy(), 0, message.dtype, message.nbytes, len(call), call)
        transfer = _GlooTransfer(dst, "send to", self._timeout_s, None)
        return self._post(transfer, dist.isend, header, tensor, self._tags(self._sent, dst, channel, tensor.nbytes))

    def irecv(self, tensor: Tensor, src: int, channel: int = 0, call: bytes = NONE) -> Transfer:
        check_contiguous(tensor, "receive from", src)
        header = torch.zeros(_HEADER.size, dtype=torch.uint8)
        mine = Message.of(tensor, call)

        def check() -> None:
            dtype, nbytes, size, theirs = _HEADER.unpack(header.numpy())
            sent = Message(dtype, nbytes, theirs[:size])
            if sent != mine:
                raise diverged(self.rank, src, mine, sent)

        transfer = _GlooTransfer(src, "receive from", self._timeout_s, check)
        return self._post(transfer, dist.irecv, header, tensor, self._tags(self._received, src, channel, tensor.nbytes))

    def progress(self) -> None:
        """gloo has a thread for it."""

    @staticmethod
    def _tags(counters: Counter[tuple[int, int]], peer: int, channel: int, nbytes: int) -> tuple[int, int]:
        """Return the tags of the next message's header and payload."""
        count = counters[peer, channel] % (1 << 15)
        counters[peer, channel] += 1
        header = channel << 24 | count
        return header, header | 1 << 23 | zlib.crc32(nbytes.to_bytes(8, "little")) % (1 << 8) << 15

    @staticmethod
    def _post(
        transfer: _GlooTransfer, move: Callable[..., Any], header: Tensor, tensor: Tensor, tags: tuple[int, int]
    ) -> Transfer:
        transfer.post(move, header, tags[0])
        transfer.post(move, tensor, tags[1])
        return transfer
