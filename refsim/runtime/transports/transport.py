"""Moving bytes between ranks: the interface of every transport, and gloo's sockets.

Only point-to-point transfers are asked for; every collective is built from them in ``refsim.ccl``. Ranks of one host
have a faster transport, :mod:`refsim.runtime.transports.shared_transport`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch.distributed as dist
from torch import Tensor

from refsim.base.errors import CommError


class Transfer(Protocol):
    def wait(self) -> None:
        """Block until the transfer is complete; ``CommError`` names the peer if it is not within the timeout."""


class Transport(Protocol):
    """Point-to-point transfers of contiguous CPU tensors, in order per pair of ranks and channel (0 to 126)."""

    name: ClassVar[str]
    rank: int
    world_size: int

    def isend(self, tensor: Tensor, dst: int, channel: int = 0) -> Transfer: ...

    def irecv(self, tensor: Tensor, src: int, channel: int = 0) -> Transfer: ...

    def progress(self) -> None:
        """Move what can be moved now, of a transport that nothing else has do so; a rank calls this before each op."""


def check_contiguous(tensor: Tensor, what: str, peer: int) -> None:
    """Raise ``ValueError`` if a tensor cannot be moved as one piece of memory."""
    if not tensor.is_contiguous():
        raise ValueError(f"{what} rank {peer}: the tensor must be contiguous")


def comm_error(what: str, peer: int, how: str, timeout_s: float) -> CommError:
    """Return the error of a transfer that has waited in vain: ``receive from rank 1 timed out (bound 30 s)``."""
    return CommError(f"{what} rank {peer} {how} (bound {timeout_s:g} s)", peer=peer, timed_out=how == "timed out")


class _GlooTransfer:
    def __init__(self, work: dist.Work, tensor: Tensor, peer: int, what: str, timeout_s: float) -> None:
        self._work, self._tensor, self._peer, self._what = work, tensor, peer, what
        self._timeout_s = timeout_s

    def wait(self) -> None:
        try:
            self._work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as e:
            reason = "timed out" if "imed out" in str(e) else "lost the connection"
            raise comm_error(self._what, self._peer, reason, self._timeout_s) from e


class GlooTransport:
    """gloo send / receive on the default process group; one tag counter per ordered pair of ranks and channel."""

    name: ClassVar[str] = "gloo"

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._timeout_s = timeout_s
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()

    def isend(self, tensor: Tensor, dst: int, channel: int = 0) -> Transfer:
        return self._post(dist.isend, tensor, dst, channel, self._sent, "send to")

    def irecv(self, tensor: Tensor, src: int, channel: int = 0) -> Transfer:
        return self._post(dist.irecv, tensor, src, channel, self._received, "receive from")

    def progress(self) -> None:
        """gloo has a thread for it."""

    def _post(
        self,
        call: Callable[..., Any],
        tensor: Tensor,
        peer: int,
        channel: int,
        counters: Counter[tuple[int, int]],
        what: str,
    ) -> Transfer:
        check_contiguous(tensor, what, peer)
        tag = channel << 24 | counters[peer, channel] % (1 << 24)
        counters[peer, channel] += 1
        try:
            work = call(tensor, peer, tag=tag)
        except RuntimeError as e:
            raise comm_error(what, peer, "lost the connection", self._timeout_s) from e
        return _GlooTransfer(work, tensor, peer, what, self._timeout_s)
